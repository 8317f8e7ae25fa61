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


@pytest.mark.parametrize("rules", ["slow", "oom=1", "slower", "mfu=x", "step=fast"])
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
