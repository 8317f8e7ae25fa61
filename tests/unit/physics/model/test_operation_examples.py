"""Bytes, launches and weights of every op of a layer, by hand on a small model; nothing but shapes decides them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from windtunnel.physics.model import Model, load_model, transformer
from windtunnel.physics.model.adapters import with_adapters
from windtunnel.physics.model.layers.experts import ranks_per_token
from windtunnel.physics.model.layers.layer import (
    OWN_LOSS,
    embedding_operations,
    head_operations,
    layer_operations,
)
from windtunnel.physics.model.layers.parts import product
from windtunnel.physics.model.mixers import Recurrent
from windtunnel.physics.model.operations import CAST_BYTES, KEPT_BYTES, Operation, Shard, Timed

H, HEADS, KV, FFN, VOCAB, S, B = 24, 6, 3, 40, 100, 16, 2
D, T, W = H // HEADS, S * B, 2
DENSE = transformer(hidden=H, layers=1, heads=HEADS, kv_heads=KV, vocab=VOCAB, ffn=FFN, name="dense")
MIXTURE = transformer(
    hidden=H, layers=1, heads=HEADS, kv_heads=KV, vocab=VOCAB, ffn=FFN, experts=8, topk=2, name="mixture"
)


def ops(model: Model = DENSE, load: float = 1.0, **shard: Any) -> dict[str, Operation]:
    found = layer_operations(model.layers[0], model, Shard(**{"batch": B, "seq_len": S, **shard}), load)
    return {op.name: op for op in found}


def moved(op: Operation) -> tuple[float, ...]:
    """Forward, backward, kept, written, launches."""
    return op.forward_bytes, op.backward_bytes, op.saved_bytes, op.output_bytes, op.kernels


def test_norms_and_residuals_of_fused_and_eager_kernels() -> None:
    size = T * H * W
    found, eager = ops(), ops(fused=False)
    assert moved(found["norm_1"]) == (2 * size, 4 * size, size, size, 1)
    assert moved(eager["norm_1"]) == (15 * size, 24 * size, T * H * (W + 4), size, 6)
    assert moved(ops(fused=False, fused_norms=True)["norm_1"]) == moved(found["norm_1"])
    assert found["norm_1"].timed == Timed("rms_norm", T, H)
    assert moved(found["residual_1"]) == (3 * size, 3 * size, 0, size, 1)
    assert ops(attention_impl="unfused")["residual_1"].saved_bytes == T * H  # the mask of its dropout, a byte each
    part = ops(tp=2, sequence_parallel=True)
    assert moved(part["norm_1"])[:4] == (size, 2 * size, size / 2, size / 2)
    assert moved(part["residual_1"])[:2] == (1.5 * size, 1.5 * size)


def test_products_of_a_layer_keep_their_input_and_write_their_output() -> None:
    found = ops()
    for name, n, k in (
        ("qkv", (HEADS + 2 * KV) * D, H),
        ("out", H, HEADS * D),
        ("mlp_up", 2 * FFN, H),
        ("mlp_down", H, FFN),
    ):
        assert found[name].shape == (T, n, k)
        assert moved(found[name]) == (0, 0, T * k * W, T * n * W, 1)
        assert found[name].weight_elements == n * k
    low = ops(precision="fp8")["mlp_up"]
    cast, kept = CAST_BYTES["fp8"], KEPT_BYTES["fp8"]
    assert moved(low) == (cast * T * H, cast * T * 2 * FFN, T * H * kept, T * 2 * FFN * W, 2)
    split = ops(tp=2, sequence_parallel=True)
    assert split["mlp_up"].saved_bytes == T * H * W / 2  # the part before it is gathered
    assert split["mlp_down"].saved_bytes == T * FFN / 2 * W
    assert ops(tp=2, sequence_parallel=True, precision="fp8")["mlp_down"].before_backward == ("all_gather", "tp", T * H)


def test_activation_and_rotation() -> None:
    found, eager = ops(), ops(fused=False)
    each = T * FFN
    assert moved(found["activation"]) == (3 * each * W, 5 * each * W, 2 * each * W, each * W, 1)
    # Eager: silu(gate) is written and read again, and kept.
    assert moved(eager["activation"]) == (5 * each * W, 9 * each * W, each * (2 * W + W), each * W, 2)
    assert ops(activation_input_bytes=1)["activation"].saved_bytes == 2 * each
    query_key = T * (HEADS + KV) * D
    assert moved(found["rope"]) == (2 * W * query_key, 3 * W * query_key, 0, query_key * W, 2)
    assert moved(eager["rope"])[:2] == (10 * W * query_key, 15 * W * query_key)
    assert eager["rope"].kernels == 8
    assert found["rope"].timed == Timed("rope", T * (HEADS + KV), D)
    normed = replace(DENSE.layers[0], attention=replace(DENSE.layers[0].attention, qk_norm="head"))
    both = {op.name: op for op in layer_operations(normed, DENSE, Shard(B, S))}
    assert both["rope"].forward_bytes == 4 * W * query_key
    eager_both = {op.name: op for op in layer_operations(normed, DENSE, Shard(B, S, fused=False))}
    assert eager_both["rope"].forward_bytes == 25 * W * query_key


def test_attention_keeps_queries_keys_values_output_and_its_sums() -> None:
    core = ops()["core_attention"]
    kept = T * W * (HEADS * D + 2 * KV * D + HEADS * D) + 4 * T * HEADS
    assert (core.saved_bytes, core.output_bytes, core.kernels) == (kept, T * HEADS * D * W, 1)
    assert core.shape == (B, S, S, HEADS, KV, D, D, 0, 1)
    assert core.flops == T * 2 * 2 * HEADS * D * S
    ring = ops(cp=4)["core_attention"]
    assert ring.kernels == 4
    assert ring.saved_bytes == kept / 4
    assert ring.shape == (B, S, S, HEADS, KV, D, D, 0, 4)


def test_attention_that_writes_its_scores() -> None:
    found = ops(attention_impl="unfused")
    scores = B * HEADS * S * S
    assert found["scores"].shape == (B * HEADS, S, S, D)
    assert found["context"].shape == (B * HEADS, S, D, S)
    assert moved(found["scores"])[2:4] == (T * W * (HEADS + KV) * D, scores * W)
    # Reads the half that is not masked, writes all; dropout reads, writes and marks.
    assert moved(found["softmax"]) == (scores * (1.5 * W + 2 * W + 1), scores * (4 * W + 1), 5 * scores, scores * W, 2)
    assert moved(found["context"])[2:4] == (T * W * KV * D, T * HEADS * D * W)
    assert found["softmax"].timed == Timed("softmax", scores / S, S)


def test_attention_that_falls_back_to_products() -> None:
    core = ops(fused_groups=False)["core_attention"]
    scores, wide = B * HEADS * S * S, B * HEADS * S
    assert core.variant == "products"
    assert core.forward_bytes == W * (7.5 * scores + wide * (6 * D + 2 * D))
    assert core.backward_bytes == W * (5 * scores + wide * (6 * D + 2 * D))
    assert core.saved_bytes == W * (scores + wide * 3 * D)
    assert core.kernels == 14
    assert ops(fused_groups=False, cp=2)["core_attention"].variant == "flash"
    equal = transformer(hidden=H, layers=1, heads=HEADS, vocab=VOCAB, ffn=FFN)
    assert ops(equal, fused_groups=False)["core_attention"].variant == "flash"


def test_latent_attention_goes_down_and_up_and_is_put_together() -> None:
    model = load_model("deepseek-v3")
    found = ops(model, tp=4, sequence_parallel=True)
    heads, rope, nope, value, rank, queries = 128 / 4, 64, 128, 128, 512, 1536
    own = T / 4
    assert found["q_down"].shape == (own, queries, 7168)
    assert found["q_up"].shape == (T, heads * (nope + rope), queries)
    assert found["kv_down"].shape == (own, rank + rope, 7168)
    assert found["kv_up"].shape == (T, heads * (nope + value), rank)
    assert found["out"].shape == (T, 7168, heads * value)
    each = 2 * rope + 2 * (nope + rope + value)
    written = T * heads * (2 * (nope + rope) + value) * W
    assert moved(found["rope"]) == (T * heads * W * each, 1.5 * T * heads * W * each, 0, written, 2)
    apart = ops(model, tp=4, sequence_parallel=True, fused_mla=False)["rope"]
    each = 8 * rope + 4 * (nope + rope) + 2 * (nope + rope) + 2 * value
    assert (apart.forward_bytes, apart.kernels) == (T * heads * W * each, 14)


@pytest.mark.parametrize("ep", [1, 4])
def test_a_mixture_routes_permutes_multiplies_and_brings_back(ep: int) -> None:
    load = 1.5
    found = ops(MIXTURE, load, ep=ep)
    routed, groups = T * 2, 8 // ep
    arrived = routed * load
    assert moved(found["router"]) == (T * (H * (W + 4) + 24 * 8), T * (H * (W + 8) + 24 * 8), T * 8 * 8, 0, 12)
    assert (found["router"].flops, found["router"].weight_elements) == (2 * T * H * 8, H * 8)
    assert moved(found["permute"]) == (2 * W * routed * H, 2 * W * routed * H, 0, routed * H * W, 4)
    assert moved(found["unpermute"]) == (W * (routed + T) * H, W * (2 * routed + T) * H, 0, T * H * W, 3)
    assert found["unpermute"].timed == Timed("scatter_add_rows", routed, H)
    if ep > 1:
        assert moved(found["sort_by_expert"]) == (2 * W * arrived * H, 2 * W * arrived * H, 0, arrived * H * W, 2)
    assert ("sort_by_expert" in found) == (ep > 1)
    rows = arrived / groups
    assert found["experts_up"].shape == (groups, rows, 2 * FFN, H)
    assert found["experts_down"].shape == (groups, rows, H, FFN)
    assert found["experts_up"].flops == 2 * routed * 2 * FFN * H  # the mean over ranks
    assert moved(found["experts_up"]) == (0, 0, arrived * H * W, arrived * 2 * FFN * W, round(groups * 6.0))
    assert found["experts_up"].weight_elements == groups * 2 * FFN * H
    assert moved(found["expert_activation"])[:2] == (3 * arrived * FFN * W, 5 * arrived * FFN * W)
    low = ops(MIXTURE, load, ep=ep, precision="fp8")
    cast = CAST_BYTES["fp8"]
    assert moved(low["experts_down"])[:2] == (cast * arrived * FFN, cast * arrived * H)
    assert low["experts_down"].kernels == round(groups * 14.0)
    assert low["permute"].forward_bytes == 2 * W * (routed + arrived) * H  # rows are padded: one copy more
    kept = ops(MIXTURE, load, ep=ep, deduplicates=False)["unpermute"]
    assert kept.saved_bytes == routed * H * W
    weighed = ops(MIXTURE, load, ep=ep, deduplicates=False, weighs_in_experts=True)["unpermute"]
    assert replace(kept, saved_bytes=0.0) == weighed


def test_tokens_go_once_to_each_rank_or_each_domain_that_has_experts_for_them() -> None:
    block = MIXTURE.layers[0].feed_forward
    assert ranks_per_token(block, 4) == pytest.approx(4 * (1 - (3 / 4) ** 2))
    assert ranks_per_token(block, 1) == 1
    limited = replace(block, expert_groups=4, groups_per_token=2)
    assert ranks_per_token(limited, 8) == pytest.approx(4 * (1 - (3 / 4) ** 2))
    found = ops(MIXTURE, 1.5, ep=8)
    sent = T * 8 * (1 - (7 / 8) ** 2) * H * W
    assert found["dispatch"].before == ("all_to_all", "ep", pytest.approx(sent))
    assert found["dispatch"].output_bytes == pytest.approx(sent * 1.5)
    assert found["combine"].output_bytes == pytest.approx(sent)
    assert (found["dispatch"].skew, found["combine"].skew) == (1.5, 1.5)
    across = ops(MIXTURE, ep=8, ep_domains=2)["dispatch"]
    assert across.before == ("all_to_all", "ep", pytest.approx(T * 2 * (1 - 0.5**2) * H * W))
    narrow = ops(MIXTURE, ep=8, low_precision_dispatch=True)
    assert narrow["dispatch"].before == ("all_to_all", "ep", pytest.approx(sent / 2))
    assert narrow["dispatch"].before_backward == ("all_to_all", "ep", pytest.approx(sent))
    assert narrow["combine"].before == ("all_to_all", "ep", pytest.approx(sent))
    assert narrow["combine"].before_backward == ("all_to_all", "ep", pytest.approx(sent / 2))


def test_hybrid_dispatch_sends_a_weight_for_every_expert_of_a_domain_and_maps_of_all_tokens() -> None:
    """Eight experts: 4 x 8 bytes with each token and domain of one, 4 x 4 of two; a byte for each token and expert."""
    for domains, places in ((1, 8), (2, 2)):
        plain, found = (ops(MIXTURE, ep=8, ep_domains=domains, hybrid_dispatch=one) for one in (False, True))
        weights = T * places * (1 - (1 - 1 / places) ** 2) * 4 * 8 / domains
        more = [
            getattr(found["dispatch"], way).bytes_total - getattr(plain["dispatch"], way).bytes_total
            for way in ("before", "before_backward")
        ]
        assert more == pytest.approx([weights + T * 8 * places, weights])
        assert found["combine"] == plain["combine"]
        assert found["dispatch"].output_bytes == plain["dispatch"].output_bytes


def test_expert_tensor_ranks_see_each_others_tokens() -> None:
    found = ops(MIXTURE, 1.5, tp=2, etp=2, ep=2)
    local = T / 2
    even = local * 2 * 2
    assert found["expert_gather"].before == ("all_gather", "etp", even * H * W)
    assert found["expert_scatter"].before == ("reduce_scatter", "etp", even * H * W)
    assert found["experts_up"].shape == (4, even * 1.5 / 4, 2 * FFN / 2, H)


def test_ranks_that_route_whole_gather_before_the_router_and_send_the_tokens_of_all() -> None:
    """torchtitan's experts at etp = tp; the rows that experts multiply are the same."""
    plain, found = (
        ops(MIXTURE, tp=2, etp=2, ep=2, sequence_parallel=True, deduplicates=False, routes_whole=one)
        for one in (False, True)
    )
    assert found["router"].before == ("all_gather", "etp", T * H * W)
    assert found["unpermute"].after == ("reduce_scatter", "etp", T * H * W)
    assert not {"expert_gather", "expert_scatter"} & set(found)
    assert found["dispatch"].before == ("all_to_all", "ep", T * 2 * H * W)
    assert plain["dispatch"].before == ("all_to_all", "ep", T * H * W)
    assert found["experts_up"].shape == plain["experts_up"].shape
    assert found["router"].flops == 2 * plain["router"].flops
    whole = ops(MIXTURE, tp=2, etp=1, ep=2, sequence_parallel=True, deduplicates=False, routes_whole=True)
    assert whole == ops(MIXTURE, tp=2, etp=1, ep=2, sequence_parallel=True, deduplicates=False)


