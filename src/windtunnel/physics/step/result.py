"""Result: one training step, predicted, captured or emulated; the answer of `predict`, `capture` and `run`.

A Result is plain data: it can be written as JSON and read back, and every renderer (console, HTML, trace, compare)
works from it alone. Times in breakdowns are integer nanoseconds so that parts sum exactly to the whole.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, Literal, cast

from windtunnel.errors import SpecError, UserError
from windtunnel.notebook import Shown
from windtunnel.questions.header import SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa

Status = Literal["ok", "infeasible"]
BESIDE = ("advice", "advice_tried", "question")  # fields beside the answer


@dataclass(frozen=True, slots=True)
class Interval:
    """One op of the timeline excerpt, on one stream of one rank class."""

    stage: int  # rank class: the pipeline rank that it stands for
    stream: str  # "compute", "tp", "dp", "pp", ...
    label: str
    category: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Memory of one rank class, in bytes. `categories` sums to `peak_allocated_bytes`, framework context apart."""

    stage: int
    ranks: int  # how many GPUs this class stands for
    categories: Mapping[str, int]  # parameters, gradients, optimizer, activations, communication, workspace
    peak_allocated_bytes: int
    peak_reserved_bytes: int  # what the caching allocator holds at its peak
    device_bytes: int  # reserved + context and NCCL buffers outside the allocator: what nvidia-smi shows
    peak_time_ns: int
    timeline: tuple[tuple[int, int], ...]  # (time_ns, allocated_bytes), thinned for drawing
    gives_back: bool = False  # fits only because the allocator gives cached memory back to the driver, again and again
    capacity_bytes: int = 0  # of its own device where stages lie on several types of GPU; 0: as the result says

    def __post_init__(self) -> None:
        for name, size in (
            *self.categories.items(),
            ("peak", self.peak_allocated_bytes),
            ("device", self.device_bytes),
        ):
            if not (math.isfinite(size) and size >= 0):
                raise ValueError(f"stage {self.stage}: {name} of {size} bytes")


class _WhenRead:
    """A field of `Result` or of `StageMemory` that may hold what makes its value: it is made when it is first read."""

    def __init__(self, slot: object) -> None:
        assert isinstance(slot, MemberDescriptorType)
        self.slot = slot

    def __get__(self, result: Result | StageMemory | None, owner: type) -> object:
        if result is None:
            return self
        value = self.slot.__get__(result, owner)
        if callable(value):
            value = value()
            self.slot.__set__(result, value)
        return value

    def __set__(self, result: Result | StageMemory, value: object) -> None:
        self.slot.__set__(result, value)


@dataclass(frozen=True, slots=True)
class Limit:
    """One thing that holds the step back and what removing it would give."""

    what: str  # e.g. "pipeline bubble"
    share: float  # of the step
    step_time_s_without: float  # the step if it cost nothing


@dataclass(frozen=True, slots=True)
class Advice:
    """A change of the plan that was predicted: it fits, and makes the step shorter or makes a plan fit that did not."""

    changes: Mapping[str, object]  # fields of the plan, or `n_gpus`
    flags: str  # the same for the command line
    kind: str  # plan: the framework has it; numbers: other formats of numbers; others: the framework may not have it
    step_time_ns: int
    gain: float  # of the step that was asked about; negative: it takes longer, but fits
    peak_memory_bytes: int

    @property
    def step_time_s(self) -> float:
        """Predicted step time in seconds."""
        return self.step_time_ns / 1e9


@dataclass(frozen=True, slots=True)
class Infeasible:
    """Why the job cannot run, and by how much. Ways out that were predicted: `Result.advice`."""

    reason: str
    stage: int
    needed_bytes: int
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class Blame:
    """What one disturbance costs."""

    what: str  # as it was given
    alone_ns: int  # step time added when it is the only one
    without_ns: int  # step time saved when it alone is mended
    stage: int  # where its first GPU works; -1: nowhere in particular
    replica: int
    without_p5_p50_p95_ns: tuple[int, int, int] | None = None  # `without_ns` over the samples, where there are any


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks that share one timeline: none of them can be told from another."""

    ranks: int
    first_rank: int
    stage: int
    replica: int  # of the first rank
    busy_ns: int  # computes or moves bytes
    waiting_ns: int  # for other ranks; busy + waiting = the step's makespan
    disturbed_by: tuple[str, ...] = ()  # disturbances of these very ranks, as they were given


@dataclass(frozen=True, slots=True)
class PathPart:
    """Neighbouring ops of the critical path on one rank."""

    rank: int
    stage: int
    replica: int
    what: str  # category of most of it
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting for the last member of one communicator, or of all alike, beyond that of an undisturbed step."""

    communicator: str  # "dp of stage 3", "pp 2 to 3", "tp of stage 0"
    mean_ns: int  # over its members
    worst_ns: int  # of the member that waits longest
    last_rank: int  # whom the others wait for longest; -1 where nobody waits


@dataclass(frozen=True, slots=True)
class Samples:
    """Step times under jitter."""

    jitter: float  # relative standard deviation of one pass
    count: int
    seed: int
    p5_ns: int
    p50_ns: int
    p95_ns: int


