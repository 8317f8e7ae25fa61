"""What was measured of a deployment, held against what is predicted of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from windtunnel.questions.asked.serve.parts import ClosedLoad
from windtunnel.questions.asked.serve.study import Serve
from windtunnel.questions.header import Verdict, verdict_of
from windtunnel.studies.serving.result import ServingResult
from windtunnel.units import format_percent, format_time


@dataclass(frozen=True, slots=True)
class Comparison:
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
            format_time(value) if timed else f"{value:,.0f} tokens/s" if value >= 100 else f"{value:.3g} tokens/s"
            for value in (self.measured, self.predicted, self.p5, self.p95)
        )
        off = self.measured / self.predicted - 1.0
        amount = f"{format_percent(abs(off), 0)} {'more' if off > 0 else 'less'} than the {predicted} predicted"
        return f"{name} of {measured} is {self.verdict}: {amount} ({p5} to {p95})."


TPOT, OUTPUT = "tpot_s.mean", "output_tokens_per_s"


def comparisons(question: Serve, result: ServingResult) -> Iterator[Comparison]:
    """Each figure that was measured; none where nothing is predicted. The band of steps is that of both."""
    if not result.feasible or result.tpot is None:
        return
    width = math.exp(result.band)
    tpot, output = question.measured, question.measured_output
    if tpot is not None:
        low, high = result.tpot.mean / width, result.tpot.mean * width
        yield Comparison(TPOT, tpot, result.tpot.mean, low, high, verdict_of(tpot, low, high))
    if output is not None and not _is_what_arrives(question, result):
        low, high = result.output_tokens_per_s / width, result.output_tokens_per_s * width
        yield Comparison(
            OUTPUT, output, result.output_tokens_per_s, low, high, verdict_of(1 / output, 1 / high, 1 / low)
        )


def why_not_compared(question: Serve, result: ServingResult) -> Iterator[str]:
    """Why there is nothing to hold what was measured against."""
    if not result.feasible or result.tpot is None:
        if question.measured is not None or question.measured_output is not None:
            yield "what was measured is held against nothing: no time per output token is predicted of this deployment"
    elif question.measured_output is not None and _is_what_arrives(question, result):
        yield (
            f"--measured-output is held against nothing: requests that come by themselves ask for"
            f" {result.output_tokens_per_s:,.0f} tokens/s, and all are kept up with; give --measured, or --concurrency"
        )


def _is_what_arrives(question: Serve, result: ServingResult) -> bool:
    """Whether output is what requests ask for, and says nothing of the deployment."""
    return not isinstance(question.load, ClosedLoad) and result.regime != "over"
