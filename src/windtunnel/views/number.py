"""A figure as it is shown: SI, with its unit, its band and what it rests on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from windtunnel.errors import SpecError


@dataclass(frozen=True, slots=True)
class Number:
    """A figure.

    `unit`: s, B, B/s, FLOP/s, share (of 1), change (a share with its sign), count, $, x (times), "" or the words that
    follow the number, such as tokens/s.
    """

    value: float
    unit: str = ""
    p5: float | None = None
    p95: float | None = None
    source: str = ""  # measured, interpolated, fitted, roofline, counted

    def __post_init__(self) -> None:
        if math.isnan(self.value):
            raise SpecError("number", self.value, "leave a figure out that has no meaning")
        if self.p5 is not None and self.p95 is not None and not self.p5 <= self.p95:
            raise SpecError("band", f"{self.p5} to {self.p95}", "p5 is not above p95")