@dataclass(frozen=True, slots=True)
class Disturbed:
    """What slow GPUs, slow links and jitter do to a step."""

    undisturbed_step_time_ns: int
    gpus_lost: float  # how many GPUs' worth of the step is lost
    programs: int  # rank classes that were simulated
    # Replicas in each class that was simulated, which sum to the data-parallel degree; of a captured job, ranks.
    replica_classes: tuple[int, ...]
    blame: tuple[Blame, ...]  # costliest first
    samples: Samples | None = None
    rank_classes: tuple[RankClass, ...] = ()
    class_runs: tuple[tuple[int, int], ...] = ()  # (index into rank_classes, ranks in a row), from rank 0 on
    critical_path: tuple[PathPart, ...] = ()  # in the order of time; long ones are thinned to their longest parts
    waiting: tuple[Waiting, ...] = ()  # longest mean first


@dataclass(frozen=True, slots=True)
class TechniqueGain:
    """What a technique brings to a step: predicted without it and with it."""

    name: str  # several: joined by +, in the order in which they are applied
    step_time_without_s: float
    step_time_with_s: float
    gain: float  # without / with
    parameters: Mapping[str, object]  # as chosen; of several techniques by their names
    details: Mapping[str, object] = field(default_factory=dict)  # what lies behind the gain; of several by their names
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StageReport:
    """How one rank class spends the step: `breakdown_ns` sums exactly to the step."""

    stage: int
    ranks: int
    layers: int
    breakdown_ns: Mapping[str, int]


