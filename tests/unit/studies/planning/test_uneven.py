"""Layers dealt out unevenly over pipeline stages: searched, predicted, and as launch flags."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import SpecError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.questions.asked.parts.plan import open_plan
from windtunnel.studies.planning.plan import plan
from windtunnel.studies.planning.space.pipelines import dealt, uneven
from windtunnel.studies.planning.space.plan_space import Space, structures
from windtunnel.studies.training import predict
from windtunnel.studies.training.launch.megatron.writing import write
from windtunnel.studies.training.launch.native import read_native

SHAPE = {"pp": 4, "global_batch": 16, "seq_len": 1024}


@given(layers=st.integers(1, 200), stages=st.integers(2, 32))
def test_every_deal_holds_all_layers_and_comes_once(layers: int, stages: int) -> None:
    found = uneven(layers, stages)
    assert len(set(found)) == len(found)
    for counts in found:
        assert len(counts) == stages
        assert sum(counts) == layers
        assert max(counts) - min(counts) <= 4
    even = dealt(layers, stages)
    assert max(even) - min(even) <= 1


def test_an_equal_split_that_is_spelled_out_is_the_usual_one() -> None:
    usual = predict("llama-3-8b", "h100-sxm:8", SHAPE)
    same = predict("llama-3-8b", "h100-sxm:8", SHAPE | {"layers_per_stage": (8, 8, 8, 8)})
    assert same.step_time_ns == usual.step_time_ns
    assert [one.device_bytes for one in same.memory] == [one.device_bytes for one in usual.memory]


def test_a_stage_with_fewer_layers_holds_and_does_less() -> None:
    usual = predict("llama-3-8b", "h100-sxm:8", SHAPE)
    less = predict("llama-3-8b", "h100-sxm:8", SHAPE | {"layers_per_stage": (8, 9, 9, 6)})
    parameters = [one.categories["parameters"] for one in less.memory]
    before = [one.categories["parameters"] for one in usual.memory]
    assert parameters[0] == before[0]
    assert parameters[1] > before[1]
    assert parameters[3] < before[3]
    assert sum(parameters) == pytest.approx(sum(before), abs=8)


def test_the_head_of_a_large_vocabulary_pays_for_fewer_layers_in_the_last_stage() -> None:
    wanted = {"pp": 4, "tp": 1, "schedule": "1f1b", "micro_batch": 1, "zero_stage": 1, "recompute": "full"}
    free = plan("llama-3-8b", "h100-sxm:8", global_batch=32, seq_len=2048, top=1, choices_within_s=0.0, **wanted)
    even = predict("llama-3-8b", "h100-sxm:8", {**free[0].plan, "layers_per_stage": (8, 8, 8, 8)})
    counts = free[0].plan["layers_per_stage"]
    assert counts[-1] < max(counts)
    assert free.gap == 0.0
    assert free[0].step_time_s < even.step_time_s


def test_layers_that_no_number_of_stages_divides_are_dealt_out_in_words_that_megatron_takes() -> None:
    model = load_model("llama-3-8b").with_changes(layers=31)
    space = Space(model, parse_cluster("h100-sxm:8"), {"global_batch": 8, "seq_len": 512, "tp": 1, "cp": 1})
    for layout in structures(space):
        stages = len(layout.virtual_layers)
        counts = tuple(len(layers) for layers in layout.virtual_layers)
        divides = stages == 1 or 31 % stages == 0 or 33 % stages == 0
        assert divides or layout.plan.layers_per_stage == counts


@pytest.mark.parametrize("counts", [(7, 9, 9, 7), (8, 8, 8, 8), (7, 9, 8, 8)])
def test_flags_of_megatron_say_the_same_both_ways(counts: tuple[int, ...], tmp_path: Path) -> None:
    asked = {"pp": 4, "layers_per_stage": counts, "global_batch": 16, "seq_len": 1024}
    text, left = write(open_plan(**asked), dp=2)
    assert not left
    assert ("--decoder-first-pipeline-num-layers" in text) == (counts[1] == counts[2])
    file = tmp_path / "flags.args"
    file.write_text(text)
    assert read_native(file, 8).fields["layers_per_stage"] == counts


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        ("--num-layers 30 --decoder-last-pipeline-num-layers 6", (8, 8, 8, 6)),
        ("--num-layers 30 --decoder-first-pipeline-num-layers 6", (6, 8, 8, 8)),
        (
            "--num-layers 28 --decoder-first-pipeline-num-layers 6 --decoder-last-pipeline-num-layers 6"
            " --num-virtual-stages-per-pipeline-rank 2",
            (3, 4, 4, 3, 3, 4, 4, 3),
        ),
        ("--decoder-first-pipeline-num-layers 6", None),  # of how many layers is not said
    ],
)
def test_layers_of_the_ends_are_read(words: str, counts: tuple[int, ...] | None, tmp_path: Path) -> None:
    file = tmp_path / "flags.args"
    file.write_text(f"--pipeline-model-parallel-size 4 --global-batch-size 16 --seq-length 1024 {words}")
    assert read_native(file, 8).fields.get("layers_per_stage") == counts


def test_ends_that_leave_what_does_not_divide_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "flags.args"
    file.write_text(
        "--pipeline-model-parallel-size 4 --num-layers 31 --decoder-first-pipeline-num-layers 6"
        " --global-batch-size 16 --seq-length 1024"
    )
    with pytest.raises(SpecError, match="leaves 25 of 31 layers for 3 stages"):
        read_native(file, 8)
