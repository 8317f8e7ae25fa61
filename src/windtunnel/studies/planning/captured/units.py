"""What a captured program is made of, unit by unit: what pipeline stages may be cut between.

A unit is a layer: the part of a module's name up to its first number (`layers.3` of `model.layers.3.mlp.up`), or the
first word where there is none (`embedding`, `norm`, `output`). Ops without a module belong to the unit of the op before
them. Units follow each other as forward passes first reach them; one that a later layer reaches again (a tied table)
stays where it was first.

Of each unit, for one micro-batch, at the prices of single ops (`programs/lowering/pricing.py`): a pass takes what its
kernels take one after the other, and no less than the host takes to launch them. Of its memory: what its forward pass
makes and its backward pass, or a later one's, frees. State (parameters, gradients, optimizer) is that of the rank,
dealt out by the elements of the weights that each unit's ops read; where ranks shard it, the whole of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from windtunnel.errors import UserError
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.lowering.pricing import OpPricer
from windtunnel.studies.programs.op_shapes import plain_name
from windtunnel.studies.programs.program import Op, RankProgram, TensorSpec

NUMBERED = re.compile(r"^(?:.*?\.)?\d+(?=\.|$)")
# Inputs of an op that are weights (PyTorch's native_functions.yaml).
WEIGHTS = {
    "mm": (1,), "addmm": (0, 2), "linear": (1, 2), "embedding": (0,), "_fused_rms_norm": (1,),
    "native_layer_norm": (1, 2), "convolution": (1, 2), "_grouped_mm": (1,),
}  # fmt: skip
ITEM_BYTES = {"float64": 8, "int64": 8, "float32": 4, "int32": 4, "bfloat16": 2, "float16": 2, "int16": 2}
STATE = ("parameter", "gradient", "optimizer")


@dataclass(frozen=True, slots=True)
class Unit:
    """One layer, or what is before or behind them. Seconds and bytes are of one micro-batch."""

    name: str
    forward_s: float
    backward_s: float
    low_s: float  # of both together, 5th and 95th percentile
    high_s: float
    weights: int  # elements
    kept_bytes: int  # from its forward to its backward pass
    workspace_bytes: int  # beyond that, while it runs
    sent_bytes: int  # to the next unit


@dataclass(frozen=True, slots=True)
class Script:
    """A captured script as it will be cut."""

    units: tuple[Unit, ...]
    micro_batches: int  # of the whole job in one step: ranks x those of each
    parameter_bytes: float  # of the whole model
    gradient_bytes: float
    optimizer_bytes: float
    optimizer_s: float  # the update of all of it
    other_s: float  # what every rank does beside passes and update
    sharded: bool  # replicas share the state


def script_of(job: CapturedJob, pricer: OpPricer, step_s: float = 0.0) -> Script:
    """Units of the program that most ranks run. Raises UserError where a script is cut already.

    `step_s`: what the host does between steps.
    """
    program = job.programs[_most_common(job)]
    _whole(job)
    units = _with_weights(program, _unit_of_ops(program))
    order = list(dict.fromkeys(unit for op, unit in zip(program.ops, units, strict=True) if unit and _counts(op)))
    if len(order) < 2:
        raise UserError(f"{job.source or 'the script'} has {len(order)} modules to cut between: a pipeline needs two")
    rounds = 1 + max((op.micro_batch for op in program.ops if op.phase in ("forward", "backward")), default=0)
    sharded = any(_is_call(op, "all_gather") and op.phase == "forward" for op in program.ops)
    times: dict[tuple[str, str], list[float]] = {}
    for op, unit in zip(program.ops, units, strict=True):
        for number, part in enumerate(_seconds(op, pricer)):
            key = (unit, op.phase) if op.phase in ("forward", "backward") else ("", op.phase)
            times.setdefault(key, [0.0] * 4)[number] += part
    weights, sent = _weights(program, units), _sent(program, units, order)
    kept_bytes, workspace = _memory(program, units)
    state = _state(program, job.world_size if sharded else 1)
    script_units = tuple(
        Unit(
            name=name,
            forward_s=_longer(times.get((name, "forward"))) / rounds,
            backward_s=_longer(times.get((name, "backward"))) / rounds,
            low_s=sum(times.get((name, phase), [0.0] * 4)[2] for phase in ("forward", "backward")) / rounds,
            high_s=sum(times.get((name, phase), [0.0] * 4)[3] for phase in ("forward", "backward")) / rounds,
            weights=weights.get(name, 0),
            kept_bytes=kept_bytes.get(name, 0),
            workspace_bytes=workspace.get(name, 0),
            sent_bytes=sent[name],
        )
        for name in order
    )
    return Script(
        units=script_units,
        micro_batches=job.world_size * rounds,
        parameter_bytes=state["parameter"],
        gradient_bytes=state["gradient"],
        optimizer_bytes=state["optimizer"],
        optimizer_s=_longer(times.get(("", "optimizer"))) * (job.world_size if sharded else 1),
        other_s=_longer(times.get(("", "other"))) + step_s,
        sharded=sharded,
    )


def _most_common(job: CapturedJob) -> int:
    ranks = job.runs.tolist()
    return max(job.programs, key=lambda rank: (ranks.count(rank), -rank))


def _whole(job: CapturedJob) -> None:
    """Refuse what is a pipeline already, and what cuts layers over ranks."""
    for program in job.programs.values():
        for op in program.ops:
            call = op.communication
            if call is None or call.is_control:
                continue
            if call.is_message:
                raise UserError(
                    f"{job.source or 'the captured script'} is a pipeline already (rank {program.rank} sends to rank"
                    f" {call.peer}): predict it as it is, or capture the script without its pipeline to have it cut"
                )
            cuts = call.kind in ("all_reduce", "reduce_scatter", "all_to_all") and op.phase == "forward"
            if (cuts and NUMBERED.match(op.module)) or call.kind == "all_to_all":
                raise UserError(
                    f"{job.source or 'the captured script'} cuts its layers over ranks ({call.kind} in {op.module}):"
                    " capture it with data parallelism only to have it cut into stages"
                )


def _is_call(op: Op, kind: str) -> bool:
    return op.communication is not None and op.communication.kind == kind


def _counts(op: Op) -> bool:
    return op.phase == "forward" and op.kind == "compute" and not op.recompute


def _unit_of_ops(program: RankProgram) -> list[str]:
    """The unit of each op; "" before the first and outside of passes."""
    names, last = [], ""
    depth = _root_of(program.ops)
    for op in program.ops:
        name = op.module.removeprefix(depth)
        if op.phase not in ("forward", "backward"):
            names.append("")
            continue
        numbered = NUMBERED.match(name)
        if numbered is not None:
            last = numbered.group()
        elif name and op.module != depth.rstrip("."):
            last = name.split(".")[0]
        names.append(last)
    return names


def _with_weights(program: RankProgram, units: list[str]) -> list[str]:
    """The same, where what reads no weights and has no number (a wrapper, a loss) is part of what is beside it."""
    order = list(dict.fromkeys(unit for op, unit in zip(program.ops, units, strict=True) if unit and _counts(op)))
    weights = _weights(program, units)
    own = [unit for unit in order if weights.get(unit) or NUMBERED.match(unit)]
    if not own:
        return units
    merged, last = {}, own[0]
    for unit in order:
        last = unit if unit in own else last
        merged[unit] = last
    return [merged.get(unit, "" if unit == "" else own[-1]) for unit in units]


def _root_of(ops: Iterable[Op]) -> str:
    """What all module names of layers begin with (`model.` of `model.layers.0`), with its dot; a wrapper's own name."""
    heads = [match.group() for match in (NUMBERED.match(op.module) for op in ops) if match is not None]
    parts = heads[0].split(".") if heads else []
    return ".".join(parts[:-2]) + "." if len(parts) > 2 else ""


