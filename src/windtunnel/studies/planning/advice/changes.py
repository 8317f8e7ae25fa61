"""Every legal change of one field of a plan, as data: what advice is chosen from.

Each change is laid out by the rules that `predict` has, so none is offered that it would refuse. A few fields take
another with them: the data-parallel degree where it was given, the schedule that virtual stages need. Kinds:

    PLAN      what the plan's framework has
    NUMBERS   another format of numbers: the step is another computation
    OTHERS    `predict` takes it, but the framework is not known to have it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import gcd

from windtunnel.errors import UserError
from windtunnel.studies.planning.oracle import (
    PEAK_DTYPE,
    RECOMPUTE_PARTS,
    SCHEDULES,
    Layout,
    hides_exchange,
    interleaves,
    laid_out,
)
from windtunnel.studies.planning.space.features import HABIT, Features, features_of
from windtunnel.studies.planning.space.plan_space import context_kinds, divisors, micro_batches

PLAN, NUMBERS, OTHERS = "plan", "numbers", "others"
GROUPS_MOST = 12  # sizes of a shard group that are tried
BUCKETS = (0.25, 4.0, 16.0)  # of a message's parameters
SWITCHED = (
    "sequence_parallel", "overlap_grad_reduce", "overlap_param_gather", "overlap_tp", "overlap_p2p", "overlap_ep",
    "cuda_graphs", "compile", "account_for_embedding",
)  # fmt: skip
FORMATS = ("precision", "optimizer_dtype", "gradient_dtype", "fp8_parameters", "fp8_activation_input")
SWITCH_OF = {"overlap_grad_reduce": "overlap_replicas", "overlap_param_gather": "overlap_replicas"}
UNBOUNDED = (*FORMATS, "attention_impl", "bucket_parameters")  # fields that bounds take as fixed


@dataclass(frozen=True, slots=True)
class Change:
    """Fields of a plan with other values, and the layout that they make."""

    fields: Mapping[str, object]
    kind: str
    layout: Layout

    @property
    def bounded(self) -> bool:
        """Whether the bounds of the unchanged plan's prices hold for it."""
        return not any(name in UNBOUNDED for name in self.fields)


def changes_of(base: Layout) -> list[Change]:
    """Each legal change of one field, once; what it leaves as it is, is none."""
    seen = {_key(base)}
    changes = []
    for name, value in _values(base):
        change = change_fields(base, {name: value})
        if change is not None and _key(change.layout) not in seen:
            seen.add(_key(change.layout))
            changes.append(change)
    return changes


def change_fields(base: Layout, fields: Mapping[str, object]) -> Change | None:
    """The plan with these fields, and with what they take with them; None where that cannot be."""
    for extra in ({}, *_companions(base, fields)):
        every = {**fields, **extra}
        free = {"dp": None} if base.user_plan.dp is not None else {}
        try:
            layout = laid_out(base.model, base.cluster, base.user_plan.with_fields({**every, **free}))
        except UserError:
            continue
        if fields.get("overlap_tp") and layout.plan.framework == "megatron" and not layout.plan.sequence_parallel:
            continue  # `validate_args` refuses it
        if base.user_plan.dp is not None and layout.dp != base.user_plan.dp:
            every["dp"] = layout.dp
        return Change(every, _kind(base, layout, fields), layout)
    return None


def flags_of(fields: Mapping[str, object]) -> str:
    """The fields as flags of the command line."""
    words = []
    for name, value in fields.items():
        text = str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else value
        words.append(f"--{name.replace('_', '-')} {text}")
    return " ".join(words)


def _key(layout: Layout) -> tuple[object, ...]:
    return (layout.plan.with_fields({"dp": None, "schedule": None, "etp": None}), layout.schedule, layout.etp)


