"""A mixture of experts on one rank: router, dispatch to the ranks that hold the experts, their GEMMs, and back."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.physics.model.architecture import FeedForward, Model
from windtunnel.physics.model.layers.parts import activate, linear, transferred
from windtunnel.physics.model.mixers import ExtendedBlock
from windtunnel.physics.model.operations import CAST_BYTES, KEPT_BYTES, Operation, Shard, Timed, Transfer


def expert_operations(block: FeedForward, model: Model, shard: Shard, load: float) -> list[Operation]:
    """Router, dispatch, experts, combine; this rank's experts get `load` times the mean number of tokens."""
    hidden, w = model.hidden_size, shard.activation_bytes
    latent, scored = (block.latent, block.scored) if isinstance(block, ExtendedBlock) else (0, 0)
    h = latent or hidden  # what is sent and what experts read
    local = shard.residual_tokens if shard.sequence_parallel else shard.tokens / shard.tp
    whole = shard.routes_whole and shard.etp > 1  # the group's tokens are gathered before the router, not behind it
    local = float(shard.tokens) if whole else local
    routed = local * block.experts_per_token  # tokens sent by this rank, and received when experts are balanced
    even = routed if whole else routed * shard.etp  # the expert-tensor group sees each other's tokens
    arrived = even * load
    groups = block.experts // shard.ep
    f = block.size / shard.etp
    up = 2 if block.gated else 1
    # Every rank sends as much as any other and receives by what its experts are given; combine is the reverse.
    # Across domains a token goes once to each of them, over the network, and is handed on inside.
    places = shard.ep if shard.ep_domains == 1 else shard.ep_domains
    sent = local * ranks_per_token(block, places) if shard.deduplicates else routed
    exchange = Transfer("all_to_all", "ep", sent * h * w) if shard.ep > 1 else None
    # DeepSeek's own stack sends what goes to the experts, tokens and their outputs' gradients, in fp8.
    quantised = Transfer("all_to_all", "ep", sent * h) if shard.ep > 1 and shard.low_precision_dispatch else exchange
    # HybridEP sends an fp32 weight for every expert of a domain with each token, and their gradients back; before it
    # does, every rank is told which experts the tokens of all others go to, a byte for each.
    weights = sent * 4.0 * block.experts / shard.ep_domains if shard.hybrid_dispatch else 0.0
    maps = float(local * block.experts * places) if shard.hybrid_dispatch else 0.0
    shared = (local if whole else even) * h * w
    gather = Transfer("all_gather", "etp", shared) if shard.etp > 1 else None
    scatter = Transfer("reduce_scatter", "etp", shared) if shard.etp > 1 else None
    router = Operation(
        "router",
        "router",
        "memory",
        # Scores in fp32: read the tokens and the matrix; top-k and the probability map over experts.
        forward_bytes=local * (hidden * (w + 4) + 24.0 * block.experts),
        backward_bytes=local * (hidden * (w + 8) + 24.0 * block.experts),
        flops=2.0 * local * hidden * (block.experts + scored),
        saved_bytes=local * block.experts * 8.0,
        kernels=12,
        weight_elements=hidden * (block.experts + scored),
    )
    # Low-precision grouped GEMMs want each expert's rows padded: one more copy.
    padding = 2 * w * arrived * h if shard.precision in CAST_BYTES else 0.0
    sorts = groups > 1 and shard.ep > 1 and not shard.fused_exchange
    permute = Operation(
        "permute",
        "moe_permute",
        "memory",
        # Where experts' kernels fetch rows, tokens are put where others can read them; going back their sum is made.
        forward_bytes=2 * w * local * h if shard.fused_exchange else 2 * w * routed * h + padding,
        backward_bytes=w * (routed + local) * h if shard.fused_exchange else 2 * w * routed * h + padding,
        output_bytes=routed * h * w,
        kernels=4,
        timed=Timed("gather_rows", routed, h),
    )
    sort = Operation(
        "sort_by_expert",
        "moe_permute",
        "memory",
        forward_bytes=2 * w * arrived * h if sorts else 0.0,
        backward_bytes=2 * w * arrived * h if sorts else 0.0,
        output_bytes=arrived * h * w,
        kernels=2,
    )
    # Probabilities are multiplied in behind the activation, so what comes back is not kept; once it had to be.
    early = shard.deduplicates or shard.weighs_in_experts or shard.fused_exchange
    unpermute = Operation(
        "unpermute",
        "moe_permute",
        "memory",
        forward_bytes=w * (routed + local) * h,
        backward_bytes=w * (2 * routed + local) * h,
        saved_bytes=0.0 if early else routed * h * w,
        output_bytes=local * h * w,
        kernels=3,
        timed=Timed("scatter_add_rows", routed, h),
    )
    if shard.masked_dispatch:
        router, permute, unpermute = _masked(router, local, routed, h, shard)
    ops = [router, permute]
    if latent:
        ops.insert(1, linear("latent_down", "latent", local, latent, hidden, shard, side="none"))
    experts = [
        _grouped("experts_up", groups, even / groups, up * f, h, shard, load),
        activate("expert_activation", "moe_activation", arrived, f, block, shard),
        _grouped("experts_down", groups, even / groups, h, f, shard, load),
    ]
    if shard.experts_impl == "sequential":
        experts[1] = replace(experts[1], kernels=groups * experts[1].kernels)
    if shard.fused_exchange:
        experts = [replace(op, forward_bytes=0.0, backward_bytes=0.0) for op in experts]
    first, last = (experts[0], experts[2]) if shard.fused_exchange else (None, None)
    if exchange:
        assert quantised is not None
        out = quantised._replace(bytes_total=quantised.bytes_total + weights + maps)
        home = exchange._replace(bytes_total=exchange.bytes_total + weights)
        dispatch = transferred("dispatch", quantised, load, load)
        ops.append(replace(dispatch, before=out, before_backward=home, product=first))
    if gather and not whole:
        ops.append(transferred("expert_gather", gather, load, load))
    if sort.forward_bytes:
        ops.append(sort)
    ops += experts
    if shard.weighs_in_fp32 and not shard.fused_exchange:
        # To fp32, multiplied, back; going back twice that, for rows and for scores. The rows in fp32 are kept.
        ops.append(
            Operation(
                "weigh_rows",
                "moe_permute",
                "memory",
                forward_bytes=20.0 * arrived * h,
                backward_bytes=30.0 * arrived * h,
                saved_bytes=4.0 * arrived * h,
                output_bytes=arrived * h * w,
                kernels=3,
            )
        )
    if sort.forward_bytes:
        ops.append(sort)
    if scatter and not whole:
        ops.append(transferred("expert_scatter", scatter, load, load))
    if exchange:
        back = transferred("combine", exchange, load)
        ops.append(replace(back, before_backward=quantised, product=last))  # each rank's own tokens come back
    way_out = [linear("latent_up", "latent", local, hidden, latent, shard, side="none")] if latent else []
    if whole:
        ops[0] = replace(router, before=gather, after_backward=scatter)
        unpermute = replace(unpermute, after=scatter, before_backward=gather)
    return [*ops, unpermute, *way_out]


