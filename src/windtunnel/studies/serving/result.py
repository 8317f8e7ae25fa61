"""What a serving run says: latencies, throughput, attainment, regime, and how they came about.

The regime says what queueing does to TTFT, and whether the queue grows:

    stable           the queue keeps its length; TTFT is a property of the deployment
    near saturation  queueing is most of TTFT: no point TTFT is promised
    over             the queue grows as long as requests come: TTFT is a property of how long one looks
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from windtunnel.studies.serving.measures import Distribution, Stamps

Regime = Literal["stable", "near saturation", "over"]
LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")
LEFT_OUT = (
    "band",
    "sources",
    "memory",
    "stamps",
    "timeline",
    "search",
    "cost_per_gpu_hour",
    "refusal",
)  # of JSON, or said below


@dataclass(frozen=True, eq=False)
class ServingResult:
    """One run. Seconds, tokens and requests of all replicas together."""

    spec: Mapping[str, Any]  # model, cluster, deployment, workload, as asked
    feasible: bool
    reason: str  # why not, where it is not
    requests: int
    finished: int
    refused: int
    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None
    queue: Distribution | None
    duration_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    slo: Mapping[str, float]
    slo_attainment: float | None
    goodput_requests_per_s: float | None
    regime: Regime
    gpus: int
    gpu_seconds: float
    utilisation: float  # share of the time in which a replica worked
    batch_mean: float  # sequences in a step, over busy time
    kv_use_mean: float  # share of blocks held, over busy time
    kv_use_peak: float
    preemptions: int
    prefix_hit_rate: float
    steps: int
    band: float  # log half-width of p5 to p95 of step times
    sources: tuple[str, ...]
    memory: Mapping[str, float]
    stamps: Stamps | None = field(default=None, repr=False)
    timeline: tuple[tuple[int, int, int, int], ...] = field(default=(), repr=False)
    search: Mapping[str, Any] | None = None  # what a goodput or placement search tried
    cost_per_gpu_hour: float | None = None
    refusal: str = ""  # why the first of the refused is

    @property
    def tpot_band_s(self) -> tuple[float, float] | None:
        """p5 and p95 of mean TPOT: the band of step times."""
        if self.tpot is None:
            return None
        return self.tpot.mean * math.exp(-self.band), self.tpot.mean * math.exp(self.band)

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Of output, where a GPU hour has a price."""
        if self.cost_per_gpu_hour is None or self.output_tokens_per_s <= 0.0:
            return None
        return self.cost_per_gpu_hour * self.gpus / 3600.0 / self.output_tokens_per_s * 1e6

    def requests_csv(self) -> str:
        """One CSV line per request that was sent, by its row in the workload.

        Stamps in seconds, empty where an event never came.
        """
        text = io.StringIO()
        lines = csv.writer(text)
        lines.writerow(("request", "queued_s", "scheduled_s", "first_token_s", "last_token_s"))
        found = self.stamps
        if found is not None:
            columns = (found.queued, found.scheduled, found.first, found.last)
            for index, place in sorted((index, place) for place, index in enumerate(found.index.tolist())):
                times = (float(column[place]) for column in columns)
                lines.writerow((index, *("" if math.isnan(time) else f"{time:.9f}" for time in times)))
        return text.getvalue()

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: plain numbers, None where there is nothing to say."""
        found: dict[str, Any] = {}
        for name in (one.name for one in fields(self) if one.name not in LEFT_OUT):
            value = getattr(self, name)
            if name in LATENCIES:
                found[f"{name}_s"] = None if value is None else value.to_dict()
            else:
                found[name] = dict(value) if isinstance(value, Mapping) else value
            if name == LATENCIES[-1]:
                band = self.tpot_band_s
                found["tpot_band_s"] = None if band is None else {"p5": band[0], "p95": band[1]}
                found["ttft_is_promised"] = self.regime == "stable"
        return {
            **found,
            "sources": list(self.sources),
            "memory_bytes_per_gpu": dict(self.memory),
            "search": None if self.search is None else dict(self.search),
            "cost_per_million_output_tokens": self.cost_per_million_tokens,
        }


def refusals(result: ServingResult) -> list[str]:
    """A warning where requests are more than a replica can ever hold."""
    if not (result.feasible and result.refused):
        return []
    return [f"{result.refused:,} of {result.requests:,} requests are refused: {result.refusal} in the KV cache"]
