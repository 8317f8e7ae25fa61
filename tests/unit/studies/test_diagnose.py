"""A measured step against the predicted one: verdict, causes with their seconds, and what to change as a patch."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from windtunnel.errors import UserError
from windtunnel.questions import ask, changed, plain, read
from windtunnel.questions.asked.parts import ModelPart
from windtunnel.studies.diagnose import Diagnosis, _sentence, answer, with_measured
from windtunnel.studies.measured_run import read_run
from windtunnel.studies.measured_run.against import predicted_classes
from windtunnel.studies.measured_run.anchoring import LAYOUT, WEIGHTS
from windtunnel.studies.measured_run.causes import Evidence, causes_of
from windtunnel.studies.predict import answer as predicted
from windtunnel.studies.predict import logged_plan
from windtunnel.studies.traces.by_class import StepTime
from windtunnel.studies.training.question import model_of

PLAN = {"tp": 2, "global_batch": 64, "seq_len": 4096}
STEP = {"question": "predict", "model": "llama-3-8b", "cluster": "h100-sxm:16", "plan": PLAN}
TRAIN = """#!/bin/bash
#SBATCH --nodes=8
TP=4
# --recompute-granularity full would save memory
ARGS="
    --tensor-model-parallel-size ${TP} \\
    --sequence-parallel \\
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \\
    --group-query-attention --num-query-groups 8 --swiglu --untie-embeddings-and-output-weights \\
    --seq-length 4096 --micro-batch-size 1 --global-batch-size 128 --vocab-size 128256 \\
    --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\
    --use-distributed-optimizer \\
    --bf16