def test_a_masked_dispatch_writes_tables_of_tokens_by_places() -> None:
    plain, found = (ops(MIXTURE, ep=4, deduplicates=False, masked_dispatch=one) for one in (False, True))
    table = T * 2 * T
    # For each of two choices a table in fp32; their sum (two read, one written); the mask read, written and cast.
    more = table * (4 * 2 + 12 * (2 - 1) + 4 + 1 + 1 + W)
    assert found["router"].forward_bytes == plain["router"].forward_bytes + more
    assert found["router"].backward_bytes == plain["router"].backward_bytes + table * 4 * 2
    assert found["router"].kernels == plain["router"].kernels + 8
    assert found["permute"].shape == (2 * T, H, T)
    assert found["unpermute"].shape == (1, T, H, 2 * T)
    assert found["unpermute"].saved_bytes == 2 * T * H * W
    assert found["unpermute"].output_bytes == T * H * W
    of_four = transformer(hidden=H, layers=1, heads=HEADS, vocab=VOCAB, ffn=FFN, experts=8, topk=4)
    plain, found = (ops(of_four, ep=4, deduplicates=False, masked_dispatch=one) for one in (False, True))
    more = T * 4 * T * (4 * 4 + 12 * (4 - 1) + 4 + 1 + 1 + W)  # a table for each of four choices, three sums
    assert found["router"].forward_bytes == plain["router"].forward_bytes + more


