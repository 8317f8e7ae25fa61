"""What a node's agent does for the service beside batch jobs: one window at a time, as docs/fleet-live.md tells it.

A late service takes cores from the batch jobs (`throttle`), then freezes the victim, then sends it away; calm windows
give back in the other order. What jobs may move to and from disks is the share that they have of the cores: one that
writes needs few to fill a disk's queue, and the kernel's work for it is nobody's. The victim is that of the simulated
policies (`policies/beyond/oversubscribe.py`). This is a pure function of what was measured and of its own few counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from windtunnel.studies.fleet.live.groups import LEAST_CORES
from windtunnel.studies.fleet.policies.beyond.oversubscribe import Rules, Running, least_loss, throttle, youngest

GROWTH = 0.1  # of the machine's cores, in a calm window
PATIENCE, PATIENCE_MOST = 32, 1024  # windows: one in twenty that is late is a p95
LEAST_DISK = 1 << 20  # bytes a second


@dataclass(frozen=True)
class Window:
    """What was measured in one. `p95_s`: None without requests; `guests`: batch jobs here, frozen ones by `frozen`.

    `lately_s`: p95 over the last windows together, None of few. `late_s`, `lately_late_s`: over which they are late.
    """

    p95_s: float | None
    alone_s: float
    target_s: float
    late_s: float
    lately_late_s: float
    batch_cores: float
    memory_use: float
    guests: Sequence[Running]
    frozen: frozenset[int] = frozenset()
    waiting: bool = False
    lately_s: float | None = None
    disk_rate: float = 0.0  # bytes a second that the batch jobs moved


@dataclass(frozen=True)
class Action:
    """What is to be done besides the limits of the controller. Numbers are those of jobs."""

    freeze: int | None = None
    thaw: int | None = None
    leave: int | None = None
    admit: bool = False


@dataclass
class Controller:
    """Counts from window to window. `cores`: of the machine."""

    cores: float
    rules: Rules = field(default_factory=Rules)
    own: int = 1  # cores that the service needs
    quota: float = 0.0
    late: int = 0  # windows in a row
    calm: int = 0
    patience: int = PATIENCE  # calm windows until there are more cores than the service's own
    fastest: float = 0.0  # bytes a second that the batch jobs moved in a window, at most

    def __post_init__(self) -> None:
        self.quota = self.quota or float(self.own)

    @property
    def disk_rate(self) -> float | None:
        """Bytes a second that the batch jobs may move to a disk; None: all."""
        if self.quota >= self.cores or not self.fastest:
            return None
        return max(LEAST_DISK, self.fastest * self.quota / self.cores)

    @property
    def victim(self) -> Callable[[Sequence[Running]], Running]:
        """Who leaves first."""
        return (lambda guests: least_loss(guests, self.rules)) if self.rules.reschedule else youngest

    def decide(self, window: Window) -> Action:
        """The next step of the ladder."""
        self.fastest = max(self.fastest, window.disk_rate)
        if window.memory_use > self.rules.memory and window.guests:
            return Action(leave=self.victim(window.guests).task)
        empty = window.waiting and not window.guests and window.memory_use <= self.rules.memory
        if window.p95_s is None:
            return Action(admit=empty)
        if window.p95_s > window.late_s:
            self.late += 1
            return self._relieve(window)
        self.late = 0
        if window.lately_s is not None and window.lately_s > window.lately_late_s:
            self._cut(window, window.lately_s)
            return Action(admit=empty)
        if (window.lately_s or window.p95_s) > (window.alone_s + window.target_s) / 2.0:
            return Action(admit=empty)
        if window.frozen:
            return Action(thaw=min(window.frozen))
        full = self.quota >= self.own
        self.calm += 1
        if self.quota < self.own:
            self.quota = min(self.own, self.quota + GROWTH * self.cores)
        elif self.calm >= self.patience:
            self.calm = 0
            self.quota = min(self.cores, self.quota + max(1, round(GROWTH * self.cores)))
        return Action(admit=empty or (full and window.waiting))

    def _relieve(self, window: Window) -> Action:
        assert window.p95_s is not None, "late"
        self._cut(window, window.p95_s)
        if self.quota > LEAST_CORES or self.late <= self.rules.windows:
            return Action()
        moving = [guest for guest in window.guests if guest.task not in window.frozen]
        if moving:
            return Action(freeze=self.victim(moving).task)
        if window.guests and self.late > 2 * self.rules.windows:
            return Action(leave=self.victim(window.guests).task)
        return Action()

    def _cut(self, window: Window, p95_s: float) -> None:
        """Fewer cores, by as much as the service is late."""
        self.calm = 0
        if self.quota > self.own:
            self.patience = min(2 * self.patience, PATIENCE_MOST)
        used = min(self.quota, max(window.batch_cores, LEAST_CORES))
        cores = used * throttle(used * (1.0 - window.target_s / p95_s), used)
        if self.quota > self.own:
            self.quota = float(max(self.own, int(cores)))
        else:
            self.quota = max(LEAST_CORES, cores)