def _masked(router: Operation, tokens: float, places: float, h: float, shard: Shard) -> list[Operation]:
    """Router, way in and way out of tokens as in DeepSpeed-MoE (`sharded_moe.py`, after GShard).

    The router writes, for each choice of a token, an fp32 table of tokens by places with its weight where it goes.
    Their sum weighs what comes back; where it is not zero is the mask, as booleans and then as wide as the tokens,
    which it multiplies. Going back, the sum's gradient is read for each choice. There are as many places as tokens are
    sent.
    """
    w, table, choices = shard.activation_bytes, tokens * places, places / tokens
    sums = 12.0 * (choices - 1.0)  # two read, one written
    size = places * h * w
    product = Operation("", "moe_permute", "gemm", flops=2.0 * table * h, output_bytes=size)
    return [
        replace(
            router,
            forward_bytes=router.forward_bytes + table * (4.0 * choices + sums + 4.0 + 1.0 + 1.0 + w),
            backward_bytes=router.backward_bytes + table * 4.0 * choices,
            saved_bytes=router.saved_bytes + table * (4.0 + w),
            kernels=router.kernels + round(4 * choices),
        ),
        replace(product, name="permute", shape=(places, h, tokens)),
        # Both of what it multiplies have gradients.
        replace(
            product, name="unpermute", kind="gemm_batch", shape=(1.0, tokens, h, places), saved_bytes=size,
            output_bytes=tokens * h * w,
        ),
    ]  # fmt: skip


def ranks_per_token(block: FeedForward, ranks: int) -> float:
    """Ranks that hold one or more of a token's experts, on average, if its router chooses alike among all it may."""
    if block.groups_per_token:
        ranks = max(1, round(ranks * block.groups_per_token / block.expert_groups))
    return ranks * (1.0 - (1.0 - 1.0 / ranks) ** block.experts_per_token)


def _grouped(name: str, groups: int, even: float, n: float, k: float, shard: Shard, load: float) -> Operation:
    """GEMMs of this rank's experts. How its rows divide among them is left out: their tiles are worked off together.

    Not so in a loop. Its launches were not measured: as many as where TransformerEngine calls cuBLAS for each.
    """
    launches = shard.expert_launches_low if shard.precision in CAST_BYTES else shard.expert_launches
    low, m = shard.precision in CAST_BYTES, even * load
    cast = CAST_BYTES[shard.precision] if low else 0.0
    element_bytes = KEPT_BYTES[shard.precision] if low else float(shard.activation_bytes)
    return Operation(
        name,
        "moe",
        "grouped_gemm",
        shape=(groups, m, n, k),
        flops=2.0 * groups * even * n * k,
        forward_bytes=cast * groups * m * k,
        backward_bytes=cast * groups * m * n,
        saved_bytes=groups * m * k * element_bytes,
        output_bytes=groups * m * n * shard.activation_bytes,
        weight_elements=groups * n * k,
        low_precision=low,
        kernels=1 if shard.experts_impl == "grouped" else max(1, round(groups * launches)),
        apart=shard.experts_impl == "sequential",
    )