def test_a_product_in_groups_keeps_the_input_of_each() -> None:
    grouped = product("up", "experts", (5, 7, 11, 13), 2.0)
    assert (grouped.saved_bytes, grouped.output_bytes) == (5 * 7 * 13 * 2, 5 * 7 * 11 * 2)
    assert (grouped.flops, grouped.weight_elements) == (2 * 5 * 7 * 11 * 13, 5 * 11 * 13)


def test_experts_that_fetch_their_rows_sort_and_cast_none() -> None:
    apart, found = (
        ops(MIXTURE, ep=4, deduplicates=False, precision="mxfp8", fused_exchange=one) for one in (False, True)
    )
    assert "sort_by_expert" in apart
    assert "sort_by_expert" not in found
    assert found["permute"].forward_bytes == 2 * T * H * W  # where others can read it
    assert found["permute"].backward_bytes == (2 * T + T) * H * W  # the sum of two choices' gradients
    for name in ("experts_up", "expert_activation", "experts_down"):
        assert (found[name].forward_bytes, found[name].backward_bytes) == (0.0, 0.0)
        assert found[name].saved_bytes == apart[name].saved_bytes
    assert (found["dispatch"].product, found["combine"].product) == (found["experts_up"], found["experts_down"])
    assert found["dispatch"].before == apart["dispatch"].before


