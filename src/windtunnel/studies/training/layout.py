"""Layout: a Plan with every blank filled and every degree checked against the model and the cluster.

Ranks are ordered as Megatron-Core orders them: tensor fastest, then context, data and pipeline slowest; expert groups
are laid over tensor x context x data with expert-tensor fastest, then expert, then expert-data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from windtunnel.errors import LayoutError, SpecError
from windtunnel.physics.cost.communication.collectives import Group, group_of
from windtunnel.physics.cost.training import software
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.model import Model
from windtunnel.questions.asked.parts.plan import ExpertsImpl
from windtunnel.studies.training.framework import HABITS, PURE, Habits, check_plain
from windtunnel.studies.training.layout_checks import (
    check_adapters,
    check_images,
    check_model,
    check_precision,
    check_schedule,
    check_size,
    data_parallel,
)
from windtunnel.studies.training.plan import PARAMETER_FORMATS, PEAK_DTYPE, Plan
from windtunnel.studies.training.schedules import TRAITS, Schedule, equal_groups, schedule

# Fields of a plan that no pass over a model piece sees, with the values that stand for all of theirs.
_OUTSIDE_PASSES: dict[str, object] = {
    "pp": 1,
    "dp": None,
    "virtual_stages": 1,
    "micro_batch_group": None,
    "layers_per_stage": None,
    "account_for_embedding": None,
    "schedule": None,
    "shard_group": None,
    "global_batch": 1,
    "optimizer": "adam",
    "optimizer_dtype": "fp32",
    "offload_optimizer": 0.0,
    "overlap_p2p": None,
    "bucket_parameters": None,
    "task": "train",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """The plan as it will run. `plan` holds no None where a framework has a habit; `asked` is what the user said."""

    model: Model
    cluster: Cluster
    user_plan: Plan
    plan: Plan
    habits: Habits
    dp: int
    etp: int
    micro_batches: int
    schedule: str
    shard_group: int  # ranks that share one copy of what ZeRO shards
    replicas: int  # copies of that (HSDP); dp x cp / shard_group
    vocab_padded: int
    virtual_layers: tuple[tuple[int, ...], ...]  # layer numbers of each virtual stage
    filled: Mapping[str, object] = field(hash=False)  # what the plan left open

    @property
    def defaults(self) -> tuple[str, ...]:
        """What was filled in, one entry each: the framework, then every habit that makes a difference to this plan."""
        experts = any(layer.feed_forward.kind == "moe" for layer, _ in self.model.distinct_layers())
        entries = _filled_in(self.habits, self.filled, self.user_plan, self.schedule, self.etp if experts else None)
        return (
            (*entries, f"{self.predicts_ahead} layer of multi-token prediction trained")
            if self.predicts_ahead
            else entries
        )

    @property
    def tokens_per_rank(self) -> int:
        """Tokens of one micro-batch on one context-parallel rank."""
        return self.plan.micro_batch * self.plan.seq_len // self.plan.cp

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over the whole job."""
        return self.plan.global_batch * self.plan.seq_len

    @property
    def message_parameters(self) -> float:
        """Parameters in one gradient or parameter message, as the plan or its framework cuts them."""
        habit = max(self.habits.message_parameters, self.habits.message_per_replica * self.dp * self.plan.cp)
        if not self.plan.zero_stage and self.habits.message_whole_parameters:
            habit = self.habits.message_whole_parameters
        return float(self.plan.bucket_parameters or habit)

    @property
    def zero_stage(self) -> int:
        """Of the plan, whose blanks are filled here."""
        return self.plan.zero_stage or 0

    @property
    def gradient_bytes(self) -> float:
        """Of one gradient, as it is kept and reduced."""
        return 4.0 if self.plan.gradient_dtype == "fp32" else 2.0

    @property
    def kept_gradient_bytes(self) -> float:
        """Of one that was reduced: FSDP hands it on in its parameter's format (`foreach_reduce`, `orig_dtype`)."""
        by_fsdp = self.plan.framework in ("torchtitan", "fsdp") and self.reduces_in_passes
        return 2.0 if by_fsdp and self.plan.master_dtype == "bf16" else self.gradient_bytes

    @property
    def sums_norms(self) -> bool:
        """Whether tensor-parallel ranks have gradients of norms, each from its own tokens, to sum up."""
        return bool(self.plan.sequence_parallel) and self.plan.tp > 1 and not self.plan.freezes_text

    @property
    def shares_once(self) -> bool:
        """Whether shards are gathered and gradients reduced once in a step: `lowering/shards/pipelined_shards.py`."""
        return self.plan.pp > 1 and self.zero_stage in self.habits.pipeline_shares_once

    @property
    def late_members(self) -> bool:
        """Whether ranks are late at tensor-parallel collectives: the pipeline sends across scale-up domains."""
        far = self.plan.pp > 1 and self.cluster.n_gpus > self.cluster.scale_up_domain
        return far and self.habits.late_beside_pipeline

    @property
    def holds_low_precision(self) -> bool:
        """Whether parameters are kept in the GEMMs' format only."""
        choice = self.user_plan.fp8_parameters
        return self.habits.own_low_precision and self.plan.precision in PARAMETER_FORMATS if choice is None else choice

    @property
    def casts_weights(self) -> bool:
        """Whether passes quantise the weights that they read; elsewhere copies are made once in a step.

        They do so where they gather them, and in PyTorch's loops: nobody tells them that weights are still the same.
        """
        anew = self.plan.framework == "fsdp" and self.plan.precision in PEAK_DTYPE
        return (self._gathers_low or anew) and not self.holds_low_precision

    @property
    def predicts_ahead(self) -> int:
        """Layers of multi-token prediction that are trained: Megatron-Core has them, adapters learn without."""
        return self.model.mtp_layers if self.plan.framework == "megatron" and not self.plan.freezes_text else 0

    @property
    def deduplicates(self) -> bool:
        """Whether expert dispatch sends a token once to each rank that has experts for it."""
        dispatcher = self.plan.dispatcher
        own = dispatcher != "alltoall" if dispatcher else software(self.plan.release).deduplicates
        return self.habits.deduplicates if own is None else own

    @property
    def sends_choices(self) -> bool:
        """Whether it is known that NCCL's all-to-all takes each token to its experts, once for every choice."""
        dispatcher = self.plan.dispatcher
        return dispatcher == "alltoall" if dispatcher else self.habits.deduplicates is False and not self.deduplicates

    @property
    def hybrid_dispatch(self) -> bool:
        """Whether experts' tokens go by HybridEP, as in Megatron's recipes on Blackwell."""
        if self.plan.dispatcher:
            return self.plan.dispatcher == "hybridep"
        generation = self.cluster.gpu.generation
        return self.deduplicates and self.plan.framework == "megatron" and generation.startswith("blackwell")

    @property
    def experts_impl(self) -> ExpertsImpl:
        """How the products of a GPU's experts are launched."""
        return self.plan.experts_impl or software(self.plan.release).experts_impl or self.habits.experts_impl

    @property
    def fused_optimizer(self) -> bool:
        """Whether one kernel updates parameters and moments, not a pass over them for each term."""
        own = software(self.plan.release).fused_optimizer
        return self.habits.fused_optimizer if own is None else own

    @property
    def widens_weights(self) -> bool:
        """Whether passes make 16-bit weights of frozen ones that are kept in fewer bits."""
        return self.plan.lora_rank > 0 and self.plan.frozen_dtype != "bf16"

    @property
    def transposes_weights(self) -> bool:
        """Whether backward passes transpose the fp8 weights that they gather, as Hopper's GEMMs read one layout only.

        Recipes with Megatron-FSDP keep no transposed copy (Megatron-Bridge, `keep_fp8_transpose_cache = False`).
        """
        plain = self.plan.precision in ("fp8", "fp8-current")
        one_layout = not self.cluster.gpu.generation.startswith("blackwell")
        return self._gathers_low and self.holds_low_precision and plain and one_layout

    @property
    def _gathers_low(self) -> bool:
        return self.gathers_in_passes and self.shard_group > 1 and self.plan.precision in PEAK_DTYPE

    @property
    def gathers_in_passes(self) -> bool:
        """Whether every pass gathers the parameters that it needs."""
        return self.zero_stage == 3 and not self.shares_once

    @property
    def reduces_in_passes(self) -> bool:
        """Whether every backward pass reduces the gradients that it makes."""
        return self.zero_stage >= 2 and not self.shares_once

    @property
    def pass_key(self) -> tuple[object, ...]:
        """What the passes over model pieces depend on, the model apart.

        Not how many stages, replicas or micro-batches there are, nor what happens between passes: so plans that differ
        only in those share their passes.
        """
        changes: dict[str, object] = dict(_OUTSIDE_PASSES)
        inside = self.gathers_in_passes or self.reduces_in_passes
        if not inside:
            changes |= {"zero_stage": 0, "overlap_grad_reduce": None, "overlap_param_gather": None}
        plan = self.plan.with_fields(changes)
        links = replace(self.cluster, n_gpus=self.cluster.gpus_per_node, name="")
        sharded = (self.shard_group, self.replicas, self.dp, self.holds_low_precision) if inside else ()
        placed = tuple(self.group(name) for name in ("tp", "cp", "ep", "etp"))
        beside = (TRAITS[self.schedule].hides_dispatch, self.late_members)
        return (plan, links, self.etp, self.vocab_padded, self.shares_once, sharded, placed, beside)

    def schedule_table(self) -> Schedule:
        """The actions of its pipeline schedule."""
        plan = self.plan
        return schedule(self.schedule, plan.pp, self.micro_batches, plan.virtual_stages, plan.micro_batch_group)

    def group(self, name: str) -> Group:
        """Who takes part in a collective of the named kind (see the module docstring for the order of ranks)."""
        return group_of(*self._ranks(name), self.cluster)

    def _ranks(self, name: str) -> tuple[int, int]:
        """How many ranks the group has, and how far apart they are. Asked a thousand times for each step."""
        plan = self.plan
        if name == "tp":
            return plan.tp, 1
        if name == "cp":
            return plan.cp, plan.tp
        if name == "dp":
            return self.shard_group, plan.tp
        if name == "replica":
            return self.replicas, plan.tp * self.shard_group
        dense = plan.tp * plan.cp * self.dp
        if name == "pp":
            return (2 if plan.pp > 1 else 1), dense
        if name == "pp far":
            return 2, max(dense, self.cluster.scale_up_domain)
        if name == "ep":
            return plan.ep, self.etp
        if name == "etp":
            return self.etp, 1
        if name == "edp":
            return max(1, dense // (plan.ep * self.etp)), plan.ep * self.etp
        assert name == "world", name
        return self.cluster.n_gpus, 1


_SHARED = ("zero_stage", "overlap_grad_reduce", "overlap_param_gather")  # habits that need somebody to share with


def resolve(model: Model, cluster: Cluster, plan: Plan) -> Layout:
    """Fill the blanks of a plan and check it. Raises LayoutError or SpecError on what cannot run anywhere."""
    if not model.layers:
        raise SpecError("layers", 0, "the model needs at least one layer")
    original, habits = plan, HABITS[plan.framework]
    changes = _filled(plan, habits)
    if habits.pure_precision:
        changes |= _pure(plan)
    plan = plan.with_fields({"optimizer_dtype": plan.moments_dtype, **changes})
    dp = data_parallel(plan, cluster)
    experts = any(layer.feed_forward.kind == "moe" for layer, _ in model.distinct_layers())
    etp = plan.etp or (plan.tp if experts and (plan.ep == 1 or habits.expert_tensor_parallel) else 1)
    check_model(plan, model, etp, dp, experts)
    check_precision(plan, cluster)
    check_adapters(plan)
    check_images(plan, model)
    if dp * plan.cp == 1 and (not experts or plan.tp <= plan.ep * etp):
        plan = plan.with_fields({"zero_stage": 0, "shard_group": None})  # there is nobody to shard with
        changes = {name: value for name, value in changes.items() if name not in _SHARED}
    micro_batches = _micro_batches(plan, dp)
    schedule = plan.schedule or ("interleaved" if plan.virtual_stages > 1 else "1f1b")
    check_schedule(schedule, plan, micro_batches)
    if schedule == "interleaved" and plan.micro_batch_group is None and habits.equal_groups:
        group = equal_groups(plan.pp, micro_batches)
        if micro_batches % group:
            rounds = micro_batches // plan.pp
            raise LayoutError(
                f"{micro_batches} micro-batches over {plan.pp} stages are no {rounds} equal groups",
                f"make the micro-batches a multiple of {rounds}, or set micro_batch_group",
            )
        if group != plan.pp:
            changes |= {"micro_batch_group": group}
            plan = plan.with_fields({"micro_batch_group": group})
    check_size(plan, model, cluster, micro_batches)
    if (plan.recompute_layers or 0) > len(model.layers):
        remedy = f"the model has {len(model.layers)} layers: use full, or full:N with fewer"
        raise SpecError("recompute", plan.recompute, remedy)
    sharded = plan.zero_stage or 0
    if plan.shard_group is not None and not sharded:
        raise LayoutError(
            f"shard_group = {plan.shard_group} with zero_stage 0 shards nothing",
            "use zero_stage 1 to 3, or leave it out",
        )
    shard_group = plan.shard_group or dp * plan.cp
    if (dp * plan.cp) % shard_group:
        raise LayoutError(
            f"shard_group = {shard_group} does not divide dp x cp = {dp * plan.cp}", "use a divisor, or leave it out"
        )
    unit = habits.vocabulary_unit * plan.tp
    # Length of the chain of model pieces: V-shaped schedules hold two per rank, DualPipe each piece twice.
    stages = plan.pp * (2 if TRAITS[schedule].turns else plan.virtual_stages)
    return Layout(
        model=model,
        cluster=cluster,
        user_plan=original,
        plan=plan,
        habits=habits,
        dp=dp,
        etp=etp,
        micro_batches=micro_batches,
        schedule=schedule,
        shard_group=shard_group,
        replicas=dp * plan.cp // shard_group,
        vocab_padded=-(-model.vocab_size // unit) * unit,
        virtual_layers=_dealt(model.n_layers, stages, plan.pp, plan.layers_per_stage, bool(plan.account_for_embedding)),
        filled=changes,
    )


def _filled(plan: Plan, habits: Habits) -> dict[str, object]:
    """Values of the fields that the plan leaves open."""
    many = plan.tp > 1
    zero_stage = habits.zero_stage if plan.zero_stage is None else plan.zero_stage
    own = software(plan.release)
    # Whether replicas may overlap what they share.
    shared = own.overlap_gradients and (plan.optimizer != "muon" or habits.overlaps_muon)
    wanted: dict[str, object] = {
        "sequence_parallel": habits.sequence_parallel and many,
        "zero_stage": habits.zero_stage,
        "gradient_dtype": (own.gradient_dtype if plan.precision != "fp16" else "") or habits.gradient_dtype,
        "overlap_grad_reduce": shared and (habits.overlap_sharded_reduce if zero_stage else habits.overlap_grad_reduce),
        "overlap_param_gather": shared and habits.overlap_param_gather,
        "overlap_tp": habits.overlap_tp and many,
        "overlap_tp_backward": habits.overlap_tp_backward and many,
        "overlap_p2p": habits.overlap_p2p_interleaved and plan.virtual_stages > 1 and own.overlap_p2p,
        # DualPipe is there to run one micro-batch's dispatch under another's computation (DeepSeek-V3, 3.2.1).
        "overlap_ep": plan.schedule is not None and plan.schedule in TRAITS and TRAITS[plan.schedule].hides_dispatch,
        "cuda_graphs": False,
        "compile": habits.compile,
        "fp8_parameters": habits.own_low_precision and own.fp8_gather and plan.precision in PARAMETER_FORMATS,
        "account_for_embedding": False,
    }
    return {field: value for field, value in wanted.items() if getattr(plan, field) is None}


def _pure(plan: Plan) -> dict[str, object]:
    """One format for parameters, gradients and moments. Raises LayoutError on a plan that wants others."""
    check_plain(plan)
    width = PURE[plan.precision]
    for name in ("gradient_dtype", "optimizer_dtype"):
        if getattr(plan, name) not in (None, width):
            raise LayoutError(
                f"{name} {getattr(plan, name)} with framework pytorch in {plan.precision}: all state has one format",
                f"leave {name} out, or use another framework",
            )
    usual = {"gradient_dtype": plan.gradient_dtype, "optimizer_dtype": plan.moments_dtype}
    return {name: width for name, now in usual.items() if now != width}


def _filled_in(
    habits: Habits, changes: Mapping[str, object], plan: Plan, schedule: str, etp: int | None
) -> tuple[str, ...]:  # fmt: skip
    """What was filled in, one entry each: the framework, then every habit that makes a difference to this plan."""
    idle = {"fp8_parameters", "cuda_graphs", "overlap_ep"}
    if not changes.get("account_for_embedding"):
        idle |= {"account_for_embedding"}
    if changes.get("fp8_parameters"):
        idle -= {"fp8_parameters"}
    if plan.tp == 1:
        idle |= {"sequence_parallel", "overlap_tp", "overlap_tp_backward"}
    if plan.pp == 1:
        idle |= {"overlap_p2p"}
    shown = {field: value for field, value in changes.items() if field not in idle}
    if plan.schedule is None and plan.pp > 1:
        shown["schedule"] = schedule
    if plan.etp is None and etp is not None and plan.tp > 1:
        shown["etp"] = etp
    return (f"habits of {habits.title}", *(f"{field} {_word(value)}" for field, value in shown.items()))


def _word(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _micro_batches(plan: Plan, dp: int) -> int:
    count, rest = divmod(plan.global_batch, plan.micro_batch * dp)
    if rest or count == 0:
        raise LayoutError(
            f"global_batch {plan.global_batch} is no multiple of micro_batch {plan.micro_batch} x dp {dp}",
            f"use a multiple of {plan.micro_batch * dp}",
        )
    return count


@lru_cache(maxsize=1024)
def _dealt(
    n_layers: int, stages: int, pp: int, layers_per_stage: tuple[int, ...] | None, account: bool
) -> tuple[tuple[int, ...], ...]:  # fmt: skip
    if layers_per_stage is not None:
        counts: Iterable[int] = layers_per_stage
        if len(layers_per_stage) != stages or sum(counts) != n_layers or min(counts) < 0:
            raise LayoutError(
                f"layers_per_stage {layers_per_stage} must be {stages} counts that sum to {n_layers}",
                "give one count per virtual stage, in model order",
            )
    elif n_layers + 2 < stages:
        raise LayoutError(
            f"{n_layers} layers cannot fill pp {pp} x {stages // pp} = {stages} virtual stages",
            "use fewer stages",
        )
    else:
        counts = _even(n_layers, stages, account)
    ends, total = [], 0
    for count in counts:
        ends.append((total, total + count))
        total += count
    return tuple(tuple(range(start, end)) for start, end in ends)


def _even(n_layers: int, stages: int, account: bool) -> list[int]:
    """Even where it divides; else the embedding and the loss count as a layer each, as Megatron-Core offers."""
    if stages > 1 and (account or n_layers % stages) and (n_layers + 2) % stages == 0:
        share = (n_layers + 2) // stages
        return [share - 1] + [share] * (stages - 2) + [share - 1]
    share, rest = divmod(n_layers, stages)
    # The remainder goes to the middle: the ends already carry the embedding and the loss.
    first = (stages - rest) // 2
    return [share + (1 if first <= i < first + rest else 0) for i in range(stages)]