@dataclass(frozen=True, slots=True, repr=False)
class Result(Shown):
    """The answer to one `predict`.

    `breakdown_ns` (mean over all ranks) sums exactly to `step_time_ns`. `provenance` gives, per source (measured,
    interpolated, fitted, roofline), the share of busy time that rests on it; it sums to 1.
    """

    status: Status
    spec: Mapping[str, Any]  # model, cluster, plan as resolved, and the version: enough to run it again
    step_time_ns: int
    step_time_p5_ns: int
    step_time_p95_ns: int
    tokens_per_step: int
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    mfu: float  # model FLOPs / (step x GPUs x dense peak of the GEMM precision)
    hfu: float  # the same with recomputation counted
    mfu_convention: str
    model_tflops_per_gpu: float
    breakdown_ns: Mapping[str, int]
    stages: tuple[StageReport, ...]
    memory: tuple[StageMemory, ...]
    memory_capacity_bytes: int
    provenance: Mapping[str, float]
    limits: tuple[Limit, ...]
    defaults: tuple[str, ...]  # what was filled in, by which framework's habit
    warnings: tuple[str, ...]
    reproduce: str  # the command line that gives this result again
    n_gpus: int
    n_classes: int  # rank classes that were simulated
    n_ops: int
    gpu_watts: float = 0.0  # mean over GPUs and the step, by what they do
    gpu_watts_p5: float = 0.0
    gpu_watts_p95: float = 0.0
    excerpt: tuple[Interval, ...] = ()
    infeasible: Infeasible | None = None
    disturbed: Disturbed | None = None
    traffic_bytes: Mapping[str, int] = field(default_factory=dict)  # bytes sent per GPU and step, by kind and tier
    class_names: tuple[str, ...] = ()  # of rank classes that are no stages of a pipeline, by their number
    technique: TechniqueGain | None = None
    band_reason: str = ""  # what the band is wide for, in words
    memory_p95_bytes: int = 0  # of the fullest device, as far as published peaks lay above predicted ones
    tight: bool = False  # it fits, and may not: p95 is above what the device has
    advice: tuple[Advice, ...] = ()  # of each kind best first
    advice_tried: int = 0  # changes that the advice was chosen from; 0: none was asked for
    question: Mapping[str, object] = field(default_factory=dict)  # what was asked, as `questions.plain` has it
    schema: str = SCHEMA

    def __repr__(self) -> str:
        figures = f"{self.step_time_s:.4g} s, MFU {self.mfu:.1%}, {self.n_gpus} GPUs"
        return f"Result({self.status}, {figures}, {self.content_hash})"

    @property
    def step_time_s(self) -> float:
        """Predicted step time in seconds."""
        return self.step_time_ns / 1e9

    @property
    def joules_per_token(self) -> float:
        """Of all GPUs, without hosts, switches and cooling."""
        return self.gpu_watts * self.n_gpus / self.tokens_per_s if self.tokens_per_s else 0.0

    @property
    def flops_per_rank(self) -> float:
        """Model FLOPs of a step, mean over all ranks: nothing that is recomputed."""
        return self.model_tflops_per_gpu * 1e12 * self.step_time_s

    @property
    def executed_flops_per_rank(self) -> float:
        """FLOPs that a step executes, mean over all ranks: with what is recomputed."""
        return self.flops_per_rank * self.hfu / self.mfu if self.mfu else 0.0

    @property
    def peak_memory(self) -> StageMemory:
        """Memory of the rank class that fills most of its device."""
        return max(self.memory, key=lambda stage: stage.device_bytes / max(self.capacity_of(stage), 1))

    def capacity_of(self, stage: StageMemory) -> int:
        """What the device of a rank class has for the job."""
        return stage.capacity_bytes or self.memory_capacity_bytes

    def class_name(self, number: int) -> str:
        """What a reader calls the rank class of this number (`stage` of what is told by class)."""
        return self.class_names[number] if number < len(self.class_names) else f"stage {number}"

    def to_table(self, what: Literal["time", "memory", "timeline"] = "time") -> pa.Table:
        """A `pyarrow.Table` in long form, for analysis.

        - "time": rank_class, name, ranks, layers, category, time_ns, share of the step; one class's rows sum to it
        - "memory": rank_class, name, ranks, category, size_bytes; one class's rows sum to its allocated peak, apart
          from what lies outside the allocator
        - "timeline": rank_class, stream, label, category, start_ns, end_ns of the excerpt

        Raises SpecError for another word.
        """
        import pyarrow as pa

        rows = {"time": _time_rows, "memory": _memory_rows, "timeline": _timeline_rows}
        columns = {"time": _TIME, "memory": _MEMORY, "timeline": _TIMELINE}
        if what not in rows:
            raise SpecError("what", what, f"give one of {', '.join(rows)}")
        kinds = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}
        schema = pa.schema([(name, kinds[kind]) for name, kind in columns[what].items()])
        return pa.Table.from_pylist([dict(zip(columns[what], row, strict=True)) for row in rows[what](self)], schema)

    def to_dataframe(self, what: Literal["time", "memory", "timeline"] = "time") -> object:
        """`to_table` as a pandas DataFrame. Raises UserError where pandas is not installed."""
        table = self.to_table(what)
        try:
            return table.to_pandas()
        except ImportError:
            raise UserError("to_dataframe needs pandas: pip install pandas, or use to_table") from None

    def to_dict(self) -> dict[str, object]:
        """JSON-able form; `from_dict` is its inverse."""
        data = cast("dict[str, Any]", _as_data(self))
        data["memory"] = tuple(
            stage_memory if stage_memory["capacity_bytes"] else _without(stage_memory, "capacity_bytes")
            for stage_memory in data["memory"]
        )
        return data

    def to_json(self) -> str:
        """Canonical JSON of the answer: same result, same bytes, with the words that ask it and without advice."""
        answer = {name: value for name, value in self.to_dict().items() if name not in BESIDE}
        return json.dumps(answer, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @property
    def content_hash(self) -> str:
        """Twelve hex digits of the hash of the canonical JSON; names the run folder."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:12]

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Result:
        """Rebuild from `to_dict` (e.g. `result.json` of a run folder). ValueError on a foreign dict."""
        from pydantic import TypeAdapter

        # What up to 0.1 a limit and an infeasibility had besides, words that nobody had tried, is left out.
        return TypeAdapter(cls).validate_python(data)


for _name in ("spec", "question", "reproduce", "excerpt"):
    setattr(Result, _name, _WhenRead(getattr(Result, _name)))
StageMemory.timeline = _WhenRead(StageMemory.timeline)  # type: ignore[misc, assignment]


def _as_data(value: object) -> object:
    """Dataclasses as dictionaries, all the way down. Unlike `asdict` it copies no plain value, which was most of it."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, (list, tuple)):
        return type(value)([part if type(part) in _PLAIN else _as_data(part) for part in value])
    if is_dataclass(value) and not isinstance(value, type):
        own = ((name, getattr(value, name)) for name in _names(type(value)))
        return {name: part if type(part) in _PLAIN else _as_data(part) for name, part in own}
    if isinstance(value, Mapping):
        return {key: part if type(part) in _PLAIN else _as_data(part) for key, part in value.items()}
    return value


_PLAIN = frozenset({str, int, float, bool, type(None)})


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(member.name for member in fields(kind))


_TIME = {
    **{"rank_class": "int", "name": "str", "ranks": "int", "layers": "int"},
    **{"category": "str", "time_ns": "int", "share": "float"},
}
_MEMORY = {"rank_class": "int", "name": "str", "ranks": "int", "category": "str", "size_bytes": "int"}
_TIMELINE = {
    **{"rank_class": "int", "stream": "str", "label": "str", "category": "str"},
    **{"start_ns": "int", "end_ns": "int"},
}


def _time_rows(result: Result) -> Iterator[tuple[object, ...]]:
    for stage in result.stages:
        for name, part in sorted(stage.breakdown_ns.items()):
            share = part / max(result.step_time_ns, 1)
            yield stage.stage, result.class_name(stage.stage), stage.ranks, stage.layers, name, part, share


def _memory_rows(result: Result) -> Iterator[tuple[object, ...]]:
    for stage in result.memory:
        for name, size in sorted(stage.categories.items()):
            yield stage.stage, result.class_name(stage.stage), stage.ranks, name, size


def _timeline_rows(result: Result) -> Iterator[tuple[object, ...]]:
    for op in result.excerpt:
        yield op.stage, op.stream, op.label, op.category, op.start_ns, op.end_ns


def _without(data: Mapping[str, object], name: str) -> dict[str, object]:
    return {key: value for key, value in data.items() if key != name}