def test_embedding_and_head() -> None:
    size = T * H * W
    (look_up,) = embedding_operations(DENSE, Shard(B, S))
    assert moved(look_up)[:4] == (2 * size, 3 * size, 0, size)
    (split,) = embedding_operations(DENSE, Shard(B, S, tp=2))
    assert split.after == ("all_reduce", "tp", size)
    (parted,) = embedding_operations(DENSE, Shard(B, S, tp=2, sequence_parallel=True))
    assert (parted.after, parted.before_backward) == (("reduce_scatter", "tp", size), ("all_gather", "tp", size))
    found = {op.name: op for op in head_operations(DENSE, Shard(B, S), 128)}
    assert found["head"].shape == (T, 128, H)
    assert moved(found["loss"]) == (8 * T * 128, 6 * T * 128, 4 * T * 128, 2 * T * 128, 3)
    eager = {op.name: op for op in head_operations(DENSE, Shard(B, S, fused=False), 128)}["loss"]
    assert (eager.forward_bytes, eager.backward_bytes, eager.kernels) == (16 * T * 128, 10 * T * 128, 8)
    for loss, launches in (("eager", 12), ("compiled", 3)):
        own = {op.name: op for op in head_operations(DENSE, Shard(B, S, loss=loss), 128)}["loss"]
        assert (own.forward_bytes, own.backward_bytes) == tuple(each * T * 128 for each in OWN_LOSS[loss])
        assert own.kernels == launches
    sharded = {op.name: op for op in head_operations(DENSE, Shard(B, S, tp=2), 128)}
    assert sharded["head"].shape == (T, 64, H)
    for name in ("loss maximum", "loss sum", "loss target"):
        assert sharded[name].before == ("all_reduce", "tp", 4 * T)
    assert sharded["loss"].saved_bytes == 4 * T * 64


