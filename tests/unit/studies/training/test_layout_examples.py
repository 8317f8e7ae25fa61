"""Who meets whom in a layout, and what it fills in: groups by hand from the order of ranks (tp, cp, dp, pp)."""

from __future__ import annotations

from typing import Any

import pytest

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import Model, load_model, transformer
from windtunnel.studies.training import read_plan
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.model_chunks import pieces_of
from windtunnel.studies.training.memory.peak import (
    BUCKET_BYTES,
    _Ranks,
    least_reserved,
    outside_bytes,
)
from windtunnel.studies.training.memory.saved_tensors import keeping

DENSE = transformer(hidden=1024, layers=8, heads=16, vocab=4000, ffn=4096, name="small")
EXPERTS = load_model("mixtral-8x7b")


def laid_out(model: Model = DENSE, cluster: str = "h100-sxm:64", **plan: Any) -> Layout:
    return resolve(model, parse_cluster(cluster), read_plan({"global_batch": 64, "seq_len": 512, **plan}))


def test_groups_of_a_dense_layout() -> None:
    layout = laid_out(tp=2, cp=2, pp=2)  # dp 8: ranks of a stage are tp 2 x cp 2 x dp 8
    assert layout.dp == 8
    ranks = {name: layout._ranks(name) for name in ("tp", "cp", "dp", "replica", "pp", "world")}
    assert ranks == {"tp": (2, 1), "cp": (2, 2), "dp": (16, 2), "replica": (1, 32), "pp": (2, 32), "world": (64, 1)}
    assert layout._ranks("pp far") == (2, 32)
    assert laid_out(DENSE.with_changes(layers=32), tp=2, pp=32)._ranks("pp far") == (
        2,
        8,
    )  # the next domain, if stages are neighbours
    assert laid_out(tp=2)._ranks("pp") == (1, 64)
    tp, dp = layout.group("tp"), layout.group("dp")
    assert (tp.size, tp.domains, tp.per_domain) == (2, 1, 2)
    assert (dp.size, dp.domains, dp.per_domain) == (16, 4, 4)  # every other rank of 32: four in each node of eight
    assert dp.nics_shared_by == 1


def test_groups_of_shards_and_their_replicas() -> None:
    layout = laid_out(tp=2, zero_stage=3, shard_group=8)
    assert (layout.shard_group, layout.replicas) == (8, 4)
    assert (layout._ranks("dp"), layout._ranks("replica")) == ((8, 2), (4, 16))


def test_groups_of_experts() -> None:
    layout = laid_out(EXPERTS, tp=2, ep=4, etp=2)
    assert layout._ranks("ep") == (4, 2)
    assert layout._ranks("etp") == (2, 1)
    assert layout._ranks("edp") == (64 // 8, 8)
    assert laid_out(EXPERTS, tp=2, ep=4, etp=1)._ranks("edp") == (16, 4)
    assert laid_out(EXPERTS, tp=2, ep=1).etp == 2  # without expert parallelism experts are cut as all else
    assert laid_out(DENSE, tp=2).etp == 1


def test_what_follows_from_a_plan() -> None:
    layout = laid_out(tp=2, cp=2, pp=2, micro_batch=2)
    assert layout.tokens_per_rank == 2 * 512 // 2
    assert layout.tokens_per_step == 64 * 512
    assert layout.micro_batches == 64 // (2 * 8)
    unit = layout.habits.vocabulary_unit * 2
    assert layout.vocab_padded == -(-4000 // unit) * unit
    assert layout.sums_norms == bool(layout.plan.sequence_parallel)
    assert not laid_out(tp=1).sums_norms
    assert [len(virtual_layer) for virtual_layer in layout.virtual_layers] == [4, 4]
    assert laid_out(gradient_dtype="fp32").gradient_bytes == 4.0
    assert laid_out(gradient_dtype="bf16").gradient_bytes == 2.0
    assert laid_out(bucket_parameters=12345).message_parameters == 12345.0
    habits = layout.habits
    most = max(habits.message_parameters, habits.message_per_replica * 16)
    assert layout.message_parameters == (most if layout.plan.zero_stage else habits.message_whole_parameters or most)


@pytest.mark.parametrize(("stage", "pp"), [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2)])
def test_passes_gather_from_stage_three_and_reduce_from_stage_two(stage: int, pp: int) -> None:
    layout = laid_out(zero_stage=stage, pp=pp, framework="torchtitan")
    once = pp > 1 and stage in layout.habits.pipeline_shares_once
    assert layout.shares_once == once
    assert layout.gathers_in_passes == (stage == 3 and not once)
    assert layout.reduces_in_passes == (stage >= 2 and not once)


def test_nobody_to_share_with_is_no_sharding() -> None:
    alone = laid_out(cluster="h100-sxm:8", tp=8, zero_stage=3)
    assert (alone.plan.zero_stage, alone.shard_group, alone.replicas) == (0, 1, 1)


def ranks_of(layout: Layout) -> _Ranks:
    return _Ranks(layout, pieces_of(layout), layout.schedule_table())


def test_gradients_in_buckets_and_updated_copies() -> None:
    layout = laid_out(framework="fsdp", zero_stage=0)
    ranks = ranks_of(layout)
    held = ranks.pieces_of[0]
    parameters = sum(sum(piece.learning) for piece in held)
    count = int(2 * parameters // BUCKET_BYTES)
    assert ranks._buckets(held) == ([BUCKET_BYTES] * count if keeping("fsdp").buckets else [])
    for framework in ("nanotron", "megatron"):
        sharded = laid_out(framework=framework, zero_stage=1)
        ranks = ranks_of(sharded)
        size = int(2 * sum(sum(piece.learning) for piece in ranks.pieces_of[0]))
        part = size // 64
        copies = [part] * 65 + [size] if keeping(framework).updated_copy else []
        assert ranks._updated(ranks.pieces_of[0]) == copies


def test_what_is_reserved_beyond_what_is_allocated() -> None:
    from windtunnel.physics.cost.device_memory import memory_document, outside_of_allocator

    layout = laid_out(tp=2, pp=2)
    document = memory_document()
    assert outside_bytes(layout) == outside_of_allocator(layout.cluster, 3)  # tensor, data and pipeline communicators
    assert outside_bytes(laid_out(tp=2)) == outside_of_allocator(layout.cluster, 2)
    expandable = keeping("megatron").expandable
    slack = document["slack"]["expandable" if expandable else "segments"]
    headroom = 0.0 if expandable else document["headroom"]
    assert least_reserved(layout) == pytest.approx((1 + slack) * (1 + headroom))
    ranks = ranks_of(layout)
    assert ranks.least == [
        int(int(one * (1 + slack)) * (1 + headroom)) + outside_bytes(layout) for one in ranks.allocated
    ]


def test_categories_of_a_peak_are_state_and_what_is_in_flight() -> None:
    layout = laid_out(pp=2, zero_stage=0)
    ranks = ranks_of(layout)
    for held, (categories, walk) in zip(ranks.pieces_of, ranks.drafts, strict=True):
        dense = sum(piece.dense_parameters for piece in held)
        assert categories["parameters"] == int(2 * dense)
        assert categories["gradients"] == int(layout.gradient_bytes * dense + walk.gradients)
        assert sum(categories.values()) == ranks.allocated[ranks.pieces_of.index(held)]
    first, last = (ranks.drafts[rank][1].activations for rank in (0, 1))
    layers = [sum(not block.is_end for piece in held for block in piece.blocks) for held in ranks.pieces_of]
    assert layers == [4, 4]
    assert first > 1.5 * last  # two micro-batches are in flight on the first stage, one on the last
