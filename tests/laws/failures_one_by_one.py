"""One run as an event loop: checkpoints, phases, returns and failures, one after the other.

The oracle of `resilience/run/many.py`: it keeps a list of the checkpoints that were written where that has a formula,
and takes one event where that takes a closed form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from windtunnel.physics.engine.machine import At, Cancel, run
from windtunnel.studies.resilience.failures.draw import NEVER, SLOW, FailureTrace
from windtunnel.studies.resilience.policies.policy import Phases, Policy
from windtunnel.studies.resilience.run.many import (
    FEWER,
    FIRST_PHASE,
    LOST,
    PARTS,
    PRODUCTIVE,
    SLOW_HOSTS,
    STALL,
    Episode,
    SaveTimes,
)

BACK, SLOW_END, TICK, FAIL, END = range(5)  # priorities of what happens in one nanosecond
Kind = Literal["back", "slow end", "phase", "stall begins", "stall ends", "fail", "end"]


@dataclass(frozen=True, slots=True)
class Happens:
    """An event: what, and which one."""

    kind: Kind
    number: int = 0


class Machine:
    """State of one run; `handle` takes an event and says what is to come."""

    def __init__(self, trace: FailureTrace, seed: int, policy: Policy, saving: SaveTimes, step_ns: int, standbys: int):
        self.trace, self.seed, self.policy, self.saving = trace, seed, policy, saving
        self.step_ns, self.standbys = step_ns, standbys
        self.causes = trace.process.causes
        self.book = [0.0] * len(PARTS)
        self.episodes: list[Episode] = []
        self.since, self.because = 0, ""
        self.doing: int = PRODUCTIVE  # the part of the wall time that runs now
        self.phases: list[tuple[int, int]] = []  # (part, ns) that are still to come, the first under way
        self.saved: list[tuple[int, int]] = [(-saving.persist_ns, 0)]  # (running ns, work ns) of complete checkpoints
        self.running_ns = self.work_ns = self.since_save_ns = self.stalled_ns = 0
        self.fresh = 0.0
        self.away: dict[int, int] = {}  # number -> units
        self.returns: dict[int, int] = {}  # number -> when, of standbys
        self.slow_until, self.evict_slow = 0, False

    def start(self) -> Iterator[At[Happens]]:
        """The failures that will come, the end, and the first checkpoint."""
        for number, time_ns in enumerate(self.trace.time_ns[self.seed].tolist()):
            if time_ns < self.trace.horizon_ns:
                yield At(time_ns, Happens("fail", number), FAIL)
        yield At(self.trace.horizon_ns, Happens("end"), END)
        yield At(self.saving.interval_ns, Happens("stall begins"), TICK, "tick")

    def handle(self, now: int, event: Happens) -> Iterable[At[Happens] | Cancel]:
        """One event."""
        self._spend(now)
        match event.kind:
            case "fail":
                return self._fail(now, event.number)
            case "back":
                del self.away[event.number]
                return self._pause(now, "machines return", self.policy.rejoin)
            case "slow end":
                due, self.evict_slow = self.evict_slow, False
                return self._pause(now, "slow host", self.policy.swap) if due else ()
            case "phase":
                self.phases.pop(0)
                return self._next(now)
            case "stall begins":
                self.doing = STALL
                return [At(now + self.saving.stall_ns, Happens("stall ends"), TICK, "tick")]
            case "stall ends":
                self.doing, self.stalled_ns, self.since_save_ns = PRODUCTIVE, 0, 0
                self.saved.append((self.running_ns, self.work_ns))
                return self._next(now)
            case "end":
                return [Cancel("tick")]

    def _spend(self, now: int) -> None:
        """Book the time since the last event."""
        ns = now - self.since
        if ns:
            self.episodes.append(Episode(self.since, now, PARTS[self.doing], self.because))
        if self.doing == PRODUCTIVE:
            rate = self.policy.rate(sum(self.away.values())) if self.policy.away == "from the job" else 1.0
            speed = 1.0 / (1.0 + self.trace.process.slow.slower) if self.slow_until > self.since else 1.0
            seconds = ns / 1e9
            useful = seconds * rate * speed
            self.book[PRODUCTIVE] += useful
            self.book[FEWER] += seconds * (1.0 - rate)
            self.book[SLOW_HOSTS] += seconds * rate * (1.0 - speed)
            self.fresh += useful
            self.work_ns += ns
            self.since_save_ns += ns
        else:
            self.book[self.doing] += ns / 1e9
            if self.phases:
                part, left = self.phases[0]
                self.phases[0] = (part, left - ns)
        if self.doing == STALL:
            self.stalled_ns += ns
        if self.doing in (PRODUCTIVE, STALL):
            self.running_ns += ns
        self.since = now

    def _next(self, now: int) -> list[At[Happens] | Cancel]:
        """The next phase of a recovery, or work."""
        if self.phases:
            part, ns = self.phases[0]
            self.doing = part
            return [At(now + ns, Happens("phase"), TICK, "tick")]
        self.because = ""
        left = self.saving.interval_ns - self.since_save_ns
        if left > 0:
            self.doing = PRODUCTIVE
            return [At(now + left, Happens("stall begins"), TICK, "tick")]
        self.doing = STALL
        return [At(now + self.saving.stall_ns - self.stalled_ns, Happens("stall ends"), TICK, "tick")]

    def _recover(self, now: int, phases: Phases) -> list[At[Happens] | Cancel]:
        left = dict(self.phases)  # of a recovery that is struck again: each phase takes the longer of both
        parts = [(FIRST_PHASE + at, round(seconds * 1e9)) for at, seconds in enumerate(phases)]
        parts = [(part, max(ns, left.get(part, 0))) for part, ns in parts]
        self.phases = [(part, ns) for part, ns in parts if ns > 0]
        return self._next(now)

    def _pause(self, now: int, because: str, phases: Phases) -> list[At[Happens] | Cancel]:
        """A planned change; of a job that is down already it is a part."""
        if self.doing not in (PRODUCTIVE, STALL):
            return []
        self.because = because
        return self._recover(now, phases)

    def _fail(self, now: int, number: int) -> Iterable[At[Happens] | Cancel]:
        kind = int(self.trace.cause[self.seed, number])
        if kind == SLOW:
            return self._slow(now, int(self.trace.slow_ns[self.seed, number]))
        if self.policy.evicts and bool(self.trace.repeat[self.seed, number]):
            return ()
        cause = self.causes[kind]
        units, pool = self.policy.units(cause), self.policy.away == "from standbys"
        self.returns = {key: at for key, at in self.returns.items() if at > now}
        away = sum(self.away[key] for key in self.returns) if pool else 0
        spare = pool and self.standbys - away >= units
        reaction = self.policy.react(cause, spare)
        self._lose(reaction.keeps_step, down=self.doing not in (PRODUCTIVE, STALL))
        self.because = cause.name
        actions = self._recover(now, reaction.phases)
        back_ns = now + round(reaction.away_s * 1e9)
        if units and back_ns > now and spare:
            self.away[number], self.returns[number] = units, back_ns
        if units and back_ns > now and self.policy.away == "from the job":
            self.away[number] = units
            actions.append(At(back_ns, Happens("back", number), BACK))
        return actions

    def _slow(self, now: int, length_ns: int) -> Iterable[At[Happens] | Cancel]:
        found = self.policy.slow_found_s
        found_ns = NEVER if found is None else round(found * 1e9)
        until = now + min(length_ns, found_ns)
        if until <= self.slow_until:
            return ()
        self.slow_until, self.evict_slow = until, length_ns > found_ns
        return [At(until, Happens("slow end"), SLOW_END, "slow")]

    def _lose(self, keeps_step: bool, down: bool) -> None:
        if keeps_step:
            lost = 0 if down else min(self.step_ns // 2, self.since_save_ns)
        else:
            usable = max(work for running, work in self.saved if running + self.saving.persist_ns <= self.running_ns)
            lost = self.work_ns - usable
        useful = self.fresh * (lost / self.work_ns) if self.work_ns else 0.0
        self.book[PRODUCTIVE] -= useful
        self.book[LOST] += useful
        if not keeps_step:
            self.saved = [(-self.saving.persist_ns, 0)]
            self.running_ns = self.work_ns = self.since_save_ns = self.stalled_ns = 0
            self.fresh = 0.0
        elif lost:
            self.fresh -= useful
            self.running_ns -= lost + self.stalled_ns  # a stall that was cut begins again
            self.work_ns -= lost
            self.since_save_ns -= lost
            self.stalled_ns = 0


def run_one(
    trace: FailureTrace, seed: int, policy: Policy, saving: SaveTimes, step_s: float, standbys: int = 0
) -> tuple[list[float], list[Episode]]:
    """Seconds by PARTS of run `seed`, and its timeline."""
    machine = Machine(trace, seed, policy, saving, round(step_s * 1e9), standbys)
    run(machine.handle, machine.start(), until_ns=trace.horizon_ns)
    return machine.book, machine.episodes