def test_both_halves_of_a_parallel_block_share_one_gather_and_one_reduction() -> None:
    parallel = replace(DENSE, layers=(replace(DENSE.layers[0], parallel_block=True),))
    found = ops(parallel, tp=2, sequence_parallel=True)
    assert found["qkv"].before is not None
    assert found["mlp_up"].before is None
    assert found["mlp_up"].after_backward is None
    assert found["mlp_up"].regather is not None
    assert found["qkv"].regather is None
    assert found["out"].after is None
    assert found["out"].before_backward is None
    assert found["mlp_down"].after is not None
    one = replace(DENSE, layers=(replace(DENSE.layers[0], norms=1),))
    assert "norm_2" not in ops(one)


def test_parameters_of_a_layer_and_flops_of_a_token() -> None:
    attention = H * (HEADS + 2 * KV) * D + HEADS * D * H
    gated = 3 * H * FFN
    assert DENSE.parameters == attention + gated + 2 * H + 2 * VOCAB * H + H
    per_token = 2 * (attention + gated) + 2 * 2 * HEADS * D * S + 2 * VOCAB * H
    assert DENSE.forward_flops_per_token(S, "full") == per_token
    assert DENSE.forward_flops_per_token(S, "causal") == pytest.approx(per_token - 2 * HEADS * D * (S - 1))
    assert MIXTURE.parameters == attention + 8 * gated + H * 8 + 2 * H + 2 * VOCAB * H + H
    assert MIXTURE.active_parameters == attention + 2 * gated + H * 8 + 2 * H + 2 * VOCAB * H + H


