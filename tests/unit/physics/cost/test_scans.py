"""Scans of mixers with a fixed state: along a sequence, side by side over sequences, and where no table has them."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest

from windtunnel.physics.cost.price import Source
from windtunnel.physics.cost.scans import mixer_s, scan_price, scan_s
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.physics.model.layers.attention import attention_operations
from windtunnel.physics.model.layers.layer import layer_operations
from windtunnel.physics.model.mixers import Recurrent
from windtunnel.physics.model.operations import Operation, Shard, Transfer

B200 = parse_cluster("b200-sxm:8").gpu
tables = pytest.mark.skipif(find_spec("aiconfigurator_core") is None, reason="the package with the tables is missing")


@tables
def test_one_long_prompt_of_few_heads_takes_longer_than_as_many_tokens_of_short_ones() -> None:
    """FlashInfer's kernel works on heads and sequences side by side, and walks along each."""
    alone = scan_s(B200, "vllm", "gdn", 8, 128, 128, 8192, 1)
    many = scan_s(B200, "vllm", "gdn", 8, 128, 128, 1024, 8)
    assert alone is not None
    assert many is not None
    assert alone > 3 * many


@tables
def test_more_tokens_and_more_sequences_never_take_less() -> None:
    for framework in ("vllm", "sglang"):
        longer = [scan_s(B200, framework, "gdn", 16, 128, 128, 2.0**n, 1) or 0.0 for n in range(6, 18)]
        more = [scan_s(B200, framework, "gdn", 16, 128, 128, 512, n) or 0.0 for n in (1, 2, 3, 8, 40, 100)]
        assert longer[0] > 0.0
        assert longer == sorted(longer)
        assert more == sorted(more)


@tables
def test_heads_within_twice_of_those_that_were_timed_are_scaled_and_others_are_no_measurement() -> None:
    timed, twice = (scan_s(B200, "vllm", "gdn", heads, 128, 128, 4096, 1) for heads in (64, 128))
    assert timed is not None
    assert twice is not None
    assert twice > timed
    assert scan_s(B200, "vllm", "gdn", 256, 128, 128, 4096, 1) is None


def test_a_scan_without_a_table_takes_its_bytes_and_its_products() -> None:
    model = load_model("nemotron-3-nano")
    layer = next(one for one, _ in model.distinct_layers() if isinstance(one.attention, Recurrent))
    seconds = []
    for length in (4096, 8192):
        ops = layer_operations(layer, model, Shard(batch=1, seq_len=length), 1.0)
        op = next(op for op in ops if op.kind == "scan")
        forward, backward = (scan_price(B200, op, backward=way) for way in (False, True))
        assert forward.source is Source.ROOFLINE
        assert forward.p5 < forward.seconds < forward.p95
        assert forward.seconds > op.forward_bytes / B200.memory_bandwidth_bytes_per_s
        assert backward.seconds > 2 * forward.seconds
        seconds.append(forward.seconds)
    assert seconds[1] == pytest.approx(2 * seconds[0], rel=0.05)


def test_decoding_reads_and_writes_the_state() -> None:
    model = load_model("nemotron-3-nano")
    mixer = next(one.attention for one, _ in model.distinct_layers() if isinstance(one.attention, Recurrent))
    assert isinstance(mixer, Recurrent)
    spent = mixer_s(B200, "vllm", mixer, 1, 512, 1)
    assert spent > 512 * 2 * mixer.state_bytes() / B200.memory_bandwidth_bytes_per_s


def _mixer(shard: Shard) -> list[Operation]:
    layer = next(
        one for one, _ in load_model("qwen3-next-80b-a3b").distinct_layers() if isinstance(one.attention, Recurrent)
    )
    return attention_operations(layer.attention, load_model("qwen3-next-80b-a3b"), shard)


def test_what_stands_beside_a_gated_delta_rule_by_hand() -> None:
    """Qwen3-Next: queries and keys of 2 x 16 x 128, values of 32 x 128, so 4,096 numbers each, of 4,096 tokens."""
    gates = next(op for op in _mixer(Shard(batch=1, seq_len=4096)) if op.name == "gates")
    assert gates.forward_bytes == 4096 * 2 * (3 * 4096 + 11 * 4096)
    assert gates.backward_bytes == 4096 * 2 * (7 * 4096 + 16 * 4096)
    eager = next(op for op in _mixer(Shard(batch=1, seq_len=4096, fused=False)) if op.name == "gates")
    assert eager.forward_bytes == 4096 * 2 * (3 * 4096 + 34 * 4096)
    assert eager.kernels > gates.kernels


def test_as_many_heads_of_keys_as_of_values_are_not_repeated() -> None:
    """8 heads of 128 for keys, of 256 for values: K is 1,024 and V 2,048."""
    layer = next(
        each for each, _ in load_model("qwen3-next-80b-a3b").distinct_layers() if isinstance(each.attention, Recurrent)
    )
    assert isinstance(layer.attention, Recurrent)
    mixer = replace(layer.attention, heads=8, value_head_dim=256, conv_channels=2 * 1024 + 2048)
    ops = attention_operations(mixer, load_model("qwen3-next-80b-a3b"), Shard(batch=1, seq_len=4096))
    gates = next(op for op in ops if op.name == "gates")
    assert gates.forward_bytes == 4096 * 2 * (4 * 1024 + (4 + 5) * 2048)
    assert gates.backward_bytes == 4096 * 2 * (12 * 1024 + (6 + 8) * 2048)


def test_context_parallel_ranks_of_megatron_walk_along_the_whole_sequence() -> None:
    """All tokens of eight heads, between two all-to-alls; elsewhere a quarter of the tokens, and a state sent on."""
    shard = Shard(batch=1, seq_len=131072, cp=4, exchanges_heads=True)
    ops = _mixer(shard)
    assert [op.name for op in ops] == ["qkv", "heads_to_ranks", "core_attention", "gates", "ranks_to_heads", "out"]
    assert ops[2].shape == (1, 131072, 8.0, 128, 128, 1)
    assert ops[2].before is None
    assert ops[1].before == Transfer("all_to_all", "cp", 32768 * 2 * (2 * 2048 + 2 * 4096 + 64))
    handed = _mixer(Shard(batch=1, seq_len=131072, cp=4))
    scan = next(op for op in handed if op.kind == "scan")
    assert scan.shape[-1] == 4
    assert scan.before is not None
    assert scan.before.kind == "send_recv"
    assert scan.flops == ops[2].flops


@tables
def test_few_heads_over_all_tokens_take_longer_than_all_heads_over_few() -> None:
    """One sequence is walked along chunk by chunk: a state waits for the one before it, however few heads there are."""
    h100 = parse_cluster("h100-sxm:8").gpu
    spread, whole = (
        next(scan_price(h100, op, backward=False).seconds for op in _mixer(shard) if op.kind == "scan")
        for shard in (
            Shard(batch=1, seq_len=131072, cp=8),
            Shard(batch=1, seq_len=131072, cp=8, exchanges_heads=True),
        )
    )
    assert whole > 2 * spread