"
torchrun pretrain_gpt.py $ARGS
"""


@pytest.fixture(scope="module")
def step_s() -> float:
    return predicted(read(STEP)).step_time_s


def diagnosed(**more: Any) -> Diagnosis:
    found = ask({**STEP, "question": "diagnose", **more})
    assert isinstance(found, Diagnosis)
    return found


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "as expected"), (1.6, "slower"), (0.6, "faster")])
def test_a_number_alone_has_a_verdict(factor: float, verdict: str, step_s: float) -> None:
    found = diagnosed(measured=factor * step_s)
    assert found.verdict == verdict
    assert found.predicted_step_s == step_s
    assert found.measured_mfu == pytest.approx(found.predicted_mfu / factor)
    assert found.causes == ()
    assert found.not_explained_s == pytest.approx((factor - 1.0) * step_s)
    document = found.to_dict()
    assert {"measured_step_s", "predicted_step_s", "verdict", "causes", "advice"} <= document.keys()
    json.dumps(document, allow_nan=False)
    own = with_measured(read(STEP), factor * step_s)
    assert answer(own).to_dict() == document


def test_a_log_that_takes_more_memory_holds_back_what_would_not_fit(tmp_path: Path, step_s: float) -> None:
    lines = [f" iteration {n}/ 20 | elapsed time per iteration (ms): {1e3 * step_s:.1f} |" for n in range(1, 21)]
    log = tmp_path / "log.txt"
    log.write_text("\n".join(["using world size: 16, data-parallel size: 4", *lines]))
    free = diagnosed(log=[str(log)])
    most = max(one.peak_memory_bytes for one in free.advice)
    own = free.result.peak_memory
    over = 0.9 * free.result.memory_capacity_bytes / most  # with as much more, nothing has to go yet
    for factor, held in ((over, False), (over * 1.5, True)):
        mib = factor * own.peak_allocated_bytes / 2**20
        memory = f"[Rank 0] (after 3 iterations) memory (MB) | allocated: 1 | max allocated: {mib} | reserved: 1"
        log.write_text("\n".join([*lines, memory]))
        found = diagnosed(log=[str(log)])
        assert any("allocated at the peak" in note for note in found.notes)
        assert (found.advice != free.advice) is held
        assert all(factor * one.peak_memory_bytes <= free.result.memory_capacity_bytes for one in found.advice)


def test_a_multiple_is_said_as_one(step_s: float) -> None:
    assert " is 9.0 times the " in diagnosed(measured=9.0 * step_s).sentence
    assert " is 60 % slower than the " in diagnosed(measured=1.6 * step_s).sentence


def test_a_step_above_the_peak_is_no_silent_figure(step_s: float) -> None:
    found = diagnosed(measured=step_s / 1000)
    assert found.verdict == "faster"
    assert "unit" in found.notes[0]
    assert diagnosed(measured=step_s).notes == ()


def log(folder: Path, times_s: list[float], more: str = "") -> str:
    path = folder / "train.log"
    line = " iteration {at}/ 2000 | elapsed time per iteration (ms): {ms} | global batch size:   64 |"
    path.write_text("\n".join([*(line.format(at=at, ms=1e3 * s) for at, s in enumerate(times_s, 1)), more]))
    return str(path)


def test_a_log_says_pauses_apart_from_the_steady_step(tmp_path: Path, step_s: float) -> None:
    times = [30.0, *[step_s] * 12, 9 * step_s, *[step_s] * 12, 9 * step_s, *[step_s] * 12, 9 * step_s]
    found = diagnosed(log=[log(tmp_path, times)])
    assert found.verdict == "as expected"
    assert [one.cause for one in found.causes] == ["pauses"]
    assert found.causes[0].seconds == pytest.approx(3 * 8 * step_s / 37, rel=0.05)
    assert found.not_explained_s == pytest.approx(0.0, abs=1e-3 * step_s)


def test_what_the_run_says_of_itself_and_the_plan_does_not(tmp_path: Path, step_s: float) -> None:
    said = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "global_batch_size": 64, "bf16": True}
    said |= {"seq_length": 4096, "micro_batch_size": 1, "recompute_granularity": "full", "recompute_method": "uniform"}
    block = "\n".join(f"  {name} ...... {value}" for name, value in said.items())
    block = f"-------- arguments --------\n{block}\n-------- end of arguments --------"
    asked = {**STEP, "plan": {**PLAN, "overlap_tp": False, "recompute": "none"}}
    plain_run = ask({**asked, "question": "diagnose", "log": [log(tmp_path, [1.0] * 20, block)]}).result
    plain_s = plain_run.step_time_s
    recomputed = predicted(changed(read(plain_run.question), {"plan.recompute": "full"})).step_time_s
    found = ask({**asked, "question": "diagnose", "log": [log(tmp_path, [recomputed] * 20, block)]})
    assert found.predicted_step_s == plain_s
    assert found.causes[0].cause == "another plan"
    assert "recompute full" in found.causes[0].evidence
    assert found.causes[0].seconds == pytest.approx(recomputed - plain_s)
    assert abs(found.not_explained_s) < 0.01 * recomputed


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("using world size: 8, data-parallel size: 4", "on 8 GPUs: give --cluster h100-sxm:8"),
        (" iteration 1/ 9 | elapsed time per iteration (ms): 9.0 | global batch size: 32 |", "give --global-batch 32"),
        ("------ arguments ------\n  seq_length ...... 2048\n------ end of arguments ------", "give --seq-len 2048"),
    ],
)
def test_a_log_of_other_work_is_not_held_against_the_question(line: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        diagnosed(log=[log(tmp_path, [1.0] * 20, line)])


def test_a_quicker_plan_in_the_log_is_said_in_the_verdict(tmp_path: Path, step_s: float) -> None:
    said = "  recompute_granularity ...... None\n  bf16 ...... True\n  tensor_model_parallel_size ...... 1"
    block = f"------ arguments ------\n{said}\n------ end of arguments ------"
    asked = {**STEP, "question": "diagnose", "plan": {**PLAN, "recompute": "full"}}
    found = ask({**asked, "log": [log(tmp_path, [step_s] * 20, block)]})
    assert "recompute none, not full" in found.sentence


def test_a_log_has_its_plan_in_it(tmp_path: Path) -> None:
    said = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "global_batch_size": 64, "bf16": True}
    said |= {"num_layers": 32, "hidden_size": 4096, "ffn_hidden_size": 14336, "num_attention_heads": 32}
    said |= {"group_query_attention": True, "num_query_groups": 8, "swiglu": True, "padded_vocab_size": 128256}
    said |= {"untie_embeddings_and_output_weights": True, "add_bias_linear": False, "seq_length": 4096}
    said |= {"micro_batch_size": 1, "world_size": 16, "num_experts": None, "expert_tensor_parallel_size": 2}
    said |= {"use_distributed_optimizer": True, "overlap_grad_reduce": True, "overlap_param_gather": True}
    block = "\n".join(f"  {name} ...... {value}" for name, value in said.items())
    text = Path(log(tmp_path, [3.0] * 20, f"---- arguments ----\n{block}\n---- end of arguments ----")).read_text()
    path = tmp_path / "slurm.out"
    path.write_text(text)
    found = ask({"question": "diagnose", "model": str(path), "cluster": "h100-sxm:16"})
    assert found.measured_step_s == pytest.approx(3.0)
    stated = {"tp": 2, "global_batch": 64, "seq_len": 4096, "zero_stage": 1, "precision": "bf16"}
    assert {name: found.result.spec["plan"][name] for name in stated} == stated
    model = model_of(ModelPart(base=str(path)), 16)
    assert (model.n_layers, model.hidden_size, model.vocab_size, model.tied_embeddings) == (32, 4096, 128256, False)


def traced(classes: dict[str, float], ranks: int = 4, **of_rank: dict[str, float]) -> dict[int, list[StepTime]]:
    """Steps of ranks that take these seconds; whoever works less waits in an all-reduce."""
    each = {rank: {**classes, **of_rank.get(f"rank{rank}", {})} for rank in range(ranks)}
    longest = max(sum(one.values()) for one in each.values())
    found = {}
    for rank, own in each.items():
        seconds = {**own, "all-reduce": own.get("all-reduce", 0.0) + longest - sum(own.values())}
        found[rank] = [StepTime(rank, step, seconds, {"all-reduce": 1}, {}) for step in range(4)]
    return found


HEALTHY = {"gemm": 0.6, "attention": 0.2, "memory-bound": 0.1, "all-reduce": 0.08, "host": 0.02}
EXPECTED = {"gemm": 0.6, "attention": 0.2, "memory-bound": 0.1, "exposed communication": 0.08, "host": 0.02}


@pytest.mark.parametrize(
    ("changes", "first", "seconds"),
    [
        ({}, None, 0.0),
        ({"host": 0.32}, "host-bound", 0.30),
        ({"data loader": 0.25}, "data loader", 0.25),
        ({"all-reduce": 0.28}, "exposed communication", 0.20),
        ({"gemm": 0.72, "attention": 0.24, "memory-bound": 0.12}, "clocks or power", 0.18),
        ({"attention": 0.5}, "slow attention", 0.30),
        ({"copies": 0.1}, "copies", 0.1),
    ],
)
def test_the_cause_that_was_put_into_a_trace_comes_first(
    changes: dict[str, float], first: str | None, seconds: float
) -> None:
    ranks = traced({**HEALTHY, **changes})
    found = causes_of(Evidence(ranks[0][0].length_s, EXPECTED, ranks))
    assert [one.cause for one in found[:1]] == ([] if first is None else [first])
    if first:
        assert found[0].seconds == pytest.approx(seconds, rel=0.15)
        assert len(found) == 1


def test_a_slow_rank_is_told_from_communication() -> None:
    ranks = traced(HEALTHY, rank2={"gemm": 0.9})
    found = causes_of(Evidence(ranks[0][0].length_s, EXPECTED, ranks))
    assert found[0].cause == "slow rank 2"
    assert found[0].seconds == pytest.approx(0.3)
    assert "exposed communication" not in {one.cause for one in found}
    # By no more than the last of the healthy run: that is how this machine is.
    healthy = causes_of(Evidence(ranks[0][0].length_s, EXPECTED, ranks, expected_wait_s=0.31))
    assert "slow rank 2" not in {one.cause for one in healthy}


def test_uneven_work_is_no_slow_rank() -> None:
    ranks = traced(HEALTHY)
    for step in range(4):
        for rank, steps in ranks.items():
            late = rank == step
            seconds = {**HEALTHY, "gemm": 0.9 if late else 0.6, "all-reduce": 0.08 if late else 0.38}
            steps[step] = StepTime(rank, step, seconds, {}, {})
    found = causes_of(Evidence(1.3, EXPECTED, ranks))
    assert found[0].cause == "imbalance"
    assert found[0].seconds == pytest.approx(0.3)


def test_what_differs_from_step_to_step_is_no_cause() -> None:
    """Healthy ranks of a busy machine: each step another one is late, by another time, and communication varies."""
    late = [0.0, 0.2, 0.02, 0.3, 0.01]
    ranks = {
        rank: [
            StepTime(rank, step, {**HEALTHY, "host": 0.02 + more * (rank == step % 2), "all-reduce": 0.08}, {}, {})
            for step, more in enumerate(late)
        ]
        for rank in range(2)
    }
    assert causes_of(Evidence(1.0, EXPECTED, ranks)) == ()
    slower = traced({**HEALTHY, "all-reduce": 0.2})
    named = [one.cause for one in causes_of(Evidence(1.12, EXPECTED, slower))]
    assert named == ["exposed communication"]


def test_against_a_healthy_run_its_own_noise_is_no_cause() -> None:
    """A step that is no longer than runs differ names nothing; a class that differs from step to step needs more."""
    well = traced(HEALTHY)
    for more in (0.025, 0.035):
        same = traced({**HEALTHY, "host": 0.02 + more})
        assert [one.cause for one in causes_of(Evidence(1.0 + more, EXPECTED, same))] == ["host-bound"]
        assert causes_of(Evidence(1.0 + more, EXPECTED, same, healthy=well)) == ()
    slower = traced({**HEALTHY, "all-reduce": 0.2})
    assert [one.cause for one in causes_of(Evidence(1.12, EXPECTED, slower, healthy=well))] == ["exposed communication"]
    for rank in well:
        seconds = [{**HEALTHY, "all-reduce": 0.08 + (0.15 if step % 2 else 0.0)} for step in range(5)]
        well[rank] = [StepTime(rank, step, one, {}, {}) for step, one in enumerate(seconds)]
    assert causes_of(Evidence(1.12, EXPECTED, slower, healthy=well)) == ()


def test_the_predicted_classes_sum_to_the_step() -> None:
    result = predicted(read({**STEP, "plan": {**PLAN, "pp": 2}}))
    assert sum(predicted_classes(result).values()) == pytest.approx(result.step_time_s)


def test_advice_is_a_patch_that_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.sh").write_text(TRAIN)
    from windtunnel.studies.training.launch import read_native

    native = read_native("train.sh", 32)
    asked = {"model": "train.sh", "cluster": "h100-sxm:32", "plan": dict(native.fields)}
    found = ask({"question": "diagnose", **asked, "measured": 5.0})
    patches = [one for one in found.advice if one.diff]
    assert len(patches) >= 3
    for one in patches:
        Path("train.sh").write_text(TRAIN)
        subprocess.run(["patch", "-p1"], input=one.diff, text=True, check=True, capture_output=True)
        assert "# --recompute-granularity full would save memory" in Path("train.sh").read_text()
        again = read_native("train.sh", 32)
        result = predicted(read({"question": "predict", **asked, "plan": dict(again.fields)}))
        assert result.step_time_s == pytest.approx(one.step_time_s, rel=1e-9)
        assert result.peak_memory.device_bytes <= 0.97 * result.memory_capacity_bytes
    steps = [one.step_time_s for one in found.advice]
    assert min(steps) == steps[-1]  # the best of them together comes last
    assert len(found.advice[0].changes) == 1


def test_an_anchor_that_was_saved_predicts_what_was_measured(tmp_path: Path, step_s: float) -> None:
    found = diagnosed(measured=1.3 * step_s)
    for name in ("run.yaml", "run.json"):
        (tmp_path / name).write_text(found.anchor(as_json=name.endswith(".json")))
        again = predicted(read({**STEP, "anchor": [str(tmp_path / name)]}))
        assert again.step_time_s == pytest.approx(1.3 * step_s)


def test_a_log_is_an_anchor_of_its_own_plan_on_its_own_gpus(tmp_path: Path, step_s: float) -> None:
    said = {"tensor_model_parallel_size": 4, "sequence_parallel": True, "world_size": 8, "bf16": True}
    block = "\n".join(f"  {name} ...... {value}" for name, value in said.items())
    path = log(tmp_path, [3.0] * 20, f"------ arguments ------\n{block}\n------ end of arguments ------")
    plan = {**PLAN, **logged_plan(read_run([path]), 8)}
    own = predicted(read({**STEP, "cluster": "h100-sxm:8", "plan": {k: v for k, v in plan.items() if k != "dp"}}))
    assert own.spec["plan"]["tp"] == 4
    moved = predicted(read({**STEP, "anchor": [path]}))
    assert moved.step_time_s == pytest.approx(step_s * (3.0 / own.step_time_s) ** WEIGHTS[LAYOUT], rel=1e-3)
    assert f"{path} took" in moved.warnings[-1]
    bare = predicted(read({**STEP, "anchor": [log(tmp_path, [1.2 * step_s] * 20)]}))
    assert bare.step_time_s == pytest.approx(1.2 * step_s, rel=1e-3)
    assert "(which does not say its plan and GPUs: as asked)" in bare.warnings[-1]


def test_a_log_that_is_no_anchor_is_one_error(tmp_path: Path, step_s: float) -> None:
    (tmp_path / "a.out").write_text("foo: bar: baz\n")
    with pytest.raises(
        UserError, match=r"a.out: holds no step time that can be read; no line looks like .* write step_time, model"
    ):
        predicted(read({**STEP, "anchor": [str(tmp_path / "a.out")]}))
    with pytest.raises(UserError, match=r"rests on 2 lines of a log; measure a few steps more"):
        predicted(read({**STEP, "anchor": [log(tmp_path, [step_s] * 3)]}))
    with pytest.raises(UserError, match=r"give --log slurm.out, --trace FILE or --measured"):
        diagnosed(anchor=["slurm.out"])


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(UserError, match="measured"):
        ask({**STEP, "question": "diagnose"})
    question = read({**STEP, "question": "diagnose", "measured": 2.0})
    assert read(plain(question)) == question


def test_without_a_measurement_the_ways_to_give_one_are_said() -> None:
    with pytest.raises(UserError, match="give --log FILE, --trace FILE or --measured"):
        diagnosed()


def test_what_nobody_states_is_as_the_log_says(tmp_path: Path, step_s: float) -> None:
    line = " iteration {}/ 20 | elapsed time per iteration (ms): {:.1f} | global batch size:    64 |"
    lines = [line.format(n, 1e3 * step_s) for n in range(1, 21)]
    log = tmp_path / "log.txt"
    log.write_text("\n".join(lines))
    asked = {**STEP, "question": "diagnose", "log": [str(log)]}
    found = ask({**asked, "plan": {"tp": 2, "seq_len": 4096}})
    assert found.verdict == "as expected"
    assert found.result.spec["plan"]["global_batch"] == 64
    with pytest.raises(UserError, match=r"^seq_len is not given: add --seq-len N"):
        ask({**asked, "plan": {"tp": 2}})
    with pytest.raises(
        UserError, match=r"^global_batch is not given, nor is seq_len: add --global-batch N --seq-len N"
    ):
        diagnosed(plan={"tp": 2}, measured=1.0)
    said = {"tensor_model_parallel_size": 2, "global_batch_size": 64, "seq_length": 4096, "bf16": True}
    block = "\n".join(f"  {name} ...... {value}" for name, value in said.items())
    log.write_text("\n".join(["--------- arguments ---------", block, "------ end of arguments ------", *lines]))
    whole = ask({**asked, "plan": {}})
    assert whole.result.spec["plan"]["tp"] == 2
    # What is stated is one field of the log's plan, and a difference from it; the rest stays.
    stated = ask({**asked, "plan": {"precision": "fp8"}})
    own = stated.result.spec["plan"]
    assert (own["tp"], own["precision"], own["global_batch"]) == (2, "fp8", 64)
    assert [(one.cause, one.evidence) for one in stated.causes] == [
        ("another plan", "the log says precision bf16, not fp8")
    ]


def test_a_plan_that_does_not_fit_is_not_what_was_measured() -> None:
    asked = {**STEP, "model": "llama-3-70b", "question": "diagnose", "measured": 5.0}
    sentence = ask({**asked, "plan": {"global_batch": 64, "seq_len": 4096}}).sentence
    assert sentence.startswith(
        "5.00 s was measured, but the plan that is asked about does not fit in memory: give that"
    )


def test_a_model_that_a_file_states_is_named_by_its_size_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(TRAIN)
    assert model_of(ModelPart(base=str(path)), 16).name == "8.03B of train.sh"


def test_a_band_that_is_wide_calls_nothing_right(step_s: float) -> None:
    result = predicted(read(STEP))
    wide = replace(result, step_time_p5_ns=result.step_time_ns // 2, step_time_p95_ns=2 * result.step_time_ns)
    assert _sentence(step_s, result, "as expected", (), ()).endswith("within the band: nothing is wrong.")
    assert "too wide to call it right or wrong; a trace would say" in _sentence(step_s, wide, "as expected", (), ())
