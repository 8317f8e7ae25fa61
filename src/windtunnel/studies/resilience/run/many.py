"""All runs at once, on arrays over seeds, in closed form between two events; an event loop in the tests is its oracle.

The running clock y starts at 0 at each restart from a checkpoint. A cycle is `interval` of work and `stall`;
checkpoint i is complete at y = i (interval + stall) and can be read `persist` later. So how much was stalled, and
what a failure loses, follows from y without walking through the checkpoints. Between two events of a run the speed is
constant.

Where speed changed since the last restart, lost work counts at the mean speed since then. The answer: where the wall
time went, and how sure that is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.resilience.failures.draw import NEVER, SLOW, FailureTrace
from windtunnel.studies.resilience.policies.policy import Policy

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
AWAY_PLACES = 8  # machines that may be away at once before the table of them grows


@dataclass(frozen=True, slots=True)
class Reactions:
    """A policy's reactions as tables over (cause, standbys are enough); times in ns."""

    phases: I64  # (causes, 2, phases)
    keeps_step: NDArray[np.bool_]  # (causes, 2)
    away_ns: I64  # (causes, 2)
    units: I64  # (causes,)
    rejoin: I64  # (phases,)
    swap: I64  # (phases,)


def tabulated(policy: Policy, trace: FailureTrace) -> Reactions:
    """Ask the policy about every cause once."""
    causes = trace.process.causes
    table = [[policy.react(cause, spare) for spare in (False, True)] for cause in causes]
    n = len(causes)
    return Reactions(
        phases=np.array([[_ns(reaction.phases) for reaction in row] for row in table], np.int64).reshape(n, 2, 6),
        keeps_step=np.array([[reaction.keeps_step for reaction in row] for row in table], bool).reshape(n, 2),
        away_ns=np.array([[round(reaction.away_s * 1e9) for reaction in row] for row in table], np.int64).reshape(n, 2),
        units=np.array([policy.units(cause) for cause in causes], np.int64),
        rejoin=np.array(_ns(policy.rejoin), np.int64),
        swap=np.array(_ns(policy.swap), np.int64),
    )


def _ns(phases: tuple[float, ...]) -> list[int]:
    return [round(seconds * 1e9) for seconds in phases]


def run_many(trace: FailureTrace, policy: Policy, saving: SaveTimes, step_s: float, standbys: int = 0) -> Outcome:
    """Every run of `trace` under `policy`."""
    state = _Runs(trace, policy, saving, round(step_s * 1e9), standbys)
    while state.go_on():
        pass
    return Outcome(state.book, _counted(trace, policy), trace.horizon_ns / 1e9, state.stops)


def _counted(trace: FailureTrace, policy: Policy) -> I64:
    n = len(trace.process.causes)
    events = (trace.time_ns < trace.horizon_ns) & (trace.cause != SLOW)
    if policy.evicts:
        events &= ~trace.repeat
    counts = np.zeros((trace.seeds, n), np.int64)
    for cause in range(n):
        counts[:, cause] = ((trace.cause == cause) & events).sum(axis=1)
    return counts