def _seconds(op: Op, pricer: OpPricer) -> tuple[float, float, float, float]:
    """Kernel, launch, and the kernel's percentiles. Communication is priced anew for every cut."""
    if op.kind not in ("compute", "copy"):
        return (0.0, 0.0, 0.0, 0.0)
    priced = pricer.price(op)
    if priced is None:
        return (0.0, 0.0, 0.0, 0.0)
    launch = 0.0 if pricer.on_cpu else pricer.compiled_launch_s if op.compiled else pricer.launch_s
    return (priced.price.seconds, launch, priced.price.p5, priced.price.p95)


def _longer(parts: list[float] | None) -> float:
    return 0.0 if parts is None else max(parts[0], parts[1])


def _bytes(spec: TensorSpec) -> int:
    return prod(spec.shape) * ITEM_BYTES.get(spec.dtype, 1)


def _weights(program: RankProgram, units: list[str]) -> dict[str, int]:
    """Elements of the weights that each unit's modules read, each module once."""
    weights: dict[str, int] = {}
    seen: set[tuple[str, str, tuple[tuple[int, ...], ...]]] = set()
    for op, unit in zip(program.ops, units, strict=True):
        places = WEIGHTS.get(plain_name(op), ())
        read = tuple(op.inputs[place].shape for place in places if place < len(op.inputs))
        key = (op.module, plain_name(op), read)
        if op.phase != "forward" or op.recompute or op.micro_batch or not read or key in seen:
            continue
        seen.add(key)
        weights[unit] = weights.get(unit, 0) + sum(prod(shape) for shape in read)
    return weights