def _companions(base: Layout, fields: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """What one change needs beside it, least first."""
    plan = base.user_plan
    if fields.get("overlap_tp") and plan.sequence_parallel is False:
        yield {"sequence_parallel": True}
    if fields.get("virtual_stages", 1) != 1 and plan.schedule not in (None, "interleaved"):
        yield {"schedule": "interleaved"}
    if fields.get("virtual_stages") == 1 and plan.schedule == "interleaved":
        yield {"schedule": "1f1b"}
    if plan.virtual_stages > 1 and ("schedule" in fields or "pp" in fields):
        back = {"schedule": "1f1b"} if plan.schedule == "interleaved" and "schedule" not in fields else {}
        yield {"virtual_stages": 1, **back}
    if fields.get("pp") == 1 and plan.schedule not in (None, "1f1b", "gpipe"):
        yield {"schedule": "1f1b", **({"virtual_stages": 1} if plan.virtual_stages > 1 else {})}
    if plan.lora_rank and plan.offload_activations and "recompute" in fields:  # of frozen layers checkpoints alone go
        yield {"offload_activations": 0}
    if plan.lora_rank and fields.get("offload_activations"):
        yield {"recompute": "full"}


def _values(base: Layout) -> Iterator[tuple[str, object]]:
    model, plan, n = base.model, base.plan, base.cluster.n_gpus
    degrees = divisors(n)
    heads = experts = 0
    for layer, _ in model.distinct_layers():
        heads = gcd(heads, layer.attention.heads)
        if layer.feed_forward.kind == "moe":
            experts = gcd(experts, layer.feed_forward.experts)
    yield from product(("tp",), (tp for tp in degrees if heads % tp == 0))
    if plan.layers_per_stage is None:
        yield from product(("pp",), (pp for pp in degrees if pp <= model.n_layers + 2))
        if plan.pp > 1:
            yield from product(("virtual_stages",), range(1, (model.n_layers + 2) // plan.pp + 1))
    yield from product(("cp",), (cp for cp in degrees if cp == 1 or plan.seq_len % (2 * cp) == 0))
    if plan.cp > 1:
        yield from product(("cp_kind",), ("ring", "ulysses"))
    if experts:
        yield from product(("ep",), divisors(experts))
        yield from product(("etp",), sorted({1, 2, 4, 8, plan.tp}))
    if plan.pp > 1:
        yield from product(("schedule",), SCHEDULES)
    sequences = plan.global_batch // base.dp
    yield from product(("micro_batch",), micro_batches(sequences, max(1, plan.seq_len // plan.cp)))
    yield from _savings(base, experts > 0)
    for name in SWITCHED:
        yield name, not getattr(plan, name)
    yield "attention_impl", "flash"
    for part in BUCKETS:
        yield "bucket_parameters", max(1, int(base.message_parameters * part))
    yield from _formats(base)


def _savings(base: Layout, mixture: bool) -> Iterator[tuple[str, object]]:
    plan = base.plan
    yield from product(("zero_stage",), (0, 1, 2, 3))
    if plan.zero_stage:
        groups = divisors(base.dp * plan.cp)
        near = sorted(groups, key=lambda size: (abs(size - base.cluster.gpus_in_domain / plan.tp), size))
        yield from product(("shard_group",), sorted(near[:GROUPS_MOST]))
    parts = [part for part in RECOMPUTE_PARTS if mixture or part not in ("moe", "shared_experts", "moe_activation")]
    sets = [*parts, "activation,norms", "core_attention,activation", "core_attention,activation,norms"]
    sets += ["moe_activation,norms", "core_attention,moe_activation"] if mixture else []
    most = max(len(layers) for layers in base.virtual_layers)
    some = sorted({1, most // 4, most // 2, 3 * most // 4, most - 1} - {0, most})
    yield from product(("recompute",), ("none", *(f"selective:{selection}" for selection in sets)))
    yield from product(("recompute",), (*(f"full:{count}" for count in some), "full"))
    yield from product(("offload_optimizer",), (0.0, 0.5, 1.0))
    stage_layers = max(1, base.model.n_layers // plan.pp)
    yield from product(("offload_activations",), sorted({0, stage_layers // 4, stage_layers // 2, stage_layers}))


def _formats(base: Layout) -> Iterator[tuple[str, object]]:
    plan, gpu = base.plan, base.cluster.gpu
    yield from product(
        ("precision",),
        (precision for precision in ("bf16", "fp8", "mxfp8") if gpu.supports(PEAK_DTYPE.get(precision, precision))),
    )
    yield "optimizer_dtype", "bf16"
    yield "gradient_dtype", "bf16"
    if plan.precision in PEAK_DTYPE:
        yield "fp8_parameters", True
        yield "fp8_activation_input", True


def _kind(base: Layout, layout: Layout, fields: Mapping[str, object]) -> str:
    if any(name in FORMATS for name in fields):
        return NUMBERS
    plan = layout.plan
    has = features_of(plan.framework, plan.release, plan.optimizer == "muon", plan.precision == "mxfp8")
    return PLAN if all(_has(has, base, layout, name) for name in fields) else OTHERS


def _has(has: Features, base: Layout, layout: Layout, name: str) -> bool:
    """Whether the framework has the value that a field now holds."""
    plan, value = layout.plan, getattr(layout.plan, name)
    around = name in ("overlap_ep", "pp", "virtual_stages", "schedule", "recompute")
    if around and plan.overlap_ep and not hides_exchange(plan.pp, plan.virtual_stages, plan.recompute):
        return False
    if name == "tp":
        return has.tensor or value == 1
    if name == "ep":
        return has.experts or value == 1
    if name == "etp":
        return value == 1 or (has.experts and (value == plan.tp or has.folds))
    if name in ("cp", "cp_kind"):
        return plan.cp == 1 or plan.cp_kind in context_kinds(layout.model, has, plan.tp, plan.cp)
    if name in ("schedule", "virtual_stages", "pp"):
        if plan.pp == 1:
            return True
        if layout.schedule != "interleaved":
            return layout.schedule in has.schedules or (name == "pp" and layout.schedule == base.schedule)
        if plan.framework == "megatron" and not interleaves(plan.pp, layout.user_plan.overlap_p2p):
            return False
        stages, layers = plan.pp * plan.virtual_stages, layout.model.n_layers
        return has.interleaves and (layers % stages == 0 or (layers + 2) % stages == 0)
    if name == "zero_stage":
        return value in has.sharding(pipelined=plan.pp > 1)
    if name == "shard_group":
        return has.hsdp
    if name == "recompute":
        mixture = any(layer.feed_forward.kind == "moe" for layer, _ in layout.model.distinct_layers())
        return value in ("none", "full", *has.parts(mixture=mixture)) or (has.some_layers and value.startswith("full:"))
    if name == "cuda_graphs" and value:
        dense = all(layer.feed_forward.kind != "moe" for layer, _ in layout.model.distinct_layers())
        return True in has.cuda_graphs and dense and not plan.recompute.startswith("full")
    if name in SWITCHED:
        offered = getattr(has, SWITCH_OF.get(name, name), HABIT)
        by_habit = laid_out(layout.model, layout.cluster, layout.user_plan.with_fields({name: None})).plan
        return value in offered or value == getattr(by_habit, name)
    return True