def test_other_numbers_that_a_model_learns() -> None:
    attention = replace(DENSE.layers[0].attention, qkv_bias=True, out_bias=True, sinks=True)
    plain = DENSE.layers[0].attention.parameters(H)
    assert attention.parameters(H) == plain + (HEADS + 2 * KV) * D + H + HEADS
    assert replace(attention, qk_norm="per_head").parameters(H) == attention.parameters(H) + 2 * D
    assert replace(attention, qk_norm="full").parameters(H) == attention.parameters(H) + (HEADS + KV) * D
    assert replace(attention, output_gate=True).parameters(H) == attention.parameters(H) + HEADS * D * H
    block = DENSE.layers[0].feed_forward
    assert replace(block, bias=True).block_parameters(H) == 3 * H * FFN + 2 * FFN + H
    assert replace(block, bias=True, gated=False).block_parameters(H) == 2 * H * FFN + FFN + H
    shared = replace(MIXTURE.layers[0].feed_forward, shared_size=10, shared_gate=True, router_bias=True)
    assert shared.shared_parameters(H) == 3 * H * 10 + H
    assert shared.router_parameters(H) == 8 * (H + 1)
    assert shared.matmul_parameters(H) == 2 * 3 * H * FFN + 3 * H * 10 + H + H * 8
    ends = replace(DENSE, learned_positions=S, embedding_norm=True, norm_bias=True, output_bias=True)
    assert ends.embedding_parameters == (VOCAB + S) * H + 2 * H
    assert ends.head_parameters == VOCAB * (H + 1)
    assert replace(ends, tied_embeddings=True).head_parameters == 0
    layer = DENSE.parameters_of(DENSE.layers[0])
    assert replace(DENSE, mtp_layers=2).mtp_parameters == 2 * (layer.total + 2 * H * H + 3 * H)
    assert DENSE.mtp_parameters == 0
    assert replace(DENSE, final_norm=False).parameters == DENSE.parameters - H


def test_latent_attention_learns_its_ways_down_and_up() -> None:
    one = load_model("deepseek-v3").layers[0].attention
    h, heads, rank, queries, nope, rope, value = 7168, 128, 512, 1536, 128, 64, 128
    down = h * (queries + rank + rope)
    up = queries * heads * (nope + rope) + rank * heads * (nope + value)
    assert one.matmul_parameters(h) == down + up + heads * value * h
    assert one.parameters(h) == one.matmul_parameters(h) + queries + rank
    assert replace(one, q_lora_rank=None).matmul_parameters(h) == (
        h * (rank + rope) + h * heads * (nope + rope) + rank * heads * (nope + value) + heads * value * h
    )
    biased = replace(one, qkv_bias=True)
    assert biased.parameters(h) == one.parameters(h) + queries + rank + rope


def test_keys_that_a_query_meets_on_average() -> None:
    attention = DENSE.layers[0].attention
    assert attention.mean_keys(10) == 5.5
    assert attention.mean_keys(10, "full") == 10
    window = replace(attention, window=4)
    assert window.mean_keys(10) == pytest.approx((1 + 2 + 3 + 4 * 7) / 10)
    assert window.mean_keys(10, "full") == 4
    assert window.mean_keys(3) == 2
    chunked = replace(window, chunked=True)
    assert chunked.mean_keys(10) == pytest.approx((2 * (1 + 2 + 3 + 4) + 1 + 2) / 10)