def _sent(program: RankProgram, units: list[str], order: list[str]) -> dict[str, int]:
    """What each unit's last forward op made."""
    sizes = dict.fromkeys(order, 0)
    for op, unit in zip(program.ops, units, strict=True):
        if unit and _counts(op) and op.micro_batch == 0 and op.outputs:
            sizes[unit] = _bytes(op.outputs[0])
    return sizes


def _memory(program: RankProgram, units: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Of the first micro-batch: bytes that stay until a backward pass, and the most beside them, by unit."""
    born: dict[int, tuple[int, int, str]] = {}  # storage -> op, bytes, category
    lasts: dict[int, int] = {}
    for event in program.memory:
        if event.bytes > 0 and event.op >= 0:
            born[event.storage] = (event.op, event.bytes, event.category)
        elif event.storage in born:
            lasts.setdefault(event.storage, event.op)
    kept_bytes: dict[str, int] = {}
    changes: dict[str, dict[int, int]] = {}
    for storage, (op, size, category) in born.items():
        end = lasts.get(storage, len(program.ops))
        producer = program.ops[op] if op < len(program.ops) else None
        if producer is None or producer.micro_batch or category in STATE or not units[op]:
            continue
        ends_backward = end >= len(program.ops) or program.ops[end].phase != "forward"
        if producer.phase == "forward" and ends_backward:
            kept_bytes[units[op]] = kept_bytes.get(units[op], 0) + size
        else:
            moves = changes.setdefault(units[op], {})
            moves[op] = moves.get(op, 0) + size
            moves[end] = moves.get(end, 0) - size
    most = {}
    for unit, moves in changes.items():
        level = top = 0
        for _, change in sorted(moves.items()):
            level += change
            top = max(top, level)
        most[unit] = top
    return kept_bytes, most


def _state(program: RankProgram, shards: int) -> dict[str, float]:
    """Bytes of parameters, gradients (at their most) and optimizer of the whole model."""
    level = dict.fromkeys(STATE, 0)
    storages: dict[int, tuple[str, int]] = {}
    for event in program.resident:
        if event.category in level:
            level[event.category] += event.bytes
            storages[event.storage] = (event.category, event.bytes)
    most = dict(level)
    for event in program.memory:
        if event.bytes < 0 and event.storage in storages:
            category, size = storages.pop(event.storage)
            level[category] -= size
        elif event.bytes > 0 and event.category in level:
            storages[event.storage] = (event.category, event.bytes)
            level[event.category] += event.bytes
            most[event.category] = max(most[event.category], level[event.category])
    resident = {name: sum(e.bytes for e in program.resident if e.category == name) for name in STATE}
    return {
        "parameter": float(resident["parameter"] * shards),
        "optimizer": float(resident["optimizer"] * shards),
        "gradient": float(most["gradient"] * shards),
    }
