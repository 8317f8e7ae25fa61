"""A job on the fleet's clock: its state, and what a policy may see of it, worked out when it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windtunnel.studies.fleet.clock.decision import EMPTY, NOBODY, Owner, Placement, Spot
from windtunnel.studies.fleet.clock.work import Work

if TYPE_CHECKING:
    from windtunnel.studies.fleet.parts.profile import Part

NS = 1_000_000_000
Rank = tuple[float, float, int]  # by which a policy orders jobs; lower is first


@dataclass(slots=True)
class Moment:
    """The time of a clock, which all its jobs share."""

    ns: int = 0


@dataclass(slots=True, eq=False)
class Running:
    """The state of one job."""

    index: int
    submit_ns: int
    gpus: int  # requested
    work: Work
    deadline_s: float | None = None
    limit_s: float | None = None  # that it asked for; it ends by itself before, or is ended then
    priority: float = 0.0  # as a log tells it, higher is first
    queue: str = ""
    owner: Owner = NOBODY
    moment: Moment = field(default_factory=Moment, repr=False)
    placement: Placement = EMPTY  # held now
    counts: tuple[int, ...] = ()
    phase: int = 0
    units: float = 0.0  # of its work, done up to `since_ns`
    since_ns: int = 0  # progress is booked up to here; later than now while it restarts
    held_since_ns: int = 0
    held_ns: int = 0
    gpu_ns: int = 0
    rate: float = 0.0
    due_ns: int = 0  # when its phase ends, if nothing changes
    start_ns: int | None = None
    end_ns: int | None = None
    restarts: int = 0
    failures: int = 0  # times that it lost a node
    placed_ns: int = 0  # on this placement
    begin_ns: int = 0  # of progress on it
    saved: tuple[int, float, int] = (0, 0.0, 0)  # the last checkpoint: when, units done, phase
    after_failure: bool = False  # this placement makes good for a failure
    lost_units: float = 0.0
    lost_gpu_ns: int = 0
    restart_gpu_ns: int = 0
    recovery_gpu_ns: int = 0
    rejected: bool = False
    cancelled: bool = False  # it was ended while it ran
    ticket: int | None = None
    rank: Rank = (0.0, 0.0, 0)  # as its policy ordered it last
    turn_ns: int = 0  # when that changes though nothing happens
    part: Part | None = None  # of GPUs, of which it asks for `gpus` // `part.units`; None: whole GPUs
    stretch: float = 1.0  # its step over its step alone, by the links that it shares
    spots: tuple[Spot, ...] = ()  # of its parts, where it has any

    @property
    def submit_s(self) -> float:
        """When it was submitted."""
        return self.submit_ns / NS

    @property
    def held_gpus(self) -> int:
        """GPUs held now."""
        return sum(self.counts)

    @property
    def executed_ns(self) -> int:
        """Time for which it has held GPUs."""
        return self.held_ns + (self.moment.ns - self.held_since_ns if self.placement else 0)

    @property
    def executed_s(self) -> float:
        """Time for which it has held GPUs."""
        return self.executed_ns / NS

    @property
    def gpu_seconds(self) -> float:
        """GPU time held so far."""
        held_ns = self.moment.ns - self.held_since_ns if self.placement else 0
        return (self.gpu_ns + held_ns * sum(self.counts)) / NS

    @property
    def units_now(self) -> float:
        """Units of its work that are done."""
        if not self.placement or self.moment.ns <= self.since_ns:
            return self.units
        return self.units + self.rate * (self.moment.ns - self.since_ns) / NS

    @property
    def remaining_s(self) -> float | None:
        """On the GPUs requested, where that is known."""
        duration_s = getattr(self.work, "duration_s", None)
        return None if duration_s is None else float(duration_s) - self.units_now

    @property
    def left_ns(self) -> int:
        """The same in whole nanoseconds; 0 where it is not known."""
        if self.placement and hasattr(self.work, "duration_s"):
            return self.due_ns - max(self.moment.ns, self.since_ns)
        return round(max(self.remaining_s or 0.0, 0.0) * NS)

    @property
    def progress(self) -> tuple[int, float]:
        """How far its work is: phases that have ended, and units."""
        return self.phase, self.units_now

    @property
    def share_done(self) -> float:
        """Of its work: 1 when it has ended."""
        total = self.work.phase_end(self.work.phases - 1)
        return 1.0 if self.end_ns is not None or total <= 0 else min(self.units_now / total, 1.0)
