"""The space of plans as data: which values each open field of a plan may take for a model, a cluster and a framework.

Three levels, from what shapes the passes of a step to what hardly changes them:

    structure   tp, cp, ep, etp, pp, virtual stages, schedule, layers of each stage, micro-batch, sequence parallelism,
                compilation
    saving      ZeRO stage and shard group, recomputation: memory against time
    switches    what overlaps, how kernels are launched: time only, the tensors are the same

A field that was given has that one value. Structures are generated from divisors and kept if `resolve` and the schedule
take them; savings and switches never make a legal structure illegal, so plans are counted without being built.

What frameworks have is in `fields/features.py`. Unless they are given, precision, optimizer and formats follow the
framework's habit; so do switches that no recipe of it turns off (overlap of gradients and parameters, sequence
parallelism in Megatron-Core); and nothing goes to the host: what a host's memory allows is not checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import product
from math import gcd, prod
from typing import Any

from windtunnel.errors import UserError
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.hardware.mixed import MixedCluster
from windtunnel.physics.model import Model
from windtunnel.studies.planning.oracle import (
    Layout,
    Plan,
    check_lies_on_one,
    hides_exchange,
    interleaves,
    laid_out,
    stages_of,
)
from windtunnel.studies.planning.space.features import HABIT, Features, features_of
from windtunnel.studies.planning.space.pipelines import Pipeline, pipelines

STRUCTURE = (
    "tp", "cp", "cp_kind", "ep", "etp", "pp", "virtual_stages", "schedule", "layers_per_stage", "micro_batch",
    "sequence_parallel", "compile",
)  # fmt: skip
PIPELINE = ("virtual_stages", "schedule", "layers_per_stage")  # of these
SAVINGS = ("zero_stage", "shard_group", "recompute", "offload_optimizer", "offload_activations")
SWITCHES = ("overlap_tp", "overlap_grad_reduce", "overlap_param_gather", "overlap_p2p", "overlap_ep", "cuda_graphs")

FLAT_MOST = 100_000  # structures that are listed one by one
TOKENS_MOST = 2**15  # of one pass on one rank: kernels are long saturated, and nothing is gained by larger ones


@dataclass(frozen=True, eq=False)
class Space:
    """What is asked: a model, a cluster, and the fields of the plan that are given."""

    model: Model
    cluster: Cluster
    fixed: Mapping[str, Any]
    counts: dict[tuple[object, ...], int] = field(default_factory=dict)
    pipelines: dict[object, int] = field(default_factory=dict)  # layers of the largest stage; 0: not legal
    mixed: MixedCluster | None = None  # what `cluster` stands for, where it is of several types
    by_stage: bool = False  # then stages follow the types; else every replica lies on one

    @property
    def framework(self) -> str:
        """Whose features the space has."""
        return str(self.fixed.get("framework", "megatron"))

    @property
    def features(self) -> Features:
        """Of that framework, in the release and with the optimizer and the format that are given."""
        release, muon = self.fixed.get("release"), self.fixed.get("optimizer") == "muon"
        return features_of(self.framework, release, muon, self.fixed.get("precision") == "mxfp8")

    def values(self, name: str, open_values: tuple[object, ...]) -> tuple[Any, ...]:
        """The values of one field: the given one, or those of an open one."""
        return (self.fixed[name],) if self.fixed.get(name) is not None else open_values

    @cached_property
    def mixture(self) -> bool:
        """Whether the model has experts."""
        return any(layer.feed_forward.kind == "moe" for layer in self.model.layers)


def divisors(number: int) -> tuple[int, ...]:
    """All of them, rising."""
    small = [divisor for divisor in range(1, int(number**0.5) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))


@dataclass(frozen=True, slots=True)
class Family:
    """Structures with one schedule that differ in how layers lie on stages only. `layout` is that of one of them."""

    layout: Layout
    pipelines: tuple[Pipeline, ...]  # all are legal; the layout's comes first
    largest: tuple[int, ...]  # layers of the largest virtual stage of each pipeline


def structures(space: Space) -> Iterator[Layout]:
    """Every legal structure, laid out; savings and switches at what is given, else at the framework's habit."""
    for family in families(space):
        yield from members(space, family)


