"""What a serving run says: latencies, throughput, attainment, regime, and how they came about.

The regime says what queueing does to TTFT, and whether the queue grows:

    stable           the queue keeps its length; TTFT is a property of the deployment
    near saturation  queueing is most of TTFT: no point TTFT is promised
    over             the queue grows as long as requests come: TTFT is a property of how long one looks
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from windtunnel.files.write import csv_text
from windtunnel.notebook import Shown
from windtunnel.questions.typed import Plain, check_figures, plain, plain_fields
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.measures import Distribution, Stamps
from windtunnel.studies.serving.workload.requests import Load

Regime = Literal["stable", "near saturation", "over"]
# Log half-width that mean TTFT needs beyond the band of step times: nine in ten rows of `unseen_2026_c` to `e`, each
# cell counting once (`validation/serving/bands.py`).
FIRST_TOKEN_BAND = 0.95
LATENCIES = ("ttft", "tpot", "itl", "e2e", "queue")


@dataclass(frozen=True, slots=True)
class Side:
    """One of two pools: prefill or decode."""

    replicas: int
    layout: str


@dataclass(frozen=True, slots=True)
class ServingSpec:
    """What was asked, as it was resolved."""

    model: str
    cluster: str
    gpu: str
    cluster_gpus: int
    deployment: Deployment
    engine: str
    replicas: int | None  # None: the two sides say how many
    workload: Load
    prefill: Side | None = None
    decode: Side | None = None
    router: str | None = None  # of a model in a pool ...
    groups: tuple[str, ...] | None = None  # ... and the machines it may use

    def to_dict(self) -> dict[str, Plain]:
        """Ready for JSON: what is not said is left out, but for the number of replicas."""
        fields = plain_fields(self)
        for name in ("prefill", "decode", "router", "groups"):
            if fields[name] is None:
                del fields[name]
        deployment = plain_fields(self.deployment)
        layout: dict[str, Plain] = {name: value for name, value in deployment.items() if value is not None}
        return {**fields, "deployment": layout, "workload": {**self.workload.to_dict()}}


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of one GPU, and blocks of one attention rank."""

    weights: float
    activations: float
    reserved: float
    kv_cache: float
    kv_per_token: float
    kv_blocks: float

    def __post_init__(self) -> None:
        check_figures(self)


@dataclass(frozen=True, slots=True)
class Started:
    """What the engine was started with, where it was not asked for too: formats, lengths, release."""

    kv_cache_tokens: int  # of one replica: all its attention ranks
    weights_format: str
    expert_weights_format: str
    kv_format: str
    max_model_len: int | None
    speculative_tokens: int
    engine: str
    engine_calibrated_to: str
    notice: str = ""  # what has to be said of the release

    def to_dict(self) -> dict[str, Plain]:
        """Ready for JSON."""
        fields = plain_fields(self)
        del fields["notice"]
        return fields

    def words(self) -> str:
        """In one line."""
        experts = "" if self.expert_weights_format == self.weights_format else f", experts {self.expert_weights_format}"
        longest = "" if self.max_model_len is None else f" · at most {self.max_model_len:,} tokens a request"
        drafted = f" · {self.speculative_tokens} drafted a step" if self.speculative_tokens else ""
        cache = f"cache of {self.kv_cache_tokens:,} tokens in {self.kv_format}"
        return f"weights {self.weights_format}{experts} · {cache}{longest}{drafted}"


@dataclass(frozen=True, slots=True)
class TriedRate:
    """A rate that was run, and the share of requests that met their limits."""

    rate_per_s: float
    attainment: float


@dataclass(frozen=True, slots=True)
class GoodputSearch:
    """What a search for goodput tried, in the order of rates."""

    attain: float
    held_at_per_s: float
    missed_at_per_s: float | None  # None: nowhere
    tried: tuple[TriedRate, ...]
    warning: str | None = None

    def __post_init__(self) -> None:
        check_figures(self)

    def to_dict(self) -> dict[str, Plain]:
        """Ready for JSON."""
        fields = plain_fields(self)
        if self.warning is None:
            del fields["warning"]
        kind = "goodput by bisection, common random numbers"
        return {**fields, "kind": kind, "rates_tried": len(self.tried)}


