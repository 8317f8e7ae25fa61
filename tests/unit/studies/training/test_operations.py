"""The ops of one layer on one rank, against the papers' counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.physics.model.families import transformer
from windtunnel.physics.model.layers.layer import embedding_operations, head_operations, layer_operations
from windtunnel.physics.model.operations import Operation, Shard
from windtunnel.studies.training.layout import resolve
from windtunnel.studies.training.lowering.model_chunks import shard_of
from windtunnel.studies.training.plan import Plan

LLAMA = load_model("llama-3-8b")
MIXTRAL = load_model("mixtral-8x7b")
DEEPSEEK = load_model("deepseek-v3")


def ops(model=LLAMA, index=-1, **shard) -> dict[str, Operation]:
    found = layer_operations(model.layers[index], model, Shard(**{"batch": 1, "seq_len": 4096, **shard}))
    return {op.name: op for op in found}


def test_a_llama_layer_in_order_with_its_shapes() -> None:
    found = ops()
    assert list(found) == [
        *("norm_1", "qkv", "rope", "core_attention", "out", "residual_1"),
        *("norm_2", "mlp_up", "activation", "mlp_down", "residual_2"),
    ]
    shapes = {name: found[name].shape for name in ("qkv", "out", "mlp_up", "mlp_down")}
    assert shapes == {
        "qkv": (4096, 6144, 4096),  # 32 query heads and 2 x 8 key/value heads of 128
        "out": (4096, 4096, 4096),
        "mlp_up": (4096, 2 * 14336, 4096),
        "mlp_down": (4096, 4096, 14336),
    }
    assert found["core_attention"].shape[:7] == (1, 4096, 4096, 32, 8, 128, 128)


def test_a_gemm_is_two_flops_per_multiplication() -> None:
    for op in ops().values():
        if op.kind == "gemm":
            m, n, k = op.shape
            assert op.flops == 2 * m * n * k
            assert op.weight_elements == n * k


@pytest.mark.parametrize("model", [LLAMA, load_model("gpt2"), load_model("mpt-7b"), load_model("gpt-neox-20b")])
def test_flops_of_all_ops_are_those_of_the_model(model) -> None:
    shard = Shard(batch=2, seq_len=1024)
    layers = sum(op.flops for layer in model.layers for op in layer_operations(layer, model, shard))
    head = sum(op.flops for op in head_operations(model, shard, model.vocab_size))
    assert layers + head == pytest.approx(2 * 1024 * model.forward_flops_per_token(1024, "full"))


@settings(deadline=None, max_examples=50)
@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from(["ring", "ulysses"]), st.booleans())
def test_ranks_share_the_flops_of_a_layer(tp, cp, kind, sequence_parallel) -> None:
    alone = sum(op.flops for op in ops().values())
    one = sum(op.flops for op in ops(tp=tp, cp=cp, cp_kind=kind, sequence_parallel=sequence_parallel).values())
    assert one * tp * cp == pytest.approx(alone)


@settings(deadline=None, max_examples=50)
@given(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]))
def test_ranks_share_the_flops_of_experts(tp, ep, etp) -> None:
    alone = sum(op.flops for op in ops(MIXTRAL).values())
    one = sum(op.flops for op in ops(MIXTRAL, tp=tp, ep=ep, etp=etp, sequence_parallel=tp > 1).values())
    assert one * tp == pytest.approx(alone)


def test_tensor_parallelism_sums_with_an_all_reduce_or_a_scatter_and_a_gather() -> None:
    """Korthikanti 2022, figure 5: sequence parallelism replaces each all-reduce by a pair of the same bytes."""
    size = 4096 * 4096 * 2
    plain, shared = ops(tp=4), ops(tp=4, sequence_parallel=True)
    assert plain["qkv"].before is plain["qkv"].regather is None
    assert plain["qkv"].after_backward == ("all_reduce", "tp", size)
    assert plain["out"].after == ("all_reduce", "tp", size)
    assert shared["qkv"].before == shared["qkv"].regather == ("all_gather", "tp", size)
    assert shared["qkv"].after_backward == ("reduce_scatter", "tp", size)
    assert shared["out"].after == ("reduce_scatter", "tp", size)
    assert shared["out"].before_backward == ("all_gather", "tp", size)
    assert shared["norm_1"].forward_bytes == plain["norm_1"].forward_bytes / 4


def test_no_transfer_without_parallelism() -> None:
    for model in (LLAMA, MIXTRAL, DEEPSEEK):
        ends = [*embedding_operations(model, Shard(1, 512)), *head_operations(model, Shard(1, 512), 8)]
        for op in [*ops(model).values(), *ends]:
            moved = (op.before, op.after, op.before_backward, op.regather, op.after_backward)
            assert moved == (None,) * 5, op.name
            assert op.kind != "transfer"


def test_low_precision_gathers_a_byte_per_element_and_keeps_one() -> None:
    high, low = ops(tp=4, sequence_parallel=True), ops(tp=4, sequence_parallel=True, precision="fp8")
    assert low["qkv"].before.bytes_total == high["qkv"].before.bytes_total / 2
    assert low["qkv"].saved_bytes == high["qkv"].saved_bytes / 2
    assert low["qkv"].forward_bytes > 0 == high["qkv"].forward_bytes
    assert low["qkv"].low_precision
    assert not low["core_attention"].low_precision


def test_key_value_heads_are_copied_where_there_are_fewer_than_ranks() -> None:
    wide = ops(tp=16)
    assert wide["qkv"].shape[1] == 2 * 128 + 2 * 128  # 2 query heads, one key and one value head
    assert wide["core_attention"].shape[4] == 1


def test_experts_send_each_token_to_its_experts() -> None:
    found = ops(MIXTRAL, ep=4)
    routed = 4096 * 2
    once = 4096 * 4 * (1 - 0.75**2)  # to 1.75 of four ranks
    assert found["dispatch"].before == ("all_to_all", "ep", pytest.approx(once * 4096 * 2))
    apart = ops(MIXTRAL, ep=4, deduplicates=False)
    assert apart["dispatch"].before == ("all_to_all", "ep", routed * 4096 * 2)
    assert found["combine"].before == found["dispatch"].before
    assert found["experts_up"].shape == (2, routed / 2, 2 * 14336, 4096)
    assert "dispatch" not in ops(MIXTRAL)


def test_a_masked_dispatch_multiplies_all_tokens_with_all_places() -> None:
    plain = ops(MIXTRAL, ep=4, deduplicates=False)
    found, half = (
        ops(MIXTRAL, seq_len=tokens, ep=4, masked_dispatch=True, deduplicates=False) for tokens in (4096, 2048)
    )
    tokens, places = 4096, 4096 * 2
    assert found["permute"].flops == found["unpermute"].flops == 2 * tokens * places * 4096
    # Kept: weights in fp32, the mask in bf16.
    assert found["router"].saved_bytes == plain["router"].saved_bytes + tokens * places * 6
    tables, fewer = (one["router"].forward_bytes - two for one, two in (
        (found, plain["router"].forward_bytes), (half, plain["router"].forward_bytes / 2),
    ))  # fmt: skip
    assert tables > 3.9 * fewer  # all but the matrix grow with tokens squared
    assert list(found) == list(plain)
    for name in set(found) - {"router", "permute", "unpermute"}:
        assert found[name] == plain[name]


def test_what_comes_back_from_experts_is_kept_where_it_is_weighed_at_home() -> None:
    for release, framework, kept in ((None, "megatron", 0.0), ("nemo-25.04", "megatron", 1.0), (None, "fsdp", 1.0)):
        batch: dict[str, Any] = {"global_batch": 8, "seq_len": 4096, "ep": 8, "zero_stage": 1, "dispatcher": "alltoall"}
        plan = Plan(**batch, release=release, framework=framework)
        shard = shard_of(resolve(MIXTRAL, parse_cluster("h100-sxm:8"), plan))
        operations = {op.name: op for op in layer_operations(MIXTRAL.layers[-1], MIXTRAL, shard)}
        assert operations["unpermute"].saved_bytes == kept * 4096 * 2 * 4096 * 2, release


def test_scans_keep_what_their_kernels_save() -> None:
    """Elements of a token: the projection and twice the values; and of the delta rule what its own kernels read."""
    for name, layer, kept in (
        ("nemotron-h-56b", 0, 2 * 16384 + 2 * 8 * 256 + 256 + 2 * 16384),
        # Projection, queries and keys of 16 heads, both again for 32, values before and behind, 64 numbers a head.
        ("qwen3.5-35b-a3b", 0, 2 * 2048 + 2 * 4096 + 64 + 2 * 2048 + 2 * 4096 + 2 * 4096 + 64 * 32),
    ):
        model = load_model(name)
        scan = next(op for op in ops(model, layer).values() if op.kind == "scan")
        assert scan.saved_bytes == 4096 * 2 * kept, name


def test_biased_experts_without_a_gate_have_a_plain_activation() -> None:
    """Clamp, gate and weigh are gpt-oss's: GELU reads and writes each element once, with a bias or without."""
    numbers = {"hidden": 512, "layers": 1, "heads": 8, "vocab": 256, "ffn": 2048, "gated": False}
    dense = ops(transformer(**numbers, family="gpt"))["activation"]
    experts = ops(transformer(**numbers, family="gpt", experts=4, topk=2))["expert_activation"]
    assert experts.forward_bytes == 2 * dense.forward_bytes  # every token goes to two
    assert experts.backward_bytes == 2 * dense.backward_bytes


