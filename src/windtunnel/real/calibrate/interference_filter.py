"""Points that were measured while the device was slower or quicker than usual, and are measured again once it is not.

A reference kernel is timed every few seconds. Nothing else shows that somebody shares a core, leaves one that is
usually shared, or that a clock fell for a while: a point counts where the kernel took what it usually takes both before
and after it. Usual is what most of the time is like, the median, not the quickest ever: programs run in the former.
Where most points are not as usual, spells are shorter than what lies between two looks, and nothing is measured again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, TypeVar

UNUSUAL = 0.10  # of the usual, by which the reference is off in an unusual spell

Point = TypeVar("Point")


def is_usual(seconds: float, usual_s: float) -> bool:
    """Whether something took about what it usually takes."""
    return abs(seconds - usual_s) <= UNUSUAL * usual_s


@dataclass(slots=True)
class UnusualSpells(Generic[Point]):
    """What was measured between which looks at the reference, and what of it is to be measured again."""

    looks: list[float] = field(default_factory=list)  # seconds of the reference
    _between: list[tuple[Point, float, float]] = field(default_factory=list)  # points with the looks around them
    _since: list[Point] = field(default_factory=list)

    @classmethod
    def from_references(cls, reference_s: Iterable[float]) -> UnusualSpells[Point]:
        """A run that goes on where earlier ones timed the reference like this."""
        return cls(list(reference_s))

    def look(self, reference_s: float) -> None:
        """The reference took so long just now."""
        self._between += [(point, self.looks[-1], reference_s) for point in self._since]
        self._since.clear()
        self.looks.append(reference_s)

    def measured(self, point: Point) -> None:
        """A point was measured after the last look."""
        self._since.append(point)

    def waiting(self) -> list[Point]:
        """Those that were measured in an unusual spell, as far as is known by now."""
        return [self._between[at][0] for at in self._unusual()]

    def next_to_repeat(self) -> Point | None:
        """One to measure again, while the device is as usual and most points were measured so."""
        if not self.looks or not is_usual(self.looks[-1], median(self.looks)):
            return None
        unusual = self._unusual()
        return self._between.pop(unusual[0])[0] if 0 < len(unusual) <= len(self._between) / 2 else None

    def _unusual(self) -> list[int]:
        usual_s = median(self.looks) if self.looks else 0.0
        return [
            at
            for at, (_, before, after) in enumerate(self._between)
            if not (is_usual(before, usual_s) and is_usual(after, usual_s))
        ]
