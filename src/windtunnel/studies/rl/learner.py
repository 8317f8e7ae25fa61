"""The learner's side: samples packed into rows, rows dealt to ranks, and passes priced by the training study.

rows      first fit, longest first, into rows of `row_tokens`; as many on every data-parallel rank, rounded up
training  the predicted step of that many micro-batches, of the length of the fullest rank's mean row,
          attention inside documents; so many times as there are optimizer steps
log-prob  forward passes only (`studies/training/forward_only.py`)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from math import ceil, lcm, prod

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import LayoutError, UserError
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Layer, Model
from windtunnel.physics.step.result import StageMemory
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.training.forward_only import forward_ns
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.lowering.simulated import simulate
from windtunnel.studies.training.memory.peak import memory_of
from windtunnel.studies.training.plan import PEAK_DTYPE, read_plan
from windtunnel.studies.training.pricing import Pricer

SHARDED = ("fsdp", "deepspeed", "torchtitan")
ROW_STEP = 64  # tokens to which the mean row is rounded up, so that like batches are priced once


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows of one optimizer step."""

    micro_batches: int  # of every data-parallel rank
    row_tokens: int  # of the fullest rank's mean row
    document_tokens: int  # that a token finds itself in, on average
    fill: float  # of the rows, over all ranks


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of one RL step's learner."""

    old_logprob_s: float
    reference_s: float
    training_s: float

    @property
    def total_s(self) -> float:
        """All of them."""
        return self.old_logprob_s + self.reference_s + self.training_s


def packed(tokens: NDArray[np.int64], capacity: int, dp: int, quantum: int) -> Packed:
    """Samples of these tokens in rows of `capacity`, dealt to `dp` ranks; lengths are multiples of `quantum`."""
    loads = np.array(_loads(tokens.tobytes(), capacity), np.int64)
    used = len(loads)
    micro_batches = ceil(used / dp)
    dealt = np.zeros(micro_batches * dp, np.int64)
    dealt[:used] = loads
    rounds = dealt.reshape(micro_batches, dp)
    rounds[1::2] = rounds[1::2, ::-1]  # back and forth, so that sums are even
    ranks = rounds.sum(axis=0)
    fullest = int(ranks.max())
    step = quantum * ceil(ROW_STEP / quantum)
    row = ceil(fullest / micro_batches / step) * step
    document = float((tokens.astype(np.float64) ** 2).sum() / tokens.sum())
    document = min(row, ceil(document / ROW_STEP) * ROW_STEP)
    return Packed(micro_batches, row, int(document), float(tokens.sum()) / (used * capacity))


@lru_cache(maxsize=64)
def _loads(tokens: bytes, capacity: int) -> tuple[int, ...]:
    """Tokens of each row, fullest first: samples by first fit, longest first."""
    lengths = np.sort(np.frombuffer(tokens, np.int64))[::-1]
    room = np.full(len(lengths), capacity, np.int64)
    used = 0
    for size in lengths:
        place = int(np.argmax(room[: used + 1] >= size))
        room[place] -= size
        used = max(used, place + 1)
    return tuple(np.sort(capacity - room[:used])[::-1].tolist())


Fields = Mapping[str, float | str]  # of a plan, without batch and lengths


