"""What no layout can be: degrees that do not divide, schedules that do not run, sizes that are a slip of the pen.

Each raises LayoutError, SpecError or UnknownNameError, with the remedy.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import get_args

from windtunnel.errors import LayoutError, SpecError, UnknownNameError
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.model import Model
from windtunnel.physics.model.architecture import Tower
from windtunnel.studies.training.plan import PEAK_DTYPE, Plan, Precision
from windtunnel.studies.training.schedules import NAMES

PASSES_MOST = 2**21  # forward passes of all stages in one step; a real job runs thousands
STEP_MOST_S = 1e6  # at peak; integer nanoseconds hold a step that runs at a thousandth of that


def check_schedule(schedule: str, plan: Plan, micro_batches: int) -> None:
    """Whether there is such a schedule, and it runs so many stages, chunks and micro-batches."""
    if plan.framework == "nanotron" and micro_batches < plan.pp - 1:
        raise LayoutError(
            f"nanotron needs at least pp - 1 = {plan.pp - 1} micro-batches, here are {micro_batches}",
            "use a smaller micro_batch, fewer stages or a larger global_batch",
        )
    if schedule not in NAMES:
        raise UnknownNameError("pipeline schedule", schedule, NAMES)
    if plan.virtual_stages > 1 and schedule != "interleaved":
        raise LayoutError(
            f"schedule {schedule} has no virtual stages, but virtual_stages = {plan.virtual_stages}",
            "use schedule interleaved or virtual_stages 1",
        )
    if plan.micro_batch_group is not None and schedule != "interleaved":
        raise LayoutError(
            f"micro_batch_group = {plan.micro_batch_group} with schedule {schedule}, which has no groups",
            "use virtual_stages 2 or more, or leave it out",
        )
    if plan.pp == 1 and plan.schedule not in (None, "gpipe", "1f1b"):
        raise LayoutError(f"schedule {schedule} with pp = 1", "there is no pipeline: use pp 2 or more, or leave it out")
    if plan.virtual_stages > 1 and plan.pp == 1:
        raise LayoutError(f"virtual_stages = {plan.virtual_stages} with pp = 1", "interleaving needs pp > 1")


def check_size(plan: Plan, model: Model, cluster: Cluster, micro_batches: int) -> None:
    """Refuse what is surely a slip of the pen, before it fills the memory or overflows the clock."""
    stages = plan.pp * plan.virtual_stages
    if micro_batches * stages > PASSES_MOST:
        raise LayoutError(
            f"{micro_batches} micro-batches through {stages} stages are more than {PASSES_MOST} passes per step",
            "lower global_batch, or raise micro_batch",
        )
    flops = 3.0 * plan.global_batch * plan.seq_len * _flops_per_token(model, plan.seq_len)
    seconds = flops / cluster.n_gpus / cluster.gpu.peak_flops(PEAK_DTYPE.get(plan.precision, plan.precision))
    if seconds > STEP_MOST_S:
        raise LayoutError(
            f"global_batch {plan.global_batch} x seq_len {plan.seq_len} takes {cluster.n_gpus} GPUs {seconds:.0e} s per"
            f" step at peak, more than {STEP_MOST_S:.0e}",
            "lower global_batch or seq_len, or use more GPUs",
        )


_FLOPS: OrderedDict[tuple[int, int], tuple[Model, float]] = OrderedDict()
FLOPS_KEPT = 64


def _flops_per_token(model: Model, seq_len: int) -> float:
    """Of a forward pass, remembered by the identity of the model, which is kept."""
    entry = _FLOPS.get((id(model), seq_len))
    if entry is None:
        entry = _FLOPS[id(model), seq_len] = (model, model.forward_flops_per_token(seq_len))
        while len(_FLOPS) > FLOPS_KEPT:
            _FLOPS.popitem(last=False)
    return entry[1]


def check_model(plan: Plan, model: Model, etp: int, dp: int, experts: bool) -> None:
    """Whether every degree divides what it cuts."""
    for name, degree in (("ep", plan.ep), ("etp", plan.etp or 1)):
        if degree > 1 and not experts:
            raise LayoutError(f"{name} = {degree}, but {model.name} has no experts", f"use {name} 1")
    for layer, _ in model.distinct_layers():
        attention, feed_forward = layer.attention, layer.feed_forward
        heads, kv_heads = attention.heads, attention.kv_heads
        if heads % plan.tp:
            raise LayoutError(
                f"tp = {plan.tp} does not divide the {heads} heads of layer {model.layers.index(layer)}",
                "use a divisor",
            )
        if kv_heads % plan.tp and plan.tp % kv_heads:
            raise LayoutError(
                f"tp = {plan.tp} and the {kv_heads} key/value heads of layer {model.layers.index(layer)} do not divide"
                " each other",
                "use a tp that divides them or is a multiple",
            )
        if plan.cp_kind == "ulysses" and (heads // plan.tp) % plan.cp:
            raise LayoutError(
                f"ulysses: cp = {plan.cp} does not divide the {heads // plan.tp} heads per rank", "use ring, or less cp"
            )
        if feed_forward.kind == "moe":
            if feed_forward.experts % plan.ep:
                raise LayoutError(
                    f"ep = {plan.ep} does not divide the {feed_forward.experts} experts of layer"
                    f" {model.layers.index(layer)}",
                    "use a divisor",
                )
            if feed_forward.size % etp:
                raise LayoutError(f"etp = {etp} does not divide the expert size {feed_forward.size}", "use a divisor")
            if feed_forward.shared_size % plan.tp:
                raise LayoutError(
                    f"tp = {plan.tp} does not divide the shared experts' size {feed_forward.shared_size}",
                    "use a divisor",
                )
        elif feed_forward.size % plan.tp:
            raise LayoutError(
                f"tp = {plan.tp} does not divide the feed-forward size {feed_forward.size}", "use a divisor"
            )
    if plan.framework == "torchtitan" and plan.ep > 1 and etp not in (1, plan.tp):  # its ParallelDims asserts it
        raise LayoutError(f"etp = {etp} with tp = {plan.tp}", "torchtitan takes etp 1 or etp = tp")
    if experts and (plan.tp * plan.cp * dp) % (plan.ep * etp):
        raise LayoutError(
            f"ep {plan.ep} x etp {etp} does not divide tp x cp x dp = {plan.tp * plan.cp * dp}", "change ep or etp"
        )
    if plan.seq_len % (plan.cp * (2 if plan.cp_kind == "ring" and plan.cp > 1 else 1)):
        raise LayoutError(
            f"seq_len {plan.seq_len} cannot be cut for cp = {plan.cp}", "use a multiple of 2 cp (ring) or cp (ulysses)"
        )
    if plan.sequence_parallel and (plan.micro_batch * plan.seq_len // plan.cp) % plan.tp:
        raise LayoutError(
            f"sequence parallelism: {plan.seq_len // plan.cp} tokens are no multiple of tp {plan.tp}",
            "change seq_len or turn sequence_parallel off",
        )
    if plan.offload_activations > model.n_layers:
        raise LayoutError(
            f"offload_activations = {plan.offload_activations} of {model.n_layers} layers", "use at most all layers"
        )


def check_precision(plan: Plan, cluster: Cluster) -> None:
    """Whether the GPU multiplies in this format."""
    dtype = PEAK_DTYPE.get(plan.precision, plan.precision)
    if dtype not in cluster.gpu.flops_per_s:
        able = [name for name in get_args(Precision) if PEAK_DTYPE.get(name, name) in cluster.gpu.flops_per_s]
        raise SpecError("precision", plan.precision, f"{cluster.gpu.name} has no {dtype} rate; use {', '.join(able)}")
    if plan.fp8_parameters and plan.precision not in PEAK_DTYPE:
        raise LayoutError(
            f"fp8_parameters with precision {plan.precision}: there is no low-precision copy to keep",
            "choose an fp8 precision, or turn fp8_parameters off",
        )


def check_adapters(plan: Plan) -> None:
    """What does not go with frozen weights."""
    if not plan.lora_rank:
        return
    if plan.framework == "pytorch":
        raise LayoutError(
            f"lora_rank {plan.lora_rank} with framework pytorch: plain PyTorch trains all weights",
            "use framework fsdp, or lora_rank 0",
        )
    if plan.offload_activations and plan.recompute_layers is not None:
        raise LayoutError(
            f"offload_activations {plan.offload_activations} with lora_rank {plan.lora_rank}",
            "recompute in full, or leave one of the two out: inputs of frozen layers are not kept",
        )


def towers_of(plan: Plan, model: Model) -> tuple[tuple[Tower, int, int], ...]:
    """The towers that a plan feeds: each with its images or clips of a sequence, and the patches (rows) of one."""
    kinds = ((model.vision, plan.images, plan.image_patches), (model.sound, plan.clips, plan.clip_rows))
    return tuple((tower, n, patches or tower.patches) for tower, n, patches in kinds if n and tower is not None)


def check_images(plan: Plan, model: Model) -> None:
    """Whether a plan's images and clips go into the model's towers and sequences. Raises SpecError or LayoutError."""
    if not plan.images and not plan.clips:
        if plan.frozen not in (None, "none"):
            remedy = "nothing but text is trained here: give images or clips, or leave it out"
            raise SpecError("frozen", plan.frozen, remedy)
        return
    kinds = (
        ("images", "vision", plan.images, model.vision, model.tower),
        ("clips", "sound", plan.clips, model.sound, None),
    )
    for name, sense, n, tower, config in kinds:
        if n and tower is None:
            missing = f"no {sense} tower" if config is None else f"a {sense} tower that cannot be read"
            missing += " that can be read" if config is None and sense == "sound" else ""
            raise SpecError(name, n, f"{model.name} has {missing}: leave it out to price the text model alone")
    towers = towers_of(plan, model)
    if not all(patches for _, _, patches in towers):
        raise SpecError("image_patches", None, f"{model.name} takes images of any size: say how many patches one has")
    tokens = sum(n * (patches // tower.merge) for tower, n, patches in towers)
    if tokens > plan.seq_len:
        name, n = ("images", plan.images) if plan.images else ("clips", plan.clips)
        remedy = f"{tokens:,} tokens of images are in no sequence of {plan.seq_len:,}: fewer, or longer"
        raise SpecError(name, n, remedy if not plan.clips else remedy.replace("of images", "of images and sound"))
    if plan.framework == "pytorch":
        name = "images" if plan.images else "clips"
        raise LayoutError(f"{name} with framework pytorch: towers are not laid out in plain PyTorch", "use fsdp")


def data_parallel(plan: Plan, cluster: Cluster) -> int:
    """Replicas of a plan on a cluster. Raises LayoutError with numbers of GPUs that its degrees divide."""
    block = plan.tp * plan.pp * plan.cp
    dp, rest = divmod(cluster.n_gpus, block)
    if rest or dp == 0:
        within = cluster.n_gpus < cluster.gpus_per_node
        step = block if within else math.lcm(block, cluster.gpus_per_node)  # clusters are whole nodes, or within one
        more = cluster.n_gpus // step * step + step
        fewer = more - step or min(cluster.n_gpus, cluster.gpus_per_node) // block * block
        raise LayoutError(
            f"tp {plan.tp} x pp {plan.pp} x cp {plan.cp} = {block} does not divide {cluster.n_gpus} GPUs",
            f"use {f'{fewer} or ' if fewer else ''}{more} GPUs, or change a degree",
        )
    if plan.dp is not None and plan.dp != dp:
        raise LayoutError(
            f"dp = {plan.dp}, but {cluster.n_gpus} GPUs / (tp {plan.tp} x pp {plan.pp} x cp {plan.cp}) = {dp}",
            "leave dp out, or change the number of GPUs",
        )
    return dp