def families(space: Space) -> Iterator[Family]:
    """Every legal structure, by family in a large space: bounding thousands one by one takes too long.

    Those come first that recipes choose: tensor parallelism inside a scale-up domain, no context parallelism.
    """
    base = Plan(**{**_read(space.fixed), "micro_batch": space.fixed.get("micro_batch") or 1})
    shapes = list(_shapes(space))
    large = sum(prod(map(len, options.values())) * len(ways) for _, options, ways in shapes) > FLAT_MOST
    shapes.sort(key=lambda shape: (shape[0]["tp"] > space.cluster.gpus_in_domain, shape[0]["cp"]))
    for fields, ways in _candidates(shapes):
        together = [[each for each in ways if each[1] == name] for name in dict.fromkeys(name for _, name, _ in ways)]
        for several in together if large else [[each] for each in ways]:
            family = _family(space, base, fields, several)
            if family is not None:
                yield family


def members(space: Space, family: Family) -> Iterator[Layout]:
    """The structures of a family, laid out."""
    for pipeline in family.pipelines:
        if pipeline == family.pipelines[0]:
            yield family.layout
        else:
            yield laid_out(space.model, space.cluster, family.layout.user_plan.with_fields(_pipeline_fields(pipeline)))


def _family(space: Space, base: Plan, fields: Mapping[str, Any], pipelines: Sequence[Pipeline]) -> Family | None:
    """A pipeline is legal for all that have its depth and its number of micro-batches, or for none of them."""
    replicas = space.cluster.n_gpus // (fields["tp"] * fields["pp"] * fields["cp"])
    shape = fields["pp"], space.fixed["global_batch"] // (replicas * fields["micro_batch"])
    remembered = space.pipelines if space.mixed is None else {}
    first: Layout | None = None
    refused: list[Pipeline] = []
    legal: list[Pipeline] = []
    largest: list[int] = []
    for pipeline in pipelines:
        most = remembered.get((shape, pipeline))
        if most == 0 or (most and first is not None):
            if most:
                legal.append(pipeline)
                largest.append(most)
            continue
        layout = _legal(space, base.with_fields({**fields, **_pipeline_fields(pipeline)}))
        if layout is None:
            refused.append(pipeline)
            continue
        first = first or layout
        most = remembered[shape, pipeline] = max(map(len, layout.virtual_layers))
        legal.append(pipeline)
        largest.append(most)
    if first is None:
        return None
    remembered.update({(shape, pipeline): 0 for pipeline in refused})
    return Family(first, tuple(legal), tuple(largest))


def _pipeline_fields(pipeline: Pipeline) -> dict[str, object]:
    return dict(zip(PIPELINE, pipeline, strict=True))


def _legal(space: Space, plan: Plan) -> Layout | None:
    try:
        layout = laid_out(space.model, space.cluster, plan)
        if space.mixed is not None:
            _check_placed(space, layout)
    except UserError:
        return None
    return layout


def _check_placed(space: Space, layout: Layout) -> None:
    """Raise UserError where a plan cannot lie on the types of a cluster as the space wants it."""
    assert space.mixed is not None
    if not space.by_stage:
        check_lies_on_one(layout, space.mixed)
        return
    stages_of(layout, space.mixed)
    for other in space.mixed.clusters_on_own_network()[1:]:
        laid_out(space.model, other, layout.user_plan)


def first_refusal(space: Space) -> UserError | None:
    """Why the first structure that was refused was refused, or the fields that are given alone; None if neither was."""
    base = Plan(**{**_read(space.fixed), "micro_batch": space.fixed.get("micro_batch") or 1})
    for fields, ways in _candidates(_shapes(space)):
        for pipeline in ways:
            try:
                layout = laid_out(
                    space.model, space.cluster, base.with_fields({**fields, **_pipeline_fields(pipeline)})
                )
                if space.mixed is not None:
                    _check_placed(space, layout)
            except UserError as error:
                return error
    try:  # the degrees that are given may not go into the GPUs
        laid_out(space.model, space.cluster, base)
    except UserError as error:
        return error
    return None


