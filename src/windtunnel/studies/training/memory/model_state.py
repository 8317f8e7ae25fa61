"""Bytes of parameters, gradients and optimizer on one rank, and the time of one optimizer step.

Mixed precision (Micikevicius 2018; ZeRO, Rajbhandari 2020): a working copy of the parameters, gradients, and in fp32 a
master copy and two moments. ZeRO shards, in this order, optimizer state, gradients and parameters over the
data-parallel ranks. The optimizer is bound by memory traffic: it reads gradient, master and moments and writes all but
the gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from windtunnel.physics.cost.price import FREE, Price, Source
from windtunnel.physics.model.operations import CAST_BYTES, KEPT_BYTES
from windtunnel.studies.training.layout import Layout
from windtunnel.studies.training.pricing import FROZEN_BYTES, Pricer

MOMENT_BYTES = {"fp32": 4.0, "bf16": 2.0, "int8": 1.016}  # int8: a scale for every 256 (bitsandbytes)
MOMENTS = {"adam": 2, "muon": 1, "sgd": 1}
FOREACH_PASSES = 2.5  # over one pass of a fused kernel
NEWTON_SCHULZ_ROUNDS = 5  # of Muon (Jordan 2024)
HOST_UPDATE_BYTES_PER_S = 25e9  # one GPU's share of a host's memory bandwidth while all GPUs' updates run there


@dataclass(frozen=True, slots=True)
class State:
    """Bytes that live on the device for the whole step."""

    parameters: float
    gradients: float
    optimizer: float


REFERENCE_BYTES = 2.0  # of a reference policy's parameter, loaded in 16 bits


def state_bytes(
    layout: Layout, dense: float, expert: float, adapters: float | None = None, frozen: float = 0.0
) -> State:
    """State of a rank that holds so many dense and expert parameters before sharding.

    `adapters`: those that learn beside them, where all others are frozen; without them these are the reference policy.
    `frozen`: a tower's that do not learn beside others that do.
    """
    task = layout.plan.task
    if frozen:
        state = state_bytes(layout, dense, expert, adapters)
        return replace(state, parameters=state.parameters + _frozen_bytes(layout, frozen, 0.0))
    if task == "forward":
        return State(_frozen_bytes(layout, dense, expert) + 2.0 * (adapters or 0.0), 0.0, 0.0)
    state = _learning_bytes(layout, dense, expert, adapters)
    if task == "train" or adapters is not None:
        return state
    return replace(state, parameters=state.parameters + REFERENCE_BYTES * _on_a_rank(layout, dense, expert))


def _on_a_rank(layout: Layout, dense: float, expert: float) -> float:
    """Parameters on a rank, sharded where those that learn are."""
    sharded = layout.zero_stage >= 3
    return dense / (layout.shard_group if sharded else 1) + expert / (layout.group("edp").size if sharded else 1)


def _learning_bytes(layout: Layout, dense: float, expert: float, adapters: float | None) -> State:
    plan, stage = layout.plan, layout.zero_stage
    if adapters is not None:
        trained = _learning_bytes(layout, adapters, 0.0, None)
        return replace(trained, parameters=trained.parameters + _frozen_bytes(layout, dense, expert))
    shards = {"dense": layout.shard_group, "expert": layout.group("edp").size}
    total = State(0.0, 0.0, 0.0)
    for count, shard in ((dense, shards["dense"]), (expert, shards["expert"])):
        own = count / shard
        if layout.habits.pure_precision:
            width = layout.gradient_bytes
            with_state = (own if stage >= 1 else count) * (1.0 - plan.offload_optimizer)
            total = State(
                total.parameters + width * count,
                total.gradients + width * count,
                total.optimizer + MOMENTS[plan.optimizer] * width * with_state,
            )
            continue
        wide = layout.habits.parameter_dtype == "fp32"
        master = wide and plan.master_dtype == "fp32"
        working = (4.0 if master else 2.0) * (own if stage >= 3 else count)
        if master and stage == 2 and plan.precision in ("bf16", "fp16"):
            working = 4.0 * own + 2.0 * count  # what was gathered stays; below 16 bits so do copies
        if plan.precision in CAST_BYTES and not wide:
            # Quantised copies are kept between micro-batches, and are all there is where parameters are gathered so.
            copies = low_precision_bytes(layout) * (own if stage >= 3 else count)
            working = copies if layout.holds_low_precision else working + (copies if stage < 3 else 0.0)
        moment = MOMENT_BYTES[plan.moments_dtype]
        optimizer = (0.0 if master or plan.master_dtype == "bf16" else 4.0) + MOMENTS[plan.optimizer] * moment
        with_state = own if stage >= 1 else count
        total = State(
            total.parameters + working,
            total.gradients + layout.kept_gradient_bytes * (own if stage >= 2 else count),
            total.optimizer + optimizer * with_state * (1.0 - plan.offload_optimizer),
        )
    return total


def _frozen_bytes(layout: Layout, dense: float, expert: float) -> float:
    """Parameters that do not learn: one copy in 16 bits, or in the GEMMs' format; no master, no gradient.

    Of those in fp8 the transposed copy that Hopper's backward GEMMs read is made when it is read: 70 B parameters and
    their transposes would not fit where MLPerf's runs fit.
    """
    count = _on_a_rank(layout, dense, expert)
    if layout.plan.frozen_dtype != "bf16":
        return FROZEN_BYTES[layout.plan.frozen_dtype] * count
    if layout.plan.precision not in CAST_BYTES:
        # FSDP keeps what does not learn as it keeps what does.
        wide = layout.plan.precision == "fp32" or layout.habits.parameter_dtype == "fp32"
        return (4.0 if wide and layout.plan.master_dtype == "fp32" else 2.0) * count
    low = KEPT_BYTES[layout.plan.precision]
    choice = layout.user_plan.fp8_parameters
    alone = layout.habits.own_low_precision if choice is None else choice  # nothing is gathered of what does not learn
    return low * count if alone else (2.0 + low) * count


def low_precision_bytes(layout: Layout) -> float:
    """Bytes per parameter of the copies that low-precision GEMMs read.

    Hopper's fp8 GEMMs take one layout only, so a transposed copy serves the backward pass; Blackwell's take any. Scales
    along rows (mxfp8, nvfp4) make the two copies differ everywhere.
    """
    copy_bytes = KEPT_BYTES[layout.plan.precision]
    plain = layout.plan.precision in ("fp8", "fp8-current")
    return (
        copy_bytes if plain and layout.cluster.gpu.generation in ("blackwell", "blackwell-ultra") else 2.0 * copy_bytes
    )


def optimizer_price(
    layout: Layout, pricer: Pricer, dense: float, expert: float, tensors: Sequence[float] = ()
) -> Price:  # fmt: skip
    """One optimizer step of a rank: gradient norm, update, and clearing the gradient buffer.

    `tensors`: elements of each, where the update goes through them one by one.
    """
    plan, stage = layout.plan, layout.zero_stage
    own = dense / layout.shard_group + expert / layout.group("edp").size if stage >= 1 else dense + expert
    if layout.habits.pure_precision and plan.optimizer == "adam" and not plan.offload_optimizer:
        return _plain_update(layout, pricer, own, [size * own / (dense + expert) for size in tensors])
    gradient = layout.gradient_bytes
    moments = MOMENTS[plan.optimizer] * 2.0 * MOMENT_BYTES[plan.moments_dtype]
    # Gradient; master and moments read and written; working copy written, or all there is.
    update = gradient + (8.0 if plan.master_dtype == "fp32" else 2.0) + moments + 2.0
    if not layout.fused_optimizer:
        update *= FOREACH_PASSES  # foreach kernels pass over the state once per term of the update
    norm = gradient if layout.habits.clips_gradients else 0.0  # read once for the gradient norm
    clear = gradient * (own if stage >= 2 else dense + expert)
    on_device = own * (1.0 - plan.offload_optimizer) * update + own * norm + clear
    price = pricer.moved(on_device)
    if plan.optimizer == "muon":
        # Newton-Schulz, five rounds: X X', its square, and the product with X. Six h FLOPs per weight each if square.
        h = layout.model.hidden_size
        product = pricer.square_gemm(h)
        price = price.plus(product.scaled(own * NEWTON_SCHULZ_ROUNDS * 3.0 / (h * h)))
    if plan.offload_optimizer:
        host = layout.cluster.host
        away = own * plan.offload_optimizer
        copies = away * (gradient + 2.0) / host.offload_bandwidth_bytes_per_s
        seconds = copies + away * update / HOST_UPDATE_BYTES_PER_S
        return Price(
            price.seconds + seconds,
            price.p5 + 0.6 * seconds,
            price.p95 + 1.8 * seconds,
            max(price.source, Source.ROOFLINE),
        )
    return price


def _plain_update(layout: Layout, pricer: Pricer, own: float, tensors: Sequence[float]) -> Price:
    """AdamW as PyTorch runs it unless told otherwise: all tensors at once on a GPU, one by one on a CPU."""
    calibrated, dtype = pricer.calibrated, layout.plan.precision
    if calibrated is None:
        width = layout.gradient_bytes
        # Gradient read, parameters and moments read and written, in several passes.
        return pricer.moved(own * 7.0 * width * (1.0 if layout.fused_optimizer else FOREACH_PASSES))
    if not pricer.on_cpu or not tensors:
        kind = "fused" if layout.fused_optimizer else "single" if pricer.on_cpu else "foreach"
        return calibrated.optimizer(f"adamw {kind}", own, dtype)
    total = FREE
    for size, count in sorted(Counter(tensors).items(), reverse=True):
        total = total.plus(calibrated.optimizer("adamw single", max(1.0, size), dtype).scaled(float(count)))
    return total
