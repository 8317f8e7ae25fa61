"""Sharded gradients that are made anew in every step (FSDP): none before the first backward, all of them at its end."""

from __future__ import annotations

from typing import Any

import pytest

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import Model, load_model, transformer
from windtunnel.studies.training import predict
from windtunnel.studies.training.layout import Layout, resolve
from windtunnel.studies.training.lowering.model_chunks import fresh_gradients, pieces_of
from windtunnel.studies.training.memory.allocations import Load
from windtunnel.studies.training.memory.model_state import state_bytes
from windtunnel.studies.training.plan import Plan
from windtunnel.studies.training.schedules import Kind


def model(**changes: Any) -> Model:
    shape = {"hidden": 1024, "layers": 4, "heads": 16, "vocab": 8192, "ffn": 4096, "family": "llama"} | changes
    return transformer(**shape)


def layout_of(**plan: Any) -> Layout:
    fields = {"global_batch": 8, "seq_len": 2048, "framework": "torchtitan"} | plan
    return resolve(model(), parse_cluster("h100-sxm:8"), Plan(**fields))


def backward(*, later: bool = False, **plan: Any) -> Load:
    return pieces_of(layout_of(**plan))[0].passes.load(Kind.BACKWARD, later=later)


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp"])
@pytest.mark.parametrize("stage", [2, 3])
def test_the_first_backward_makes_all_of_a_ranks_gradients(framework: str, stage: int) -> None:
    layout = layout_of(framework=framework, zero_stage=stage)
    assert fresh_gradients(layout)
    piece = pieces_of(layout)[0]
    first, later = (piece.passes.load(Kind.BACKWARD, later=which) for which in (False, True))
    expected = state_bytes(layout, piece.dense_parameters, 0.0).gradients
    assert first.learns == pytest.approx(expected, rel=1e-6)
    assert 0 <= first.learned <= first.learns
    assert (later.learns, later.learned) == (0, 0)
    assert later.most <= first.most
    assert first.adds == later.adds == -piece.passes.saved_bytes


def test_buffers_that_stay_are_not_made_anew() -> None:
    for plan in (
        {"framework": "megatron", "zero_stage": 3},
        {"framework": "nanotron"},
        {"framework": "deepspeed", "zero_stage": 1},
    ):
        assert not fresh_gradients(layout_of(**plan)), plan
        assert backward(**plan).learns == 0


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp"])
@pytest.mark.parametrize("stage", [0, 1])
def test_gradients_that_nobody_shards_are_autograds(framework: str, stage: int) -> None:
    """All of them after the first micro-batch, in 16 bits here; later ones are added to them one by one."""
    layout = layout_of(framework=framework, zero_stage=stage)
    assert fresh_gradients(layout)
    piece = pieces_of(layout)[0]
    first, later = (piece.passes.load(Kind.BACKWARD, later=which) for which in (False, True))
    assert first.learns == pytest.approx(2.0 * piece.dense_parameters, rel=0.01)  # but for the norms
    assert later.learns == 0
    assert first.adds == later.adds == -piece.passes.saved_bytes
    largest = 2.0 * max(op.weight_elements for block in piece.blocks for op in block.operations)
    assert later.most <= piece.passes.load(Kind.FORWARD).most + largest


def test_one_gpu_holds_one_gradient_of_each_parameter_and_replicas_a_bucket_beside_it() -> None:
    plan = {"framework": "fsdp", "master_dtype": "bf16", "optimizer_dtype": "bf16", "zero_stage": 0, "seq_len": 256}
    alone, both = (predict(model(), f"h100-sxm:{n}", {"global_batch": n, **plan}).memory[0].categories for n in (1, 2))
    parameters = model().parameters
    assert alone["gradients"] == pytest.approx(2.0 * parameters, rel=0.01)
    assert both["gradients"] == pytest.approx(4.0 * parameters, rel=0.05)  # in buckets of 25 MiB


def test_one_micro_batch_peaks_without_gradients_and_several_with_all() -> None:
    """Where the loss is what needs most, which is before any gradient of a parameter is made."""
    shape = {"model": model(vocab=128 * 1024), "cluster": "h100-sxm:8"}
    one, two = (
        predict(**shape, plan={"global_batch": 8 * count, "seq_len": 2048, "framework": "torchtitan"}).memory[0]
        for count in (1, 2)
    )
    assert one.categories["gradients"] == 0
    shard = two.categories["gradients"]
    assert shard == pytest.approx(4 * 8 * one.categories["parameters"] / 8 / 4, rel=1e-3)  # fp32, like the parameters
    assert two.peak_allocated_bytes - one.peak_allocated_bytes == pytest.approx(shard, rel=1e-3)


def test_what_a_block_is_reduced_from_stays_until_the_next_is() -> None:
    """FSDP2 frees it one block later, so with equal blocks a backward pass holds one such copy more."""
    lingering = backward(recompute="full", seq_len=256)
    at_once = backward(recompute="full", seq_len=256, framework="fsdp")
    layer = pieces_of(layout_of())[0].blocks[1].dense_parameters
    assert lingering.most - at_once.most > 2 * layer


def test_logits_stay_where_a_pipeline_holds_them() -> None:
    """torchtitan lets go of them before the backward pass; the last stage of a pipeline does not."""
    names = {"global_batch": 8, "seq_len": 2048, "zero_stage": 0}
    alone = pieces_of(layout_of(**names))[0].passes.saved_bytes
    wide = 2 * 8192 * 2048
    layers = 2 * pieces_of(layout_of(**names, pp=2))[0].passes.saved_bytes
    last = sum(piece.passes.saved_bytes for piece in pieces_of(layout_of(**names, pp=2)))
    assert last - alone == pytest.approx(wide, abs=0.05 * wide), (layers, alone, last)


@pytest.mark.parametrize("framework", ["torchtitan", "fsdp", "pytorch"])
def test_attention_without_a_kernel_writes_its_scores(framework: str) -> None:
    """scaled_dot_product_attention on a GPU: fp32, fewer heads for keys and values than for queries."""

    def pieces(precision: str, heads: int, cluster: str = "h100-sxm:8") -> Any:
        config = load_model("llama-3-8b").with_changes(layers=2)
        assert config.layers[0].attention.kv_heads == 8
        shape = model(kv_heads=heads)
        plan = Plan(global_batch=8, seq_len=1024, framework=framework, precision=precision)
        return pieces_of(resolve(shape, parse_cluster(cluster), plan))[0]

    def variant(piece: Any) -> str:
        return next(op.variant for block in piece.blocks for op in block.operations if op.kind == "attention")

    grouped, equal, half = pieces("fp32", 4), pieces("fp32", 16), pieces("bf16", 4)
    assert variant(grouped) == "products"
    assert variant(equal) != "products"
    assert variant(half) != "products"
    scores = 4 * 16 * 1024 * 1024  # of one layer
    assert grouped.passes.saved_bytes - equal.passes.saved_bytes > 4 * 0.9 * scores
    assert grouped.passes.load(Kind.FORWARD).most >= grouped.passes.saved_bytes
