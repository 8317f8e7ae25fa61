"""What a policy sees and what it answers. Both are values: a policy is a pure function of its snapshot.

    policy.decide(snapshot) -> Decision

What a policy remembers between decisions (queues, leases) is the `memory` of its last answer,
handed back in the next snapshot. So the same snapshots give the same decisions, and a log of them replays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from windtunnel.studies.fleet.parts.profile import Part

Placement = tuple[tuple[int, int], ...]  # (node, GPUs on it), in the order in which they were given
EMPTY: Placement = ()
Spot = tuple[int, int, int]  # of a part: node, GPU, and where it begins on it


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a job is, and what else its scheduler counts of it."""

    user: str = ""
    account: str = ""
    qos: str = ""
    billing: float = 0.0  # what it is charged a second: GPUs where the log does not say
    cpus: int = 0
    topology: str = ""  # as Kueue's topology request: required LEVEL, preferred LEVEL, unconstrained
    pod_gpus: int = 0  # of each of its pods; 0: not told
    nodes: int = 0  # that it asks for; 0: not told
    gpu: str = ""  # the type of GPU that it asks for, by its scheduler's name; empty: any
    flavors: str = ""  # of Kueue that it may use, by commas; empty: any
    checks_s: float | None = None  # from its quota to its admission, while Kueue's checks go on; None: not told


NOBODY = Owner()


@dataclass(frozen=True, slots=True)
class JobView:
    """A job that is neither done nor rejected, as a policy sees it.

    On the fleet's clock it is the job itself (`running.py`) as it stands while the policy decides: who keeps it for
    later copies what it needs.
    """

    index: int  # position in the trace
    submit_s: float
    gpus: int  # requested
    placement: Placement = EMPTY  # held now
    executed_s: float = 0.0  # time for which it has held GPUs
    gpu_seconds: float = 0.0  # held so far
    restarts: int = 0
    remaining_s: float | None = None  # on the GPUs requested, where the policy may know it
    deadline_s: float | None = None
    limit_s: float | None = None  # that it asked for
    priority: float = 0.0  # as a log tells it, higher is first
    queue: str = ""
    owner: Owner = NOBODY
    work: Any = None  # the job's model of its own speed, for policies that size jobs
    progress: Any = None  # how far that work is
    part: Part | None = (
        None  # of GPUs, where it asks for parts: `gpus` are units then (`parts/profile.py`), as those of nodes are
    )
    spots: tuple[Spot, ...] = ()

    @property
    def held_gpus(self) -> int:
        """GPUs held now."""
        return sum(count for _, count in self.placement)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster at one moment."""

    now_s: float
    jobs: Sequence[JobView]  # in the order of the trace
    nodes: Sequence[int]  # GPUs of each node that is up; 0 for one that is down
    memory: Any = None

    @property
    def capacity(self) -> int:
        """GPUs that are up."""
        return sum(self.nodes)


@dataclass(frozen=True, slots=True)
class Decision:
    """GPUs for each job that is to run, in the order in which new placements are sought; all others wait.

    `placement` fixes nodes for the jobs it names; the clock places the others. `wake_s`: when to ask again even if
    nothing happens. `reject`: jobs that are turned away for good.
    """

    gpus: Mapping[int, int]
    placement: Mapping[int, Placement] = field(default_factory=dict)
    reject: tuple[int, ...] = ()
    wake_s: float | None = None
    memory: object = None
    spots: Mapping[int, tuple[Spot, ...]] = field(default_factory=dict)  # of jobs that run on parts of GPUs


class Policy(Protocol):
    """One scheduler. Implementations are frozen: their fields are their parameters."""

    def decide(self, snapshot: Snapshot) -> Decision:
        """What runs from now on."""
        ...


@dataclass(frozen=True)
class Rounds:
    """A policy that is asked at fixed intervals."""

    inner: Policy
    interval_s: float

    def decide(self, snapshot: Snapshot) -> Decision:
        """The decision of the inner policy."""
        return self.inner.decide(snapshot)


def all_that_fit(order: Iterable[JobView], capacity: int) -> Decision:
    """Walking an order, whatever fits runs on the GPUs that it asks for."""
    gpus: dict[int, int] = {}
    for job in order:
        if job.gpus <= capacity:
            gpus[job.index] = job.gpus
            capacity -= job.gpus
    return Decision(gpus)


def copied(snapshot: Snapshot) -> Snapshot:
    """A snapshot to keep: of jobs as they are now."""
    names = [each.name for each in fields(JobView)]
    return replace(snapshot, jobs=[JobView(**{name: getattr(job, name) for name in names}) for job in snapshot.jobs])


def kept_or_placed(snapshot: Snapshot, decision: Decision) -> dict[int, Placement]:
    """Placements of a decision: a job that keeps its number of GPUs keeps its nodes, the others are placed in order."""
    free = list(snapshot.nodes)
    placement_of = {job.index: job.placement for job in snapshot.jobs}
    result: dict[int, Placement] = {}
    for index, gpus in decision.gpus.items():
        fixed = decision.placement.get(index)
        before = placement_of[index]
        if fixed is not None:
            result[index] = fixed
        elif before and sum(count for _, count in before) == gpus:
            result[index] = before
        else:
            continue
        for node, count in result[index]:
            free[node] -= count
    assert min(free, default=0) >= 0, "a decision gave a node more than it has"
    for index, gpus in decision.gpus.items():
        if index not in result and gpus > 0:
            result[index] = from_emptiest(free, gpus)
    return result


def from_emptiest(free: list[int], gpus: int) -> Placement:
    """GPUs from the node with most free, the first of equals, until there are enough. Takes them from `free`."""
    placement: list[tuple[int, int]] = []
    while gpus > 0:
        node = max(range(len(free)), key=free.__getitem__)
        count = min(free[node], gpus)
        assert count > 0, "placed more GPUs than are free"
        free[node] -= count
        gpus -= count
        placement.append((node, count))
    return tuple(placement)
