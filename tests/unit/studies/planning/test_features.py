"""What a release of a framework does not have is not searched."""

from __future__ import annotations

from typing import Any

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.planning.space.plan_space import Space, savings, structures, switches

OLD_TITAN = {"framework": "torchtitan", "release": "torchtitan-24.12"}
NEW_TITAN = {"framework": "torchtitan", "release": "torchtitan-25.07"}


def space_of(model: str, gpus: int, **given: Any) -> Space:
    small = load_model(model).with_changes(layers=4)
    return Space(small, parse_cluster(f"h100-sxm:{gpus}"), {"global_batch": 64, "seq_len": 4096, **given})


def zero_stages(space: Space, *, pipelined: bool) -> set[int]:
    some = [layout for layout in structures(space) if (layout.plan.pp > 1) == pipelined]
    return {saving["zero_stage"] for layout in some for saving in savings(space, layout) if layout.dp > 1}


def test_torchtitan_came_to_choose_when_it_shards_again() -> None:
    old, new = (space_of("llama-3-8b", 8, **given) for given in (OLD_TITAN, NEW_TITAN))
    assert zero_stages(old, pipelined=False) == {3}
    assert zero_stages(old, pipelined=True) == {2}
    assert zero_stages(new, pipelined=False) == zero_stages(new, pipelined=True) == {2, 3}


def test_torchtitan_came_to_add_up_gradients() -> None:
    old, new = (space_of("llama-3-8b", 8, pp=1, **given) for given in (OLD_TITAN, NEW_TITAN))
    assert {layout.micro_batches for layout in structures(old)} == {1}
    assert {layout.micro_batches for layout in structures(new)} > {1}


def test_torchtitan_overlaps_tensor_parallelism_in_compiled_code_only() -> None:
    space = space_of("llama-3-8b", 8, tp=2, pp=1, **NEW_TITAN)
    for layout in structures(space):
        offered = switches(space, layout, {"zero_stage": 3, "recompute": "none"})["overlap_tp"]
        assert (True in offered) == layout.plan.compile


def test_megatron_came_to_fold_experts() -> None:
    old, new = (space_of("mixtral-8x7b", 16, tp=2, release=name) for name in ("nemo-24.11", "nemo-25.02"))
    assert {layout.etp for layout in structures(old)} == {2}
    assert all(layout.dp % layout.plan.ep == 0 for layout in structures(old))
    assert {layout.etp for layout in structures(new)} == {1, 2}


def test_experts_are_not_recomputed_as_a_dense_part() -> None:
    dense, mixture = (space_of(name, 8, tp=1, pp=1, cp=1) for name in ("llama-3-8b", "mixtral-8x7b"))
    for space, has in ((dense, True), (mixture, False)):
        layout = next(structures(space))
        assert ("selective:mlp" in {saving["recompute"] for saving in savings(space, layout)}) == has


def test_llm_foundry_came_to_recompute_some_blocks() -> None:
    given = {"framework": "fsdp", "tp": 1, "pp": 1, "cp": 1}
    for release, has in (("llm-foundry-23.10", False), ("llm-foundry-24.03", True)):
        space = space_of("llama-3-8b", 8, release=release, **given)
        recomputed = {saving["recompute"] for layout in structures(space) for saving in savings(space, layout)}
        assert {"none", "full"} <= recomputed
        assert any(one.startswith("full:") for one in recomputed) == has


def test_megatron_came_to_shard_mxfp8_parameters() -> None:
    for precision, release, stages in (
        ("mxfp8", "bridge-25.11", {0, 1}),
        ("mxfp8", "bridge-26.02", {0, 1, 2, 3}),
        ("fp8-current", "bridge-25.11", {0, 1, 2, 3}),
    ):
        small = load_model("llama-3-8b").with_changes(layers=4)
        given = {"global_batch": 64, "seq_len": 4096, "precision": precision, "release": release}
        space = Space(small, parse_cluster("b200:8"), given)
        assert zero_stages(space, pipelined=False) == stages
