"""A step under any of its disturbances, told apart by their numbers; each set is put together and replayed once.

How a step is put together under disturbances is what plans and recorded programs do differently: `under`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from windtunnel.physics.engine import Timeline
from windtunnel.physics.step.disturbances.parse import Slow
from windtunnel.physics.step.step import Step


class HasStep(Protocol):
    """A step with what is known of how it was made."""

    @property
    def step(self) -> Step:
        """The step."""
        ...


Made = TypeVar("Made", bound=HasStep)


@dataclass(frozen=True, eq=False)
class Replayed(Generic[Made]):
    """A step, and when its ops ran."""

    step: Made
    timeline: Timeline


@dataclass(frozen=True, eq=False)
class DisturbedStep(Generic[Made]):
    """A step, its disturbances, and what was worked out so far under some of them.

    What is random has no effect here: only samples show it.
    """

    parts: tuple[Slow, ...]
    under: Callable[[tuple[Slow, ...]], Made]
    replays: dict[frozenset[int], Replayed[Made]] = field(default_factory=dict)
    makespans: dict[frozenset[int], int] = field(default_factory=dict)

    @property
    def everything(self) -> frozenset[int]:
        """The numbers of all disturbances."""
        return frozenset(range(len(self.parts)))

    def replayed(self, numbers: Iterable[int]) -> Replayed[Made]:
        """The step under these, kept."""
        key = self._steady(numbers)
        if key not in self.replays:
            self.replays[key] = replayed(self.under(self.chosen(key)))
            self.makespans.setdefault(key, self.replays[key].timeline.makespan_ns)
        return self.replays[key]

    def makespan(self, numbers: Iterable[int]) -> int:
        """Its length in nanoseconds. Blame asks for dozens of sets, so their graphs are not kept."""
        key = self._steady(numbers)
        if key not in self.makespans:
            self.makespans[key] = self.under(self.chosen(key)).step.replay().makespan_ns
        return self.makespans[key]

    def chosen(self, numbers: Iterable[int]) -> tuple[Slow, ...]:
        """Those of these numbers."""
        return tuple(self.parts[number] for number in sorted(numbers))

    def _steady(self, numbers: Iterable[int]) -> frozenset[int]:
        return frozenset(number for number in numbers if not self.parts[number].random)


def replayed(assembly: Made) -> Replayed[Made]:
    """Replay what was put together."""
    return Replayed(assembly, assembly.step.replay())
