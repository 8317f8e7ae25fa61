"""What one measured run says of others: the nearer the more, and nothing where it would poison."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import UserError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.questions import read
from windtunnel.studies.measured_run.anchoring import (
    BATCH,
    GPU,
    LAYOUT,
    OTHER,
    SAME,
    Regime,
    carried,
    nearness,
)
from windtunnel.studies.predict import answer

PLAN = {"tp": 2, "global_batch": 64, "seq_len": 4096}
STEP = {"question": "predict", "model": "llama-3-8b", "cluster": "h100-sxm:16", "plan": PLAN}
BASE = Regime(("m",), "h100", (2, 1), (1, "none"), 16)


@pytest.mark.parametrize(
    ("other", "near"),
    [
        (Regime(("m",), "h100", (2, 1), (1, "none"), 64), SAME),
        (Regime(("m",), "h100", (2, 1), (2, "none"), 16), BATCH),
        (Regime(("m",), "h100", (4, 1), (1, "none"), 16), LAYOUT),
        (Regime(("m",), "b200", (2, 1), (1, "none"), 16), GPU),
        (Regime(("m",), "b200", (2, 1), (2, "none"), 16), OTHER),
        (Regime(("n",), "h100", (2, 1), (1, "none"), 16), OTHER),
    ],
)
def test_nearness(other: Regime, near: str) -> None:
    assert nearness(BASE, other) == near


@given(st.floats(-1.0, 1.0))
def test_a_factor_is_carried_less_the_farther(log_factor: float) -> None:
    others = [Regime(("m",), "h100", (2, 1), (1, "none"), 64), Regime(("m",), "h100", (4, 1), (1, "none"), 16)]
    others.append(Regime(("m",), "b200", (2, 1), (2, "none"), 16))
    moved = [abs(math.log(carried(log_factor, BASE, one).factor)) for one in (BASE, *others)]
    assert moved[0] == pytest.approx(abs(log_factor))
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] == 0.0
    one_gpu = Regime(("m",), "h100", (2, 1), (1, "none"), 1)
    assert carried(log_factor, one_gpu, BASE).factor == 1.0


def anchor(folder: Path, step_s: float, text: str = "") -> str:
    path = folder / "my-run.yaml"
    path.write_text(
        f"step_time: {step_s}s\nmodel: llama-3-8b\ncluster: h100-sxm:16\n"
        f"plan: {{tp: 2, global_batch: 64, seq_len: 4096}}\n{text}"
    )
    return str(path)


def test_the_run_itself_is_predicted_as_it_was_measured(tmp_path: Path) -> None:
    bare = answer(read(STEP))
    found = answer(read({**STEP, "anchor": [anchor(tmp_path, 1.2 * bare.step_time_s)]}))
    assert found.step_time_s == pytest.approx(1.2 * bare.step_time_s)
    assert sum(found.breakdown_ns.values()) == found.step_time_ns
    assert all(sum(stage.breakdown_ns.values()) == found.step_time_ns for stage in found.stages)
    assert found.mfu == pytest.approx(bare.mfu / 1.2)
    assert found.step_time_p5_ns <= found.step_time_ns <= found.step_time_p95_ns
    width, before = (one.step_time_p95_ns / one.step_time_p5_ns for one in (found, bare))
    assert width < before
    assert "anchored" in found.warnings[-1]
    assert "--anchor" in found.reproduce


def test_another_scale_moves_by_nine_tenths_and_another_gpu_by_a_quarter(tmp_path: Path) -> None:
    path = anchor(tmp_path, 1.2 * answer(read(STEP)).step_time_s)
    larger = {**STEP, "cluster": "h100-sxm:64", "plan": {**PLAN, "global_batch": 256}}
    bare, found = answer(read(larger)), answer(read({**larger, "anchor": [path]}))
    assert found.step_time_s == pytest.approx(1.2**0.9 * bare.step_time_s)
    other = {**STEP, "cluster": "b200:16"}
    bare, found = answer(read(other)), answer(read({**other, "anchor": [path]}))
    assert found.step_time_s == pytest.approx(1.2**0.25 * bare.step_time_s)
    width, before = (math.log(one.step_time_p95_ns / one.step_time_p5_ns) for one in (found, bare))
    assert width == pytest.approx(math.sqrt(1 - 0.25**2) * before)
    assert "as other GPU, as 1.047" in found.warnings[-1]
    for further in ({"seq_len": 8192}, {"tp": 4}, {"lora_rank": 8}):
        asked = {**other, "plan": {**PLAN, **further}}
        found = answer(read({**asked, "anchor": [path]}))
        assert found.step_time_ns == answer(read(asked)).step_time_ns
        assert "it is of another GPU and plan" in found.warnings[-1]


@pytest.mark.parametrize(
    ("text", "said"),
    [("lines: 2\n", "2 lines"), ("spread: 0.4\n", "spread by 40"), ("unheard: 1\n", "unheard")],
)
def test_what_would_poison_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said):
        answer(read({**STEP, "anchor": [anchor(tmp_path, 2.0, text)]}))


def test_a_step_time_without_a_unit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("step_time: -1s\nmodel: llama-3-8b\ncluster: h100-sxm:16\nplan: {global_batch: 8, seq_len: 64}\n")
    with pytest.raises(UserError):
        answer(read({**STEP, "anchor": [str(path)]}))


def at_peak_s(rate: str) -> float:
    """A step of `STEP` whose products take no more than the peak of all GPUs."""
    flops = 3.0 * 64 * 4096 * load_model("llama-3-8b").forward_flops_per_token(4096)
    return flops / 16 / parse_cluster("h100-sxm:16").gpu.peak_flops(rate)


@pytest.mark.parametrize(("precision", "rate"), [("bf16", "bf16"), ("fp8", "fp8"), ("fp32", "tf32")])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("suffix", [".yaml", ".log"])
def test_a_step_below_its_flops_at_the_peak_is_refused_and_no_other(
    precision: str, rate: str, recompute: str, suffix: str, tmp_path: Path
) -> None:
    plan = {**PLAN, "precision": precision, "recompute": recompute}
    path, least_s = tmp_path / f"run{suffix}", at_peak_s(rate)

    def anchored(step_s: float) -> None:
        written = f"step_time: {step_s}s\nmodel: llama-3-8b\ncluster: h100-sxm:16\nplan: {plan}\n"
        line = f" iteration {{}}/ 99 | elapsed time per iteration (ms): {1e3 * step_s} | global batch size: 64 |\n"
        path.write_text(written if suffix == ".yaml" else "".join(line.format(at) for at in range(1, 30)))
        answer(read({**STEP, "plan": plan, "anchor": [str(path)]}))

    anchored(1.01 * least_s)
    with pytest.raises(
        UserError, match=rf"{path}.*: a step of .* is shorter than the .* check the unit, and state model"
    ):
        anchored(0.99 * least_s)


LOG = "".join(
    f" iteration {at}/ 99 | elapsed time per iteration (ms): 3000.0 | global batch size: 64 |\n" for at in range(1, 30)
)


@pytest.mark.parametrize("name", ["slurm-123", "run.out", "run.v2"])
def test_what_a_file_without_a_suffix_of_anchors_is_its_content_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    for text in (LOG, Path(anchor(tmp_path, 3.0)).read_text()):
        path.write_text(text)
        assert f"{path} " in answer(read({**STEP, "anchor": [str(path)]})).warnings[-1]
        assert "anchored" in answer(read({**STEP, "anchor": [str(path)]})).warnings[-1]


@pytest.mark.parametrize(
    ("gpus", "said"), [(7, "tp 2 x pp 1 x cp 1 = 2 does not divide 7 GPUs"), (9999999, "gpus = 9999999: must be whole")]
)
def test_a_mistake_of_a_log_names_the_log(gpus: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(f"world_size: {gpus}\n{LOG}")
    with pytest.raises(UserError) as error:
        answer(read({**STEP, "anchor": [str(path)]}))
    assert str(error.value).startswith(f"{path}: {said}")


def test_an_anchor_of_the_same_model_under_another_name_counts_and_what_differs_is_named(tmp_path: Path) -> None:
    bare = answer(read(STEP))
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    renamed = {**STEP, "model": str(tmp_path / "config.json"), "anchor": [anchor(tmp_path, 1.2 * bare.step_time_s)]}
    found = answer(read(renamed))
    assert found.spec["model"]["name"] != bare.spec["model"]["name"]
    assert found.step_time_s == pytest.approx(1.2 * bare.step_time_s, rel=0.01)
    other = answer(read({**renamed, "cluster": "b200:16", "plan": {**PLAN, "precision": "fp8"}}))
    assert other.warnings[-1].endswith("is not used: it is of another GPU and precision")