def test_only_some_layers_of_deepseek_have_experts() -> None:
    assert "experts_up" not in ops(DEEPSEEK, 0)
    assert {"experts_up", "shared_up", "q_down", "q_up", "kv_down", "kv_up"} <= set(ops(DEEPSEEK, -1))
    assert ops(DEEPSEEK)["core_attention"].shape[3:7] == (128, 128, 192, 128)


def test_context_parallelism_passes_keys_or_swaps_heads() -> None:
    ring, swap = ops(cp=4), ops(cp=4, cp_kind="ulysses")
    assert ring["core_attention"].before == ("send_recv", "cp", 1024 * 8 * 256 * 2)
    assert swap["core_attention"].before is None
    assert swap["heads_to_ranks"].before == ("all_to_all", "cp", 1024 * (32 + 8 + 8) * 128 * 2)
    assert swap["ranks_to_heads"].before == ("all_to_all", "cp", 1024 * 32 * 128 * 2)


def test_eager_kernels_move_more_bytes_in_more_launches() -> None:
    fused, eager = ops(), ops(fused=False)
    for name in ("norm_1", "rope", "activation"):
        assert eager[name].forward_bytes > fused[name].forward_bytes
        assert eager[name].kernels > fused[name].kernels


def test_unfused_attention_writes_its_scores() -> None:
    found = ops(attention_impl="unfused")
    scores = 32 * 4096 * 4096
    assert "core_attention" not in found
    assert found["scores"].flops + found["context"].flops == ops()["core_attention"].flops
    assert found["softmax"].saved_bytes == 5 * scores  # Korthikanti 2022, section 4: 5 a s^2 b with dropout


def test_a_chunked_window_is_a_batch_of_short_sequences() -> None:
    scout = load_model("llama-4-scout")
    chunked = next(i for i, layer in enumerate(scout.layers) if layer.attention.chunked)
    assert ops(scout, chunked, seq_len=32768)["core_attention"].shape[:3] == (4, 8192, 8192)


def test_a_parallel_block_has_one_norm() -> None:
    layer = LLAMA.layers[0]
    parallel = layer_operations(replace(layer, parallel_block=True), LLAMA, Shard(1, 512))
    assert [op.name for op in parallel if op.part == "norms"] == ["norm_1"]