class _Runs:
    """The state of all runs between two events; `go_on` moves each run to its own next event."""

    def __init__(self, trace: FailureTrace, policy: Policy, saving: SaveTimes, step_ns: int, standbys: int) -> None:
        n = trace.seeds
        self.trace, self.policy, self.saving, self.step_ns, self.standbys = trace, policy, saving, step_ns, standbys
        self.table = tabulated(policy, trace)
        self.in_job = policy.away == "from the job"
        self.rows = np.arange(n)
        self.now = np.zeros(n, np.int64)
        self.at = np.zeros(n, np.int64)  # next event of the trace
        self.phases = np.zeros((n, 6), np.int64)  # what is left of a recovery
        self.y = np.zeros(n, np.int64)
        self.fresh = np.zeros(n)  # useful seconds since y = 0
        self.back_at = np.full((n, AWAY_PLACES), NEVER, np.int64)
        self.back_units = np.zeros((n, AWAY_PLACES), np.int64)
        self.slow_until = np.zeros(n, np.int64)
        self.evict_slow = np.zeros(n, bool)  # a change is due when the slow time ends
        self.book = np.zeros((n, len(PARTS)))
        self.stops, self.because = list[Episode](), ""  # of the first run
        self.slowed = 1.0 / (1.0 + trace.process.slow.slower)
        self.rates = np.array([1.0])
        notice_s = policy.slow_found_s
        self.found_ns = NEVER if notice_s is None else round(notice_s * 1e9)
        self.cycle = saving.interval_ns + saving.stall_ns

    def go_on(self) -> bool:
        """Each run to its next event; False once all are at the end."""
        event = self.trace.time_ns[self.rows, np.minimum(self.at, self.trace.time_ns.shape[1] - 1)]
        slow_end = np.where(self.slow_until > self.now, self.slow_until, NEVER)
        back = self.back_at.min(axis=1) if self.in_job else np.full(len(self.now), NEVER)
        then = np.minimum(np.minimum(event, back), np.minimum(slow_end, self.trace.horizon_ns))
        self._advance(then)
        live = then < self.trace.horizon_ns
        if not live.any():
            return False
        # Of what happens in one nanosecond, in this order.
        if self.in_job:
            self._back(live & (back == then))
        self._slow_ends(live & (slow_end == then))
        hit = live & (event == then)
        self.at[hit] += 1
        if hit.any():
            self._hit(hit)
        return True

    def _advance(self, then: I64) -> None:
        left = then - self.now
        if self.phases.any():
            for k in range(6):
                took = np.minimum(self.phases[:, k], left)
                if took[0]:
                    begin = int(then[0] - left[0])
                    self.stops.append(Episode(begin, begin + int(took[0]), PARTS[FIRST_PHASE + k], self.because))
                self.book[:, FIRST_PHASE + k] += took / 1e9
                self.phases[:, k] -= took
                left = left - took
        work, stalled = self._split(self.y)
        self.y = self.y + left
        work_then, stalled_then = self._split(self.y)
        worked = (work_then - work) / 1e9
        rate = self._rate()
        slow = np.where(self.slow_until > self.now, self.slowed, 1.0)
        useful = worked * rate * slow
        self.book[:, STALL] += (stalled_then - stalled) / 1e9
        self.book[:, PRODUCTIVE] += useful
        self.book[:, FEWER] += worked * (1.0 - rate)
        self.book[:, SLOW_HOSTS] += worked * rate * (1.0 - slow)
        self.fresh += useful
        self.now = then

    def _split(self, y: I64) -> tuple[I64, I64]:
        """Work and stall in the first y ns of running."""
        whole, rest = np.divmod(y, self.cycle)
        work = whole * self.saving.interval_ns + np.minimum(rest, self.saving.interval_ns)
        return work, y - work

    def _rate(self) -> F64 | float:
        if not self.in_job:
            return 1.0
        away = np.where(self.back_at != NEVER, self.back_units, 0).sum(axis=1)
        most = int(away.max())
        if most >= len(self.rates):
            self.rates = np.array([self.policy.rate(units) for units in range(most + 1)])
        rates: F64 = self.rates[away]
        return rates

    def _back(self, mask: NDArray[np.bool_]) -> None:
        returned = (self.back_at <= self.now[:, None]) & mask[:, None]
        self.back_at[returned] = NEVER
        self.back_units[returned] = 0
        self._pause(mask, self.table.rejoin, "machines return")

    def _slow_ends(self, mask: NDArray[np.bool_]) -> None:
        due = mask & self.evict_slow
        self.evict_slow &= ~mask
        self._pause(due, self.table.swap, "slow host")

    def _pause(self, due: NDArray[np.bool_], phases: I64, because: str) -> None:
        """A planned change; of a job that is down anyway it is a part."""
        pause = due & ~self.phases.any(axis=1)
        self.phases[pause] = phases
        if pause[0]:
            self.because = because

    def _hit(self, hit: NDArray[np.bool_]) -> None:
        at = np.minimum(self.at - 1, self.trace.time_ns.shape[1] - 1)
        cause = self.trace.cause[self.rows, at]
        slow = hit & (cause == SLOW)
        if slow.any():
            length = self.trace.slow_ns[self.rows, at]
            until = self.now + np.minimum(length, self.found_ns)
            later = slow & (until > self.slow_until)
            self.slow_until = np.where(later, until, self.slow_until)
            self.evict_slow = np.where(later, length > self.found_ns, self.evict_slow)
        failed = hit & (cause != SLOW)
        if self.policy.evicts:
            failed &= ~self.trace.repeat[self.rows, at]
        if failed.any():
            self._fail(np.flatnonzero(failed), cause)

    def _fail(self, rows: I64, cause: NDArray[np.int16]) -> None:
        kind = cause[rows].astype(np.int64)
        units = self.table.units[kind]
        spare = np.zeros(len(rows), np.int64)
        if self.policy.away == "from standbys":
            back = self.back_at[rows] <= self.now[rows, None]
            self.back_at[rows] = np.where(back, NEVER, self.back_at[rows])
            self.back_units[rows] = np.where(back, 0, self.back_units[rows])
            spare = (self.standbys - self.back_units[rows].sum(axis=1) >= units).astype(np.int64)
        keeps = np.asarray(self.table.keeps_step[kind, spare])
        away = np.asarray(self.table.away_ns[kind, spare])
        down = self.phases[rows].any(axis=1)
        self._lose(rows, keeps, np.asarray(down))
        # Of a recovery that is struck again, each phase takes the longer of what was left and what is new.
        self.phases[rows] = np.maximum(self.phases[rows], self.table.phases[kind, spare])
        if rows[0] == 0:
            self.because = self.trace.process.causes[kind[0]].name
        takes = (away > 0) & (units > 0)
        if self.policy.away == "from standbys":
            takes &= spare == 1
        elif self.policy.away == "replaced":
            takes[:] = False
        self._send_away(rows[takes], units[takes], self.now[rows[takes]] + away[takes])

    def _lose(self, rows: I64, keeps: NDArray[np.bool_], down: NDArray[np.bool_]) -> None:
        saving, y = self.saving, self.y[rows]
        work, _ = self._split(y)
        whole, rest = np.divmod(y, self.cycle)
        since = np.minimum(rest, saving.interval_ns)  # work since the last checkpoint was begun
        step = np.where(down, 0, np.minimum(self.step_ns // 2, since))
        usable = np.maximum((y - saving.persist_ns) // self.cycle, 0)
        lost = np.where(keeps, step, work - usable * saving.interval_ns)
        share = np.divide(lost, work, out=np.zeros(len(rows)), where=work > 0)
        useful = self.fresh[rows] * share
        self.book[rows, PRODUCTIVE] -= useful
        self.book[rows, LOST] += useful
        again = np.where(step > 0, whole * self.cycle + since - step, y)
        self.y[rows] = np.where(keeps, again, 0)
        self.fresh[rows] = np.where(keeps, self.fresh[rows] - useful, 0.0)

    def _send_away(self, rows: I64, units: I64, until: I64) -> None:
        if not len(rows):
            return
        free = self.back_at[rows] == NEVER
        if not free.any(axis=1).all():
            n = len(self.now)
            self.back_at = np.concatenate([self.back_at, np.full((n, self.back_at.shape[1]), NEVER, np.int64)], axis=1)
            self.back_units = np.concatenate([self.back_units, np.zeros_like(self.back_units)], axis=1)
            free = self.back_at[rows] == NEVER
        place = free.argmax(axis=1)
        self.back_at[rows, place] = until
        self.back_units[rows, place] = units


# Parts of the wall time, in the order in which reports show them. The first is what counts.
PARTS = (
    "productive",
    "checkpoint stall",
    "lost work",
    "detect",
    "localise",
    "schedule",
    "groups",
    "warm-up",
    "load",
    "fewer machines",
    "slow hosts",
)
PRODUCTIVE, STALL, LOST, FIRST_PHASE, FEWER, SLOW_HOSTS = 0, 1, 2, 3, 9, 10


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """When the job saves, in integer nanoseconds of its running time."""

    interval_ns: int  # of work between two checkpoints
    stall_ns: int
    persist_ns: int  # after the stall, until a checkpoint can be read

    def __post_init__(self) -> None:
        assert self.interval_ns > 0
        assert self.stall_ns >= 0
        assert self.persist_ns >= 0


@dataclass(frozen=True, slots=True)
class Episode:
    """A stretch of one run spent on one part of the wall time."""

    begin_ns: int
    end_ns: int
    part: str
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """All runs under one policy. `seconds` has the shape (seeds, PARTS); each row sums to the wall time."""

    seconds: NDArray[np.float64]
    interruptions: NDArray[np.int64]  # (seeds, causes)
    wall_s: float
    stops: Sequence[Episode]  # recoveries and pauses of the first run

    @property
    def ettr(self) -> NDArray[np.float64]:
        """Share of the wall time that was productive, one for each run."""
        return self.seconds[:, PRODUCTIVE] / self.wall_s