def _read(entry: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if value is not None}


Shape = tuple[dict[str, int], dict[str, tuple[object, ...]], tuple[Pipeline, ...]]


def _candidates(shapes: Iterable[Shape]) -> Iterator[tuple[dict[str, object], tuple[Pipeline, ...]]]:
    """Fields of structures but how layers lie on stages, and all that this may be."""
    for degrees, options, ways in shapes:
        for chosen in product(*options.values()):
            yield {**degrees, **dict(zip(options, chosen, strict=True))}, ways


def _shapes(space: Space) -> Iterator[Shape]:
    """tp, pp and cp; the values of the other fields with these; pipelines."""
    model, n, has = space.model, space.cluster.n_gpus, space.features
    heads = 0
    for layer in model.layers:
        heads = gcd(heads, layer.attention.heads)
    batch, length = space.fixed["global_batch"], space.fixed["seq_len"]
    degrees = divisors(n)
    tensor = [tp for tp in degrees if heads % tp == 0] if has.tensor else [1]
    stages = [pp for pp in degrees if pp <= model.n_layers + 2]
    contexts = [cp for cp in degrees if length % (2 * cp) == 0 or cp == 1] if has.cp_kinds else [1]
    # Megatron-Core takes experts with tensor parallelism only where sequences are sharded too.
    sequence_parallel = HABIT if space.mixture else has.sequence_parallel
    experts = divisors(shared_experts(model)) if space.mixture and has.experts else (1,)
    types = space.mixed if space.by_stage else None
    for tp, pp, cp in product(space.values("tp", tuple(tensor)), space.values("pp", tuple(stages)),
                              space.values("cp", tuple(contexts))):  # fmt: skip
        if n % (tp * pp * cp):
            continue
        dp = n // (tp * pp * cp)
        if batch % dp or (space.fixed.get("dp") or dp) != dp:
            continue
        parts = micro_batches(batch // dp, length // cp)
        options = {
            "cp_kind": space.values("cp_kind", context_kinds(model, has, tp, cp)),
            "ep": space.values("ep", tuple(ep for ep in experts if (tp * cp * dp if has.folds else dp) % ep == 0)),
            "etp": space.values("etp", expert_degrees(tp, folds=has.folds) if space.mixture else HABIT),
            "micro_batch": space.values("micro_batch", parts if pp > 1 or has.accumulates else (batch // dp,)),
            "sequence_parallel": space.values("sequence_parallel", sequence_parallel if tp > 1 else HABIT),
            "compile": space.values("compile", has.compile),
        }
        ways = pipelines(_interleaving(space, pp), space.fixed, model.n_layers, pp, types)
        yield {"tp": tp, "pp": pp, "cp": cp}, options, ways


def _interleaving(space: Space, pp: int) -> Features:
    """What the framework has for a pipeline of so many ranks."""
    refused = space.framework == "megatron" and not interleaves(pp, space.fixed.get("overlap_p2p"))
    return replace(space.features, interleaves=False) if refused else space.features


def expert_degrees(tp: int, *, folds: bool) -> tuple[int, ...]:
    """Tensor-parallel degrees inside experts."""
    return (1, tp) if folds and tp > 1 else (tp,)


def context_kinds(model: Model, has: Features, tp: int, cp: int) -> tuple[str, ...]:
    """How a framework may share a context: Transformer Engine exchanges whole key/value heads (asserted there)."""
    if cp == 1:
        return ("ring",)
    whole = all(max(1, layer.attention.kv_heads // tp) % cp == 0 for layer, _ in model.distinct_layers())
    return tuple(kind for kind in has.cp_kinds if kind == "ring" or whole)


def micro_batches(sequences: int, tokens: int) -> tuple[int, ...]:
    """Sizes of a micro-batch: divisors of a replica's sequences, of `tokens` tokens each."""
    return tuple(size for size in divisors(sequences) if size == 1 or size * tokens <= TOKENS_MOST)


def shared_experts(model: Model) -> int:
    """What the counts of experts of all its layers have in common."""
    common = 0
    for layer in model.layers:
        if layer.feed_forward.kind == "moe":
            common = gcd(common, layer.feed_forward.experts)
    return common


def savings(space: Space, layout: Layout, largest: int | None = None) -> tuple[dict[str, object], ...]:
    """What a structure may do to save memory. `largest`: layers of its largest virtual stage, if not the layout's."""
    plan = layout.plan
    most = largest or max(len(layers) for layers in layout.virtual_layers)
    replicas = layout.dp * plan.cp
    near = max(1, layout.cluster.gpus_in_domain // plan.tp)
    constraints = tuple((name, space.fixed[name]) for name in SAVINGS if space.fixed.get(name) is not None)
    return _savings(space.features, space.mixture, plan.pp > 1, most, replicas, near, constraints)


@lru_cache(maxsize=4096)
def _savings(
    has: Features, mixture: bool, pipelined: bool, most: int, replicas: int, near: int,
    constraints: tuple[tuple[str, Any], ...],
) -> tuple[dict[str, object], ...]:  # fmt: skip
    values = dict(constraints)
    stages = (values["zero_stage"],) if "zero_stage" in values else has.sharding(pipelined=pipelined)
    if replicas == 1 and "zero_stage" not in values:
        stages = stages[:1]
    recomputes: list[str] = ["none", *has.parts(mixture=mixture)]
    if has.some_layers:
        recomputes += [f"full:{count}" for count in sorted({most // 4, most // 2, 3 * most // 4} - {0, most})]
    recomputes.append("full")
    if "recompute" in values:
        recomputes = [values["recompute"]]
    options = []
    for zero, recompute in product(stages, recomputes):
        groups: tuple[int | None, ...] = (None,)
        if "shard_group" in values:
            groups = (values["shard_group"],)
        elif has.hsdp and zero and near < replicas and replicas % near == 0 and near > 1:
            groups = (None, near)
        for group in groups:
            saving = {"zero_stage": zero, "recompute": recompute}
            saving |= {name: values[name] for name in ("offload_optimizer", "offload_activations") if name in values}
            options.append(saving | ({"shard_group": group} if group is not None else {}))
    return tuple(options)


def switches(space: Space, layout: Layout, saving: Mapping[str, Any]) -> dict[str, tuple[object, ...]]:
    """The values of every switch that does anything for a structure with a saving; the best guess first."""
    plan, has = layout.plan, space.features
    replicas = layout.dp * plan.cp > 1
    hidden = hides_exchange(plan.pp, plan.virtual_stages, saving["recompute"])
    graphs = not space.mixture and not saving["recompute"].startswith("full")  # what graphs can hold in Megatron-Core
    open_values = {
        "overlap_tp": has.overlap_tp if plan.tp > 1 and (plan.compile or not has.overlap_tp_compiled) else HABIT,
        "overlap_grad_reduce": has.overlap_replicas if replicas else HABIT,
        "overlap_param_gather": has.overlap_replicas if replicas and saving["zero_stage"] else HABIT,
        "overlap_p2p": has.overlap_p2p if plan.pp > 1 and plan.virtual_stages > 1 else HABIT,
        "overlap_ep": has.overlap_ep if plan.ep > 1 and hidden else HABIT,
        "cuda_graphs": has.cuda_graphs if graphs else HABIT,
    }
    return {name: space.values(name, values) for name, values in open_values.items()}


def count(space: Space, layout: Layout, largest: int | None = None) -> int:
    """How many plans a structure stands for. `largest`: as `savings`."""
    plan = layout.plan
    most = largest or max(len(layers) for layers in layout.virtual_layers)
    shape = (plan.tp, plan.pp > 1, plan.virtual_stages > 1, plan.ep > 1, layout.dp * plan.cp, most, plan.compile)
    number = space.counts.get(shape)
    if number is None:
        several = savings(space, layout, most)
        number = space.counts[shape] = sum(leaves(space, layout, saving) for saving in several)
    return number


def leaves(space: Space, layout: Layout, saving: Mapping[str, object]) -> int:
    """How many plans a structure with a saving stands for."""
    return prod(len(values) for values in switches(space, layout, saving).values())