@dataclass(eq=False)
class Trainer:
    """A policy's layout on its GPUs, whose passes are priced as batches come, and remembered."""

    model: Model
    cluster: Cluster
    fields: Fields
    row_tokens: int
    old_logprob: bool
    reference: bool
    factor: float = 1.0
    forward_factor: float = 1.0  # more on log-probs
    _known: dict[tuple[int, int, int], _Priced] = field(default_factory=dict, repr=False)

    @property
    def dp(self) -> int:
        """Data-parallel ranks."""
        replica_gpus = prod(int(self.fields.get(name, 1)) for name in ("tp", "pp", "cp"))
        return max(1, self.cluster.n_gpus // replica_gpus)

    @property
    def quantum(self) -> int:
        """What a row's tokens are a multiple of."""
        return lcm(2 * int(self.fields.get("cp", 1)), int(self.fields.get("tp", 1)))

    def passes(self, tokens: NDArray[np.int64], train_batch: int) -> Passes:
        """Seconds that a batch of samples takes. `tokens`: of each sample with its prompt."""
        training = forward = 0.0
        capacity = max(self.row_tokens, int(tokens.max()))
        for begin in range(0, len(tokens), train_batch):
            rows = packed(tokens[begin : begin + train_batch], capacity, self.dp, self.quantum)
            priced = self.priced(rows)
            training += priced.step_s
            forward += priced.forward_s
        forward *= self.factor * self.forward_factor
        return Passes(forward * self.old_logprob, forward * self.reference, self.factor * training)

    def peak_s(self, tokens: NDArray[np.int64]) -> float:
        """Seconds that no layout is below: the products at the peak rate of all GPUs."""
        precision = str(self.fields.get("precision", "bf16"))
        rate = self.cluster.n_gpus * self.cluster.gpu.peak_flops(PEAK_DTYPE.get(precision, precision))
        passes = 3 + int(self.old_logprob) + int(self.reference)
        return self.factor * passes * float(tokens.sum()) * self.model.forward_flops_per_token(1) / rate

    def priced(self, rows: Packed) -> _Priced:
        """One optimizer step of these rows, and a forward pass over them. Raises LayoutError, SpecError."""
        key = (rows.micro_batches, rows.row_tokens, rows.document_tokens)
        priced = self._known.get(key)
        if priced is None:
            priced = self._known[key] = _price(self.model, self.cluster, self.fields, key, self.dp)
        return priced


@dataclass(frozen=True, eq=False)
class _Priced:
    """A step of the training study."""

    step_s: float
    forward_s: float
    p5: float  # of the passes, relative
    p95: float
    stages: Callable[[], tuple[StageMemory, ...]]

    @cached_property
    def memory(self) -> tuple[StageMemory, ...]:
        """Of each stage: replayed when it is asked for, which of most steps it is not."""
        return self.stages()


def _price(model: Model, cluster: Cluster, fields: Fields, key: tuple[int, int, int], dp: int) -> _Priced:
    micro_batches, row, document = key
    layout = _laid_out(model, cluster, fields, micro_batches * dp, row)
    pricer = Pricer(layout)
    if document < row:
        pricer = pricer.with_documents(document)
    simulation = simulate(layout, pieces_of(layout), layout.schedule_table(), pricer)
    step = simulation.step
    widths = [(segment.p5, segment.p95, segment.duration_ns) for segment in step.segments]
    weight = sum(width for _, _, width in widths)
    return _Priced(
        simulation.makespan_ns * 1e-9,
        forward_ns(layout, step) * 1e-9,
        sum(low * width for low, _, width in widths) / weight,
        sum(high * width for _, high, width in widths) / weight,
        partial(memory_of, layout, simulation.pieces, step, simulation.timeline.end_ns),
    )


def _laid_out(model: Model, cluster: Cluster, fields: Fields, rows: int, row_tokens: int) -> Layout:
    """A plan of so many rows on its ranks. Raises LayoutError, SpecError."""
    # NeMo RL, verl, slime and Megatron-Bridge recipes split no expert: expert_tensor_parallel_size 1.
    experts = {"etp": 1} if int(fields.get("ep", 1)) > 1 else {}
    plan = read_plan({**fields, **experts, "global_batch": rows, "seq_len": row_tokens, "micro_batch": 1})
    return resolve(model, cluster, plan)


def best_trainer(
    trainer: Trainer, tokens: NDArray[np.int64], train_batch: int, layout_fields: Mapping[str, object]
) -> Trainer:
    """The fastest layout of those that fit, where `layout_fields` leave one open. Raises UserError where none does.

    Of recomputation: none where that fits, else full. Layouts are priced in the order of lower bounds until no other
    can be faster; one that needs too much memory at the least is not priced.
    """
    best: tuple[float, Trainer] | None = None
    reason: UserError | None = None
    least: list[tuple[float, int, str, Trainer]] = []
    bounds_of: dict[tuple[int, int], Bounds] = {}
    for layout in layouts(trainer.model, trainer.cluster, layout_fields, str(trainer.fields["framework"])):
        able = replace(trainer, fields={**trainer.fields, **layout}, _known={})
        try:
            bound_s, word = least_s(able, tokens, train_batch, layout_fields, bounds_of)
            least.append((bound_s, len(least), word, able))
        except (LayoutError, UserError) as error:
            reason = error
    for bound_s, _, word, able in sorted(least, key=lambda entry: entry[:2]):
        if best is not None and bound_s >= best[0]:
            break
        try:
            able = replace(able, fields={**able.fields, "recompute": word})
            if best is not None and able.passes(tokens, train_batch).total_s >= best[0]:
                continue  # nor faster where more is recomputed
            able = fitting(able, tokens, train_batch, layout_fields, word)
            seconds = able.passes(tokens, train_batch).total_s
        except (LayoutError, UserError) as error:
            reason = error
            continue
        if best is None or seconds < best[0]:
            best = (seconds, able)
    if best is None:
        raise reason or LayoutError("no layout of the trainer is possible", "give more GPUs to --train")
    return best[1]


def least_s(
    trainer: Trainer,
    tokens: NDArray[np.int64],
    train_batch: int,
    layout_fields: Mapping[str, object],
    bounds_of: dict[tuple[int, int], Bounds],
) -> tuple[float, str]:
    """Seconds that the passes take at the least, and the least that is recomputed.

    `bounds_of`: by tokens of a row and of a document. Raises LayoutError where it does not fit with all recomputed.
    """
    capacity = max(trainer.row_tokens, int(tokens.max()))
    starts = range(0, len(tokens), train_batch)
    steps = [packed(tokens[at : at + train_batch], capacity, trainer.dp, trainer.quantum) for at in starts]
    micro_batches, row = min(step.micro_batches for step in steps), min(step.row_tokens for step in steps)
    document = min(row, *(step.document_tokens for step in steps))
    bounds = bounds_of.setdefault((row, document), Bounds(0.0, document if document < row else None))
    capacity_bytes = trainer.cluster.gpu.usable_memory_bytes
    layout = _laid_out(trainer.model, trainer.cluster, trainer.fields, micro_batches * trainer.dp, row)
    for word in _savings(layout_fields):
        layout = replace(layout, plan=layout.plan.with_fields({"recompute": word}))
        needed = bounds.memory_bytes(layout)
        if needed <= capacity_bytes:
            break
    else:
        if not (layout_fields.get("recompute") or layout_fields.get("tp")):
            size = needed / 2**30
            raise LayoutError(f"the trainer needs {size:.1f} GiB of a GPU", "use more GPUs, or larger --pp or --ep")
    ahead, _ = bounds.passes(layout)
    stages = ahead.reshape(-1, layout.plan.pp).sum(axis=0)
    forward_ns = stages.sum() + (micro_batches - 1) * stages.max()
    passes = int(trainer.old_logprob) + int(trainer.reference)
    return trainer.factor * len(steps) * 1e-9 * (bounds.step_ns(layout) + passes * float(forward_ns)), word


def layouts(
    model: Model, cluster: Cluster, layout_fields: Mapping[str, object], framework: str
) -> list[dict[str, int]]:
    """Sizes of tensor, pipeline, context and expert parallelism that a trainer may have; `layout_fields` are kept."""
    gpus, node = cluster.n_gpus, cluster.gpus_per_node
    experts = max((layer.feed_forward.experts for layer in model.layers), default=0)
    heads = min(layer.attention.heads for layer in model.layers)
    powers = [1 << i for i in range(11)]

    def of(name: str, most: int) -> list[int]:
        size = layout_fields.get(name)
        return [size] if size and isinstance(size, int) else [power for power in powers if power <= most]

    sizes = []
    expert = sum(_expert_parameters(model, layer) for layer in model.layers)
    dense = model.parameters - expert
    sharded = framework in SHARDED  # parameters are gathered layer by layer; no tensor or pipeline parallelism beside
    for tp in of("tp", 1 if sharded else min(8, node, heads)):
        for pp in of("pp", 1 if sharded else min(16, model.n_layers // 2)):
            for cp in of("cp", 8 if sharded else 1):
                for ep in of("ep", min(64, experts)) if experts else [1]:
                    if gpus % (tp * pp * cp) or gpus // pp % ep or gpus < tp * pp * cp:
                        continue
                    # Weights and gradients in 16 bits, and what an optimizer that is sharded over all GPUs holds.
                    needed = 4 * (dense / (tp * pp) + expert / (ep * pp)) + 12 * model.parameters / gpus
                    if sharded or needed <= cluster.gpu.usable_memory_bytes or layout_fields.get("tp"):
                        sizes.append({"tp": tp, "pp": pp, "cp": cp, "ep": ep})
    return sizes


def _expert_parameters(model: Model, layer: Layer) -> int:
    """Of a layer's routed experts."""
    block = layer.feed_forward
    return block.experts * block.matrices * block.size * model.hidden_size if block.kind == "moe" else 0


def _savings(entry: Mapping[str, object]) -> list[str]:
    """What is recomputed, as given; else what is tried in turn."""
    return [str(entry["recompute"])] if entry.get("recompute") else ["none", "full"]


def fitting(
    trainer: Trainer,
    tokens: NDArray[np.int64],
    train_batch: int,
    layout_fields: Mapping[str, object],
    least: str | None = None,
) -> Trainer:
    """The same with recomputation where none is given: none where that fits, else full. Raises LayoutError.

    `least`: with less recomputed it is known not to fit.
    """
    words = _savings(layout_fields)
    for word in words if least is None else words[words.index(least) :]:
        able = trainer
        if able.fields.get("recompute") != word:
            able = replace(able, fields={**able.fields, "recompute": word}, _known={})
        most = fullest(able, tokens, train_batch)
        if most.device_bytes <= able.cluster.gpu.usable_memory_bytes:
            return able
    if layout_fields.get("recompute") or layout_fields.get("tp"):
        return able  # what was asked for is answered, with the memory that it lacks
    size = most.device_bytes / 2**30
    raise LayoutError(f"the trainer needs {size:.1f} GiB of a GPU", "use more GPUs, or parallel sizes that split more")


def fullest(trainer: Trainer, tokens: NDArray[np.int64], train_batch: int) -> StageMemory:
    """The stage that needs most, in the first optimizer step."""
    capacity = max(trainer.row_tokens, int(tokens.max()))
    rows = packed(tokens[:train_batch], capacity, trainer.dp, trainer.quantum)
    return max(trainer.priced(rows).memory, key=lambda stage: stage.device_bytes)
