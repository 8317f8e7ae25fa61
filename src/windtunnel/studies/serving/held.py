"""What was measured of a deployment, held against what is predicted of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from windtunnel.questions.asked.serve.study import Serve
from windtunnel.questions.header import Verdict, verdict_of
from windtunnel.studies.serving.result import ServingResult
from windtunnel.units import format_percent, format_time


@dataclass(frozen=True, slots=True)
class Held:
    """One figure."""

    of: str  # the answer's figure that it is held against
    measured: float
    predicted: float
    p5: float
    p95: float
    verdict: Verdict

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        timed = self.of == TPOT
        name = "TPOT" if timed else "Output"
        measured, predicted, p5, p95 = (
            format_time(value) if timed else f"{value:,.0f} tokens/s"
            for value in (self.measured, self.predicted, self.p5, self.p95)
        )
        off = self.measured / self.predicted - 1.0
        amount = f"{format_percent(abs(off), 0)} {'more' if off > 0 else 'less'} than the {predicted} predicted"
        return f"{name} of {measured} is {self.verdict}: {amount} ({p5} to {p95})."


TPOT, OUTPUT = "tpot_s.mean", "output_tokens_per_s"


def comparisons(question: Serve, result: ServingResult) -> Iterator[Held]:
    """Each figure that was measured; none where nothing is predicted. The band of steps is that of both."""
    if not result.feasible or result.tpot is None:
        return
    width = math.exp(result.band)
    tpot, output = question.measured, question.measured_output
    if tpot is not None:
        low, high = result.tpot.mean / width, result.tpot.mean * width
        yield Held(TPOT, tpot, result.tpot.mean, low, high, verdict_of(tpot, low, high))
    if output is not None:
        low, high = result.output_tokens_per_s / width, result.output_tokens_per_s * width
        yield Held(OUTPUT, output, result.output_tokens_per_s, low, high, verdict_of(1 / output, 1 / high, 1 / low))


def unheld(question: Serve, figures: tuple[Held, ...]) -> Iterator[str]:
    """Why there is nothing to hold what was measured against."""
    if not figures and (question.measured is not None or question.measured_output is not None):
        yield "what was measured is held against nothing: no time per output token is predicted of this deployment"
