"""What was measured of a deployment, held against what is predicted of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from windtunnel.questions.asked.serve.parts import ClosedLoad, TraceTimes
from windtunnel.questions.asked.serve.study import Serve
from windtunnel.questions.header import Verdict, verdict_of
from windtunnel.studies.serving.result import ServingResult
from windtunnel.studies.serving.workload.benchmark import Benchmark
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
        timed = self.of != OUTPUT
        measured, predicted, p5, p95 = (
            format_time(value) if timed else f"{value:,.0f} tokens/s" if value >= 100 else f"{value:.3g} tokens/s"
            for value in (self.measured, self.predicted, self.p5, self.p95)
        )
        off = self.measured / self.predicted - 1.0
        amount = f"{format_percent(abs(off), 0)} {'more' if off > 0 else 'less'} than the {predicted} predicted"
        return f"{NAMES[self.of]} of {measured} is {self.verdict}: {amount} ({p5} to {p95})."


TPOT, TTFT, OUTPUT = "tpot_s.mean", "ttft_s.mean", "output_tokens_per_s"
NAMES = {TPOT: "TPOT", TTFT: "TTFT", OUTPUT: "Output"}


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured. `closed`: requests waited for answers, or were there at once; output is the deployment's."""

    tpot_s: float | None
    ttft_s: float | None
    output_tokens_per_s: float | None
    closed: bool
    benchmarked: bool


def measured_of(question: Serve, bench: Benchmark | None) -> Measured:
    """Figures of the question itself, else of the file that it names."""
    closed = isinstance(question.load, ClosedLoad)
    if bench is None:
        return Measured(question.measured, None, question.measured_output, closed, benchmarked=False)
    at_once = bench.rate_per_s == math.inf
    closed = closed or (isinstance(question.load, TraceTimes) and (bench.concurrency is not None or at_once))
    tpot = question.measured or bench.tpot_s
    output = question.measured_output or bench.output_tokens_per_s
    return Measured(tpot, bench.ttft_s, output, closed, benchmarked=True)


def comparisons(measured: Measured, result: ServingResult) -> Iterator[Comparison]:
    """Each figure that was measured; none where nothing is predicted. The band of steps is that of both."""
    if not result.feasible or result.tpot is None or result.ttft is None:
        return
    width = math.exp(result.band)
    if (tpot := measured.tpot_s) is not None:
        low, high = result.tpot.mean / width, result.tpot.mean * width
        yield Comparison(TPOT, tpot, result.tpot.mean, low, high, verdict_of(tpot, low, high))
    if (ttft := measured.ttft_s) is not None and (band := result.ttft_band_s) is not None:
        yield Comparison(TTFT, ttft, result.ttft.mean, *band, verdict_of(ttft, *band))
    output = measured.output_tokens_per_s
    if output is not None and not _is_what_arrives(measured, result):
        low, high = result.output_tokens_per_s / width, result.output_tokens_per_s * width
        yield Comparison(
            OUTPUT, output, result.output_tokens_per_s, low, high, verdict_of(1 / output, 1 / high, 1 / low)
        )


def why_not_compared(measured: Measured, result: ServingResult) -> Iterator[str]:
    """Why there is nothing to hold what was measured against."""
    if not result.feasible or result.tpot is None:
        if measured.tpot_s is not None or measured.output_tokens_per_s is not None:
            yield "what was measured is held against nothing: no time per output token is predicted of this deployment"
    elif measured.output_tokens_per_s is not None and _is_what_arrives(measured, result) and not measured.benchmarked:
        yield (
            f"--measured-output is held against nothing: requests that come by themselves ask for"
            f" {result.output_tokens_per_s:,.0f} tokens/s, and all are kept up with; give --measured, or --concurrency"
        )


def _is_what_arrives(measured: Measured, result: ServingResult) -> bool:
    """Whether output is what requests ask for, and says nothing of the deployment."""
    return not measured.closed and result.regime != "over"
