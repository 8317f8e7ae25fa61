"""Rules for pipelines and submit hooks: each is kept or broken, and the exit status says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import UserError
from windtunnel.faces.cli.app import main
from windtunnel.faces.report.decision import github_lines
from windtunnel.questions import ask, read
from windtunnel.studies.check import Checked
from windtunnel.studies.predict import answer as predicted

PLAN = {"tp": 2, "global_batch": 64, "seq_len": 4096, "recompute": "full"}
ASKED = {"question": "check", "model": "llama-3-8b", "cluster": "h100-sxm:16", "plan": PLAN}
STEP_S = predicted(read({**ASKED, "question": "predict"})).step_time_s


def checked(rules: str, **more: object) -> Checked:
    found = ask({**ASKED, "fail_if": rules, **more})
    assert isinstance(found, Checked)
    return found


@pytest.mark.parametrize(
    ("rules", "passed"),
    [
        ("oom", True),
        ("oom,tight", True),
        (f"step={STEP_S * 1.01}s", True),
        (f"step={STEP_S * 0.99}s", False),
        ("mfu=1%", True),
        ("mfu=99%", False),
        ("memory=1%", False),
        ("memory=100%", True),
        ("slower=5%", False),  # without full recomputation it is much quicker
        ("slower=900%", True),
    ],
)
def test_a_rule(rules: str, passed: bool) -> None:
    found = checked(rules)
    assert found.passed is passed
    assert [one.passed for one in found.findings][-1] is passed
    assert bool(github_lines(found, "train.sh")) is not passed


def test_against_a_baseline(tmp_path: Path) -> None:
    assert checked("slower=5%", baseline=f"{STEP_S}s").passed
    assert not checked("slower=5%", baseline=f"{STEP_S / 1.2}s").passed
    from windtunnel.faces.report.run_folder import save

    folder = save(predicted(read({**ASKED, "question": "predict", "plan": {**PLAN, "recompute": "none"}})), tmp_path)
    found = checked("slower=5%", baseline=str(folder))
    assert not found.passed
    assert found.baseline_step_s is not None
    assert found.baseline_step_s < STEP_S


def test_what_does_not_fit_is_out_of_memory() -> None:
    found = checked("oom", model="llama-3.1-405b", cluster="h100-sxm:16")
    assert not found.passed
    assert not checked("tight", model="llama-3.1-405b", cluster="h100-sxm:16").passed


def test_what_does_not_fit_may_not_be_submitted_whatever_is_asked() -> None:
    for rules in ("mfu=1%", "memory=900%", "step=1000h"):
        assert not checked(rules, model="llama-3.1-405b", cluster="h100-sxm:16").passed


def test_the_launch_file_as_it_was_is_a_baseline(tmp_path: Path) -> None:
    words = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 --swiglu --bf16"
    words += " --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --group-query-attention"
    words += " --num-query-groups 8 --use-distributed-optimizer --tokenizer-type NullTokenizer --vocab-size 128255"
    for name, tp in (("before.sh", 2), ("after.sh", 8)):
        text = f"torchrun --nproc-per-node 8 pretrain_gpt.py {words} --tensor-model-parallel-size {tp}"
        (tmp_path / name).write_text(text)
    asked = {"model": str(tmp_path / "after.sh"), "plan": {}, "baseline": str(tmp_path / "before.sh")}
    found = checked("slower=5%", **asked)
    assert not found.passed
    assert found.baseline_step_s == checked("oom", model=asked["baseline"], plan={}).step_time_s
    # On the command line too the one file says nothing of the other.
    command = ["check", str(asked["model"]), "--cluster", "h100-sxm:16", "--baseline", str(asked["baseline"])]
    assert main([*command, "--fail-if", "slower=5%"]) == 1
    half = (tmp_path / "before.sh").read_text().replace("--global-batch-size 64", "--global-batch-size 32")
    (tmp_path / "half.sh").write_text(half)  # half the batch takes half the time: by the token it is no quicker
    of_half = checked("slower=5%", model=str(tmp_path / "half.sh"), plan={}, baseline=asked["baseline"])
    assert of_half.baseline_step_s == pytest.approx(found.baseline_step_s / 2)
    assert "for as many tokens" in of_half.findings[-1].text


@pytest.mark.parametrize("rules", ["slow", "oom=1", "slower", "mfu=x", "step=fast", "memory=95", "slower=5", "mfu=40"])
def test_a_rule_that_is_none(rules: str) -> None:
    with pytest.raises(UserError, match="fail-if"):
        checked(rules)


def test_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "check",
        "llama-3-8b",
        "--cluster",
        "h100-sxm:16",
        "--tp",
        "2",
        "--global-batch",
        "64",
        "--seq-len",
        "4096",
    ]
    assert main([*words, "--fail-if", "oom"]) == 0
    assert main([*words, "--fail-if", "oom,mfu=99%", "--github"]) == 1
    assert "::error file=llama-3-8b" in capsys.readouterr().out
    assert main([*words, "--fail-if", "nothing"]) == 2


def test_a_change_of_a_launch_file_is_said_in_its_own_words(tmp_path: Path) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(
        "model_name_or_path: meta-llama/Llama-3.1-8B\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n"
        "bf16: true\nmax_length: 4096\nfsdp: full_shard auto_wrap\ngradient_checkpointing: true\n"
    )
    found = checked("slower=5%", model=str(path), cluster="h100-sxm:8", plan={})
    assert "without gradient_checkpointing: true:" in found.findings[-1].text
    assert found.change is not None
    assert "-gradient_checkpointing: true" in found.change.diff
    assert checked("oom", model=str(path), cluster="h100-sxm:8", plan={}).change is None