def test_fewer_layers_are_the_first_and_more_repeat_the_pattern_of_the_last() -> None:
    a, b = DENSE.layers[0], replace(DENSE.layers[0], norms=1)
    model = replace(DENSE, layers=(a, a, b, a, b))
    assert model.with_changes(layers=2).layers == (a, a)
    assert model.with_changes(layers=8).layers == (a, a, b, a, b, a, b, a)
    assert model.distinct_layers() == ((a, 3), (b, 2))


def test_adapters_are_two_thin_products_and_a_sum_split_where_their_layer_is() -> None:
    rank = 4
    shard = Shard(B, S, tp=2, sequence_parallel=True)
    found = {op.name: op for op in with_adapters(layer_operations(DENSE.layers[0], DENSE, shard), shard, rank, "all")}
    up, down = found["mlp_up"].shape, found["mlp_down"].shape
    # By column: A is split over its rank and gathered, B gives this rank's part.
    assert found["mlp_up adapter A"].shape == (T, rank / 2, up[2])
    assert found["mlp_up adapter A"].after == ("all_gather", "tp", T * rank * W)
    assert found["mlp_up adapter B"].shape == (T, up[1], rank)
    # By row: A's parts are summed, B sees this rank's tokens.
    assert found["mlp_down adapter A"].shape == (T, rank, down[2])
    assert found["mlp_down adapter A"].after == ("all_reduce", "tp", T * rank * W)
    assert found["mlp_down adapter B"].shape == (T / 2, down[1], rank)
    total = found["mlp_down adapter sum"]
    own = T / 2 * down[1]
    assert moved(total) == (5 * W * own, W * (2 * own + 3 * T * down[2]), 0, own * W, 2)
    assert found["mlp_up adapter B"].flops == 2 * T * up[1] * rank
    assert found["mlp_up adapter B"].weight_elements == up[1] * rank
    assert found["mlp_up"].weight_elements == 0
    assert found["mlp_up"].regather is None
    odd = {op.name: op for op in with_adapters(layer_operations(DENSE.layers[0], DENSE, shard), shard, 3, "qkv")}
    assert odd["qkv adapter A"].shape == (T, 3, H)  # three do not divide by two ranks
    assert odd["qkv adapter A"].after is None
    assert "out adapter A" not in odd
    low = Shard(B, S, precision="fp8")
    plain = {op.name: op for op in layer_operations(DENSE.layers[0], DENSE, low)}["mlp_up"]
    frozen = {op.name: op for op in with_adapters(layer_operations(DENSE.layers[0], DENSE, low), low, rank, "qkv")}
    once = KEPT_BYTES["fp8"]
    assert frozen["mlp_up"].forward_bytes == max(0, plain.forward_bytes - once * T * H)
    assert frozen["mlp_up"].backward_bytes == max(0, plain.backward_bytes - once * T * 2 * FFN)
    (look_up,) = with_adapters(embedding_operations(DENSE, shard), shard, rank, "all")
    assert (look_up.backward_bytes, look_up.before_backward) == (0, None)


def test_a_gated_delta_rule_by_its_formulas() -> None:
    """Updates and reads of the state and products within a chunk; what it keeps; what moves beside its kernels."""
    model = load_model("qwen3-next-80b-a3b")
    layer = next(layer for layer in model.layers if isinstance(layer.attention, Recurrent))
    mixer = layer.attention
    assert isinstance(mixer, Recurrent)
    d, heads, channels, width = mixer.head_dim, mixer.heads, mixer.conv_channels, mixer.conv_width
    narrow = replace(mixer, value_head_dim=d // 2)
    scan = heads * (6 * d * d / 2 + 64 * (4 * d + 3 * d / 2))
    assert narrow.scan_flops(64) == 2 * channels * width + scan
    assert mixer.state_bytes() == 4 * heads * d * d + 2 * channels * width + 2 * mixer.more_state
    (gates,) = (op for op in layer_operations(layer, model, Shard(batch=B, seq_len=S), 1.0) if op.name == "gates")
    value, wide = heads * d, 2 * heads * d
    keys = channels - value
    repeats = keys + wide
    assert keys < wide
    assert moved(gates)[:2] == (
        T * W * (2 * keys + repeats + (4 + 5) * value),
        T * W * (6 * keys + repeats + (6 + 8) * value),
    )
