"""`windtunnel survive` and a real job whose ranks are killed, as a person would run them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from windtunnel.cli.app import main

SCRIPT = Path(__file__).parents[2] / "examples" / "resilience" / "train.py"


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["survive", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_a_model_on_a_cluster(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["llama-3-8b", "--cluster", "h100-sxm:256", "--tp", "8", "--global-batch", "256", "--seq", "4096"]
    words += ["--days", "20", "--seeds", "10", "--policy", "restart,standby,shrink,parcae", "--failures", "production"]
    document = answer(capsys, *words, "--gpu-hour", "2.5", "--report", str(tmp_path / "page.html"))
    assert [one["policy"] for one in document["policies"]] == ["restart", "standby", "shrink", "parcae"]
    for one in document["policies"]:
        assert 0.5 < one["ettr_p5"] <= one["ettr"] <= one["ettr_p95"] <= 1
        assert sum(one["waterfall"].values()) == pytest.approx(20 * 86_400)
        assert one["cost_usd"] == pytest.approx(one["gpu_hours"] * 2.5)
        assert one["tokens_per_s"] > 0
        assert one["checkpoint_interval_s"] > 0
    assert document["ettr"] == document["policies"][0]["ettr"]
    assert document["policies"][1]["standbys"] > 0
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 3
    assert "https://" not in page
    assert document == answer(capsys, *words, "--gpu-hour", "2.5")


def test_without_a_model_and_a_log_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("cause,count,component\nGPU,30,gpu\ncrash,6,software\n")
    words = [
        "--cluster",
        "h100-sxm:1024",
        "--seeds",
        "20",
        "--days",
        "30",
        "--failures",
        str(log),
        "--observed",
        "1024:30",
    ]
    document = answer(
        capsys, *words, "--checkpoint", "10min", "--standbys", "3", "--failures-out", str(tmp_path / "f.yaml")
    )
    assert document["checkpoint_interval_s"] == 600
    assert 28 < document["interruptions"] < 44
    assert document["policies"][1]["standbys"] == 3
    again = answer(
        capsys, *words[:6], "--failures", str(tmp_path / "f.yaml"), "--checkpoint", "10min", "--standbys", "3"
    )
    assert again["interruptions"] == document["interruptions"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--cluster"),
        (["--cluster", "h100-sxm:64", "--policy", "pray"], "unknown policy 'pray'"),
        (["--cluster", "h100-sxm:64", "--failures", "llama4"], "unknown failure process"),
        (["--cluster", "h100-sxm:64", "--checkpoint", "often"], "--checkpoint"),
        (["--cluster", "h100-sxm:64", "--standbys", "-1"], "--standbys"),
        (["--cluster", "h100-sxm:64", "--recovery", "nap=1s"], "unknown recovery time"),
        (["--cluster", "h100-sxm:64", "--recovery", "load"], "NAME=TIME"),
        (["--cluster", "h100-sxm:64", "--days", "0"], "days"),
        (["--cluster", "h100-sxm:64", "--failures", "x.csv"], "--observed"),
        (["--cluster", "h100-sxm:64", "--decisions-out", "x.csv"], "--spot"),
        (["--spot", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_a_mistake_is_one_message(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["survive", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_planned_changes_cost_a_standby_little_and_a_restart_much(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--cluster", "h100-sxm:1024", "--seeds", "10", "--days", "20", "--failures", "none"]
    words += ["--policy", "restart,standby"]
    calm = answer(capsys, *words)
    changed = answer(capsys, *words, "--planned-every", "2h")
    assert calm["planned"] == changed["interruptions"] == 0  # who plans a change is not interrupted
    assert 200 < changed["planned"] < 280  # 240 expected
    restart, standby = changed["policies"]  # type: ignore[misc]
    assert restart["ettr"] < standby["ettr"] < 1
    assert main(["survive", *words, "--planned-every", "0h"]) == 2
    assert "--planned-every" in capsys.readouterr().err


class Strikes:
    """Kills rank 0 once, and later two ranks at once with the fork server, while one standby is there for them."""

    def __init__(self, seed: int) -> None:
        self.random, self.seen, self.struck = random.Random(seed), set[int](), 0
        self.looks = self.random.randrange(5, 40)

    def __call__(self, pids: dict[str, int], members: tuple[str, ...], warm: tuple[str, ...]) -> None:
        self.seen |= set(pids.values())
        if not all(name in pids for name in members) or not warm or self.struck == 2:
            return
        self.looks -= 1
        if self.looks < 0:
            self.struck += 1
            chosen = [members[0]] if self.struck == 1 else [*members[:2], "server"]
            for name in chosen:
                os.kill(pids[name], signal.SIGKILL)
            self.looks = self.random.randrange(5, 40)


def job(tmp_path: Path, name: str, watching: Strikes | None, afresh: bool = False) -> tuple[object, list[str]]:
    from windtunnel.survive import launch

    losses = tmp_path / f"{name}.json"
    words = [sys.executable, str(SCRIPT), "--steps", "250", "--pause", "0.02", "--losses", str(losses)]
    return launch(words, 3, 1, watching=watching, afresh=afresh), json.loads(losses.read_text())


@pytest.mark.extras
@pytest.mark.slow
def test_killed_ranks_are_replaced_and_the_losses_are_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    calm, expected = job(tmp_path, "calm", None)
    assert not calm.replacements  # type: ignore[attr-defined]
    assert len(set(expected)) > 100
    killer = Strikes(seed=3)
    told, losses = job(tmp_path, "killed", killer)
    assert killer.struck == 2
    assert losses == expected
    replacements = told.replacements  # type: ignore[attr-defined]
    assert sum(len(one.dead) for one in replacements) == 3
    assert all(one.downtime_s > 0 for one in replacements)  # how long: validation/resilience/kills.py
    for pid in killer.seen:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.long
def test_processes_that_are_started_afresh_give_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    _, forked = job(tmp_path, "forked", None)
    _, afresh = job(tmp_path, "afresh", None, afresh=True)
    assert forked == afresh


@pytest.mark.extras
@pytest.mark.slow
def test_a_launcher_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "stays.py"
    script.write_text(
        f"""
import os, subprocess, time
from pathlib import Path
child = subprocess.Popen(["sleep", "600"])
path = Path({str(tmp_path)!r}) / f"{{os.getpid()}}"
path.write_text(f"{{os.getpid()}} {{child.pid}}")
path.rename(path.with_suffix(".pids"))
time.sleep(600)
"""
    )
    words = [sys.executable, "-m", "windtunnel.survive", "--nproc-per-node", "2", "--standby", "0", str(script)]
    launcher = subprocess.Popen(words)
    while len(list(tmp_path.glob("*.pids"))) < 2:
        assert launcher.poll() is None
        time.sleep(0.02)
    launcher.terminate()
    assert launcher.wait() == 128 + signal.SIGTERM
    pids = [int(word) for path in tmp_path.glob("*.pids") for word in path.read_text().split()]
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.extras
def test_a_script_that_fails_ends_the_job_with_its_status(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from windtunnel.survive import launch

    script = tmp_path / "bad.py"
    script.write_text("raise SystemExit(7)")
    told = launch([sys.executable, str(script)], 2, 0)
    assert told.status == 7
    assert "exit status 7" in told.reason
