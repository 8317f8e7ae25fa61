"""The real rank's step as seen from its communications: where it begins them, where it waits, what it computes between.

Marks come in the order in which the host makes them. The seconds between two marks are computing, less what was spent
blocked in a wait; a wait is blocked from when it is entered until the communication is done. Waits inside PyTorch's C++
(DDP's reducer waits for futures) leave no mark: what nobody was seen to wait for is waited for before the optimizer, or
at the step's end where there is none. How long *that* blocked is told by the processor time of the thread, which stands
still meanwhile: computing = processor time x (wall time / processor time where nothing blocked).

Pure: times are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.real.emulate.peers.host_program import Event, HostProgram, resembles
from windtunnel.studies.programs.communication import Communication

TRIMMED = 0.2  # share of the samples left out at either end
NO_CPU = -1.0


class Came(NamedTuple):
    """When the host came to a communication that it arrives at later."""

    at: float
    cpu: float = NO_CPU


class Mark(NamedTuple):
    """Something that the host did."""

    what: str  # begin | wait | optimizer | end
    call: int
    entered: float  # when computing ended: a wait begins, or a communication is come to
    left: float  # when computing goes on; a communication is arrived at
    cpu: float  # processor seconds of the thread when it entered; `NO_CPU` where not known
    steps_ago: int = 0
    cpu_left: float = NO_CPU  # when it left


@dataclass(frozen=True)
class ObservedStep:
    """One step of the real rank."""

    calls: tuple[Communication, ...]
    events: tuple[Event, ...]
    seconds: tuple[float, ...]  # before each event, and after the last
    begin_s: float
    ended: float
    blocked: float  # seconds waited for communications
    optimizer: float = 0.0  # of the computing, from the optimizer on
    spans: tuple[tuple[float, float], ...] = ()  # of each call: when the host began it, when it was done
    waits: tuple[tuple[int, float, float], ...] = ()  # call, from when to when the host stood

    def like(self, other: ObservedStep) -> bool:
        """Whether it is the same step of the same program."""
        if len(self.calls) != len(other.calls) or self.events != other.events:
            return False
        return all(resembles(call, its) for call, its in zip(self.calls, other.calls, strict=True))


@dataclass(slots=True)
class Observer:
    """Marks of the step that is going on."""

    begin_s: float
    cpu_begun: float = NO_CPU
    calls: list[Communication] = field(default_factory=list)
    dues: list[float] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    places: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)  # call -> (step, place)
    carried: set[int] = field(default_factory=set)  # places that the next step waits for
    step: int = 0

    def begin(self, call: Communication, now: float, cpu: float = NO_CPU, came: Came | None = None) -> int:
        """The host arrives at a communication. Its place in the step.

        `came`: when it came to it, and its processor time then, where something that is no computing lay between.
        """
        place = len(self.calls)
        self.calls.append(call)
        self.dues.append(now)
        came = came if came is not None else Came(now, cpu)
        self.marks.append(Mark("begin", place, came.at, now, came.cpu, 0, cpu))
        self.places[identity(call)] = (self.step, place)
        return place

    def due(self, place: int, at: float) -> None:
        """When a communication of this step is done."""
        self.dues[place] = at

    def on_wait(self, call: Communication, entered: float, now: float, cpu: float = NO_CPU) -> None:
        """The host waited for one; a second wait for the same is none."""
        place = self.places.pop(identity(call), None)
        if place is not None:
            if place[0] < self.step:
                self.carried.add(place[1])
            self.marks.append(Mark("wait", place[1], entered, now, NO_CPU, self.step - place[0], cpu))

    def optimizer(self, now: float, cpu: float = NO_CPU) -> None:
        """The optimizer begins."""
        self.marks.append(Mark("optimizer", -1, now, now, cpu, 0, cpu))

    def end(self, now: float, cpu: float = NO_CPU) -> ObservedStep:
        """The step ends, and the next begins."""
        marks = [*self.marks, Mark("end", -1, now, now, cpu, 0, cpu)]
        seen = {mark.call for mark in marks if mark.what == "wait" and not mark.steps_ago}
        hidden = [place for place in range(len(self.calls)) if place not in seen and place not in self.carried]
        gate = max((at for at, mark in enumerate(marks) if mark.what == "optimizer"), default=len(marks) - 1)
        events: list[Event] = []
        seconds: list[float] = []
        so_far = optimizer = blocked = 0.0
        before = Mark("end", -1, self.begin_s, self.begin_s, self.cpu_begun, 0, self.cpu_begun)
        ratio = self._wall_per_cpu()
        for at, mark in enumerate(marks):
            part = mark.entered - before.left
            blocked += mark.left - mark.entered if mark.what == "wait" else 0.0
            if at == gate and hidden:
                part, stopped = self._without_blocking(before, mark, [self.dues[place] for place in hidden], ratio)
                blocked += stopped
            so_far += part
            optimizer += part if at > gate else 0.0
            if at == gate:
                for place in hidden:
                    events.append(Event(True, place))
                    seconds.append(so_far)
                    so_far = 0.0
            if mark.what in ("begin", "wait"):
                events.append(Event(mark.what == "wait", mark.call, mark.steps_ago))
                seconds.append(so_far)
                so_far = 0.0
            before = mark
        stood = [(mark.call, mark.entered, mark.left) for mark in marks if mark.what == "wait" and not mark.steps_ago]
        begins = [mark.left for mark in marks if mark.what == "begin"]
        observed_step = ObservedStep(
            tuple(self.calls), tuple(events), (*seconds, so_far), self.begin_s, now, blocked, optimizer,
            tuple(zip(begins, self.dues, strict=True)), tuple(stood),
        )  # fmt: skip
        self._next(now, cpu)
        return observed_step

    def _without_blocking(self, before: Mark, mark: Mark, dues: Sequence[float], ratio: float) -> tuple[float, float]:
        """(computing, blocked) of a stretch at whose end the host may have stood waiting."""
        wall = mark.entered - before.left
        most = min(max(0.0, max(dues) - before.left), wall)
        if most == 0.0 or NO_CPU in (before.cpu_left, mark.cpu):
            return wall, 0.0
        computed = min(max((mark.cpu - before.cpu_left) * ratio, wall - most), wall)
        return computed, wall - computed

    def _wall_per_cpu(self) -> float:
        """Of stretches from one mark to the next begin, in which nothing waits."""
        wall = cpu = 0.0
        first = Mark("end", -1, self.begin_s, self.begin_s, self.cpu_begun, 0, self.cpu_begun)
        for before, mark in pairwise((first, *self.marks)):
            if mark.what == "begin" and NO_CPU not in (before.cpu_left, mark.cpu):
                wall += mark.entered - before.left
                cpu += mark.cpu - before.cpu_left
        return wall / cpu if cpu > 0.0 and wall > 0.0 else 1.0

    def _next(self, now: float, cpu: float) -> None:
        self.begin_s, self.cpu_begun = now, cpu
        self.calls, self.dues, self.marks = [], [], []
        self.step += 1
        for key in [key for key, (step, _) in self.places.items() if step < self.step - 1]:
            del self.places[key]


def host_program(rank: int, steps: Sequence[ObservedStep], *, samples: bool) -> HostProgram:
    """The program of steps that are alike: every step a sample, or one sample that is typical of all."""
    rows = np.array([step.seconds for step in steps])
    return HostProgram(rank, steps[-1].calls, steps[-1].events, rows if samples else typical(rows)[np.newaxis])


def typical(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of each column without its fastest and slowest rows, scaled to the median of their sums.

    Parts that vary against each other add up to less than their medians' sum, or to more; the step is what counts.
    """
    ordered = np.sort(rows, axis=0)
    out = int(len(rows) * TRIMMED)
    mean: NDArray[np.float64] = ordered[out : len(rows) - out].mean(axis=0)
    total = float(mean.sum())
    return mean * (float(np.median(rows.sum(axis=1))) / total) if total > 0.0 else mean


def largest_move(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    """How far arrivals moved, at most, as a share of the step: both are seconds from the step's begin."""
    if before.shape != after.shape or not len(after):
        return float("inf")
    return float(np.abs(after - before).max() / max(float(after.max()), 1e-12))


def identity(call: Communication) -> tuple[object, ...]:
    """Tells the communications of a rank apart."""
    return (call.group, call.kind, call.peer, call.tag, call.sequence)
