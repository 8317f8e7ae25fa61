"""A trace of jobs as columns: what every reader makes and every clock runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.files.table import number_of

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
WHOEVER = "Any"  # of Kueue's `reclaimWithinCohort`
NUMBERS = ("line", "submit_s", "gpus", "duration_s", "deadline_s", "iterations", "batch_size", "start_s")


@dataclass(frozen=True, slots=True)
class Unread:
    """What a reader of a log did not understand, or took for something else."""

    reason: str
    count: int
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Slices:
    """Slices of MIG of one profile that a queue or a cohort is owed, borrows and lends; None: no limit."""

    nominal: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Flavor(Slices):
    """GPUs of one ResourceFlavor that a queue or a cohort is owed, borrows and lends."""

    spec: Mapping[str, object] = field(default_factory=dict, hash=False)  # as Kueue has it: nodeLabels, topologyName
    resources: tuple[str, ...] = ()  # names of GPUs that it has


@dataclass(frozen=True, slots=True)
class Quota:
    """A queue's share of a cluster's GPUs, as a ClusterQueue of Kueue says it; None: no limit.

    What a queue does not use others of its cohort borrow, up to their `borrowing_limit` beyond `nominal`; it lends no
    more than `lending_limit`. `within`, `reclaim`: whom its jobs may stop, in the queue and in the cohort.
    """

    name: str
    nominal: int
    cohort: str = ""
    borrowing_limit: int | None = None
    lending_limit: int | None = None
    strict: bool = False  # the first job of the queue blocks the others
    within: str = "Never"  # LowerPriority, LowerOrNewerEqualPriority
    reclaim: str = "Never"  # LowerPriority, WHOEVER
    borrow_within: str = "Never"  # LowerPriority: also while it borrows, up to a priority
    borrow_priority: float | None = None
    weight: float = 1.0  # of fair sharing
    slices: Mapping[str, Slices] = field(default_factory=dict)  # of MIG, by profile: its own beside whole GPUs
    whole_queue: str = ""  # the queue whose slices of one profile, or whose GPUs of one flavor, these are
    flavors: Mapping[str, Flavor] = field(default_factory=dict)  # by name, in the order in which jobs try them
    borrow_next: bool = False  # a job that would borrow of a flavor tries the next
    preempt_next: bool = True  # a job that would stop others on a flavor tries the next
    borrow_last: bool = False  # of two flavors, to stop others on one is better than to borrow of the other
    flavor: str = ""  # of which these are
    checks: tuple[str, ...] = ()  # that each of its jobs waits for, its quota held, before it is admitted

    @property
    def head_of(self) -> str:
        """The queue that has one first job, of whole GPUs and of slices, of all flavors."""
        return self.whole_queue or self.name


@dataclass(frozen=True, slots=True)
class Cohort:
    """Queues and cohorts that share: its own GPUs, beside theirs, and what it borrows of and lends to its parent."""

    name: str
    parent: str = ""
    nominal: int = 0
    borrowing_limit: int | None = None
    lending_limit: int | None = None
    weight: float = 1.0
    slices: Mapping[str, Slices] = field(default_factory=dict)
    flavors: Mapping[str, Flavor] = field(default_factory=dict)


@dataclass
class Notes:
    """What was not understood, or is taken for something else: jobs by reason."""

    jobs: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, job: str) -> None:
        """One more job."""
        self.jobs.setdefault(reason, []).append(job)

    def rows(self) -> tuple[Unread, ...]:
        """By reason, in the order met."""
        return tuple(Unread(reason, len(jobs), tuple(jobs[:5])) for reason, jobs in self.jobs.items())


@dataclass(frozen=True, eq=False)
class Jobs:
    """Jobs in the order of their file; NaN or an empty text where it does not say. Times are the trace's own."""

    source: str
    name: Sequence[str]
    line: Integers  # of the file, from 1
    submit_s: Floats
    gpus: Integers
    duration_s: Floats  # on `gpus` GPUs
    deadline_s: Floats
    iterations: Floats
    batch_size: Floats
    start_s: Floats  # as it happened
    model: Sequence[str]
    user: Sequence[str]
    columns: Mapping[str, Sequence[str]] = field(default_factory=dict)  # further columns of this layout, as texts
    not_understood: tuple[Unread, ...] = ()
    quotas: tuple[Quota, ...] = ()  # of the queues that the file names
    cohorts: tuple[Cohort, ...] = ()  # that have more than a name

    def __len__(self) -> int:
        return len(self.name)

    @property
    def gpus_asked(self) -> Floats | Integers:
        """GPUs that each job asks for: of parts what they are of GPUs."""
        return self.gpus * self.further("share") if "share" in self.columns else self.gpus

    def further(self, column: str) -> Floats:
        """A further column as numbers; NaN where it does not say, or says no number."""
        texts = self.columns.get(column)
        return np.full(len(self), np.nan) if texts is None else np.array([number_of(text or "x") for text in texts])

    @property
    def quota_queues(self) -> list[str]:
        """The queue of each job whose quota it takes."""
        local, behind = (self.columns.get(name, [""] * len(self)) for name in ("queue", "cluster_queue"))
        return [cluster or queue for cluster, queue in zip(behind, local, strict=True)]

    def where(self, index: int) -> str:
        """Where a job stands, for messages."""
        return f"{self.source} line {int(self.line[index])}"

    def take(self, rows: Integers) -> Jobs:
        """The jobs of these rows only."""
        pick = rows.tolist()
        changes: dict[str, Any] = {name: getattr(self, name)[rows] for name in NUMBERS}
        changes |= {name: [getattr(self, name)[at] for at in pick] for name in ("name", "model", "user")}
        changes["columns"] = {key: [values[at] for at in pick] for key, values in self.columns.items()}
        return replace(self, **changes)


def held_at_once(jobs: Jobs) -> int:
    """The most GPUs that jobs held at one time, by the trace's own starts; 0 where it says none."""
    end = jobs.further("end_s")
    start = np.where((jobs.further("log_restarts") > 0) & ~np.isnan(end), end - jobs.duration_s, jobs.start_s)
    began = np.flatnonzero((jobs.duration_s > 0) & ~np.isnan(start))
    times = np.concatenate([start[began], start[began] + jobs.duration_s[began]])
    gpus = jobs.gpus_asked[began]
    change = np.concatenate([gpus, -gpus])
    in_use = np.cumsum(change[np.lexsort((change, times))])  # at one time ends come first
    return int(np.ceil(in_use.max(initial=0) - 1e-9))
