"""Points that were measured while others slowed the device, and are measured again once they do not.

A reference kernel is timed every few seconds. Nothing else shows that somebody shares a core or that a clock fell for a
while: a point counts only where the kernel was as quick as ever both before and after it. On a device that stays slow
nothing is measured twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

SLOW = 0.10  # of the quickest ever, by which the reference is longer in a slow spell

Point = TypeVar("Point")


@dataclass(slots=True)
class SlowSpells(Generic[Point]):
    """What was measured since the reference was last timed, and what is to be measured again."""

    quickest_s: float = float("inf")
    calm: bool = True  # at the last look
    waiting: deque[Point] = field(default_factory=deque)
    _since: list[Point] = field(default_factory=list)

    @classmethod
    def after(cls, reference_s: Iterable[float]) -> SlowSpells[Point]:
        """A run that goes on where earlier ones timed the reference like this."""
        return cls(min(reference_s, default=float("inf")))

    def look(self, reference_s: float) -> None:
        """The reference took so long just now."""
        self.quickest_s = min(self.quickest_s, reference_s)
        was_calm, self.calm = self.calm, reference_s <= (1.0 + SLOW) * self.quickest_s
        if not (was_calm and self.calm):
            self.waiting.extend(self._since)
        self._since.clear()

    def measured(self, point: Point) -> None:
        """A point was measured after the last look."""
        self._since.append(point)

    def again(self) -> Point | None:
        """One to measure again, while the device is as quick as ever."""
        return self.waiting.popleft() if self.calm and self.waiting else None