@dataclass(frozen=True, eq=False)
class ServingResult(Shown):
    """One run. Seconds, tokens and requests of all replicas together. faces/report/serving shows it by `to_dict`."""

    JSON_LEAVES_OUT: ClassVar = (
        "spec", "band", "sources", "memory", "stamps", "timeline", "search", "cost_per_gpu_hour", "refusal", "started",
        "tier_hit_rates", "adapter_loads", *LATENCIES,
    )  # or said below  # fmt: skip

    spec: ServingSpec
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
    gpu_watts: float  # mean over GPUs and time
    gpu_watts_band: float  # log half-width
    utilisation: float  # share of the time in which a replica worked
    batch_mean: float  # sequences in a step, over busy time
    kv_use_mean: float  # share of blocks held, over busy time
    kv_use_peak: float
    preemptions: int
    prefix_hit_rate: float  # in the GPU's cache
    tier_hit_rates: Mapping[str, float]  # below it, by tier
    adapter_loads: int | None  # LoRA adapters brought to a GPU; None where there are none
    steps: int
    band: float  # log half-width of p5 to p95 of step times
    sources: tuple[str, ...]
    memory: MemoryUse
    started: Started
    stamps: Stamps | None = field(default=None, repr=False)
    timeline: tuple[tuple[int, int, int, int], ...] = field(default=(), repr=False)
    search: GoodputSearch | None = None
    cost_per_gpu_hour: float | None = None
    refusal: str = ""  # why the first of the refused is

    def __post_init__(self) -> None:
        check_figures(self)
        assert self.finished + self.refused <= self.requests, f"{self.finished} + {self.refused} of {self.requests}"

    @property
    def tpot_band_s(self) -> tuple[float, float] | None:
        """p5 and p95 of mean TPOT: the band of step times."""
        if self.tpot is None:
            return None
        return self.tpot.mean * math.exp(-self.band), self.tpot.mean * math.exp(self.band)

    @property
    def ttft_band_s(self) -> tuple[float, float] | None:
        """p5 and p95 of mean TTFT: of step times, and of launches, front ends and clients that nobody publishes."""
        if self.ttft is None:
            return None
        width = math.exp(math.hypot(self.band, FIRST_TOKEN_BAND))
        return self.ttft.mean / width, self.ttft.mean * width

    @property
    def cost_per_million_tokens(self) -> float | None:
        """Of output, where a GPU hour has a price."""
        if self.cost_per_gpu_hour is None or self.output_tokens_per_s <= 0.0:
            return None
        return self.cost_per_gpu_hour * self.gpus / 3600.0 / self.output_tokens_per_s * 1e6

    @property
    def joules_per_token(self) -> float | None:
        """Of output: what its GPUs draw, without hosts, switches and cooling."""
        tokens = self.output_tokens_per_s * self.duration_s
        return self.gpu_watts * self.gpu_seconds / tokens if tokens > 0.0 else None

    @property
    def joules_band(self) -> tuple[float, float] | None:
        """p5 and p95 of joules per token: of power and of how long a step takes."""
        each, width = self.joules_per_token, math.exp(math.hypot(self.band, self.gpu_watts_band))
        return None if each is None else (each / width, each * width)

    def requests_csv(self) -> str:
        """One CSV line per request that was sent, by its row in the workload.

        Stamps in seconds, empty where an event never came.
        """
        rows: list[tuple[object, ...]] = []
        stamps = self.stamps
        if stamps is not None:
            columns = (stamps.queued, stamps.scheduled, stamps.first, stamps.last)
            for index, place in sorted((index, place) for place, index in enumerate(stamps.index.tolist())):
                times = (float(column[place]) for column in columns)
                rows.append((index, *("" if math.isnan(time) else f"{time:.9f}" for time in times)))
        return csv_text(("request", "queued_s", "scheduled_s", "first_token_s", "last_token_s"), rows)

    def to_dict(self) -> dict[str, Plain]:
        """Ready for JSON: plain numbers, None where there is nothing to say."""
        bands = {"tpot_band_s": self.tpot_band_s, "ttft_band_s": self.ttft_band_s}
        return {
            **plain_fields(self),
            **self.started.to_dict(),
            **{f"{name}_s": plain(getattr(self, name)) for name in LATENCIES},
            "spec": {**self.spec.to_dict()},
            **{name: None if band is None else {"p5": band[0], "p95": band[1]} for name, band in bands.items()},
            "ttft_is_promised": self.regime == "stable",
            "sources": [*self.sources],
            "memory_bytes_per_gpu": plain(self.memory),
            "search": None if self.search is None else {**self.search.to_dict()},
            "cost_per_million_output_tokens": self.cost_per_million_tokens,
            "joules_per_output_token": self.joules_per_token,
            **({"tier_hit_rates": dict(self.tier_hit_rates)} if self.tier_hit_rates else {}),
            **({} if self.adapter_loads is None else {"adapter_loads": self.adapter_loads}),
        }


def refusals(result: ServingResult) -> list[str]:
    """What has to be said: of the engine's release, and where requests are more than a replica takes."""
    started = result.started
    notices = [started.notice] if started.notice else []
    most, room = started.max_model_len, started.kv_cache_tokens
    if started.engine.startswith("vllm ") and most is not None and most > room > 0:
        notices.append(
            f"vLLM does not start so: a request may have {most:,} tokens, and its cache holds {room:,}: give"
            f" --max-model-len {room} or less"
        )
    if result.refused and result.refusal:
        notices.append(refused_words(result.refused, result.requests, result.refusal, started))
    return notices


def refused_words(refused: int, requests: int, refusal: str, started: Started) -> str:
    """How many requests are refused, and why."""
    most = started.max_model_len
    place = "in the KV cache" if most is None or most > started.kv_cache_tokens else "max_model_len (--max-model-len)"
    return f"{refused:,} of {requests:,} requests are refused: {refusal} {place}"
