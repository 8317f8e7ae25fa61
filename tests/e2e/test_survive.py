"""`windtunnel survive`, as a person would run it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from windtunnel.faces.cli.app import main


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["survive", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_a_model_on_a_cluster(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["llama-3-8b", "--cluster", "h100-sxm:256", "--tp", "8", "--global-batch", "256", "--seq", "4096"]
    words += ["--days", "20", "--seeds", "10", "--policy", "restart,standby,shrink,parcae", "--failures", "production"]
    document = answer(capsys, *words, "--price", "2.5", "--report", str(tmp_path / "page.html"))
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
    assert document == answer(capsys, *words, "--price", "2.5")


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
        "--log",
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
        (["--cluster", "h100-sxm:64", "--checkpoint", "100000d"], "checkpoint = "),
        (["--cluster", "h100-sxm:64", "--checkpoint", "10s", "--storage", "1GB/s"], "writing one takes"),
        (["--cluster", "h100-sxm:64", "--storage", "1B/s"], "ten years"),
        (["--cluster", "h100-sxm:64", "--recovery", "schedule=10000d"], "recovery schedule"),
        (["--cluster", "h100-sxm:64", "--step-time", "0s"], "step-time = 0"),
        (["--cluster", "h100-sxm:64", "--planned-every", "1ms"], "events a run"),
        (["--cluster", "h100-sxm:64", "--planned-every", "16"], "291,704 events a run"),  # it ran for minutes
        (["--cluster", "h100-sxm:64", "--policy", "restart", "--standbys", "2"], "no policy of these keeps any"),
        (["--cluster", "h100-sxm:64", "--standbys", "-1"], "--standbys"),
        (["--cluster", "h100-sxm:64", "--recovery", "nap=1s"], "unknown recovery time"),
        (["--cluster", "h100-sxm:64", "--recovery", "load"], "NAME=TIME"),
        (["--cluster", "h100-sxm:64", "--days", "0"], "days"),
        (["--cluster", "h100-sxm:64", "--failures", "x.csv"], "--log is not given"),
        (["--cluster", "h100-sxm:64", "--log", "1024:30"], "--log = '1024:30'"),
        (["--cluster", "h100-sxm:64", "--spot", "x.csv"], "windtunnel survive spot MACHINES.csv"),
        (["--cluster", "h100-sxm:64", "--decisions-out", "x.csv"], "windtunnel survive spot MACHINES.csv"),
        (["--cluster", "h100-sxm:64", "--look-ahead", "5"], "windtunnel survive spot MACHINES.csv"),
        (["--cluster", "h100-sxm:64", "--forecast", "known"], "windtunnel survive spot MACHINES.csv"),
        (["--cluster", "h100-sxm:64", "--tables", "x"], "windtunnel survive spot MACHINES.csv"),
        (["--cluster", "h100-sxm:64", "--rows", "x.csv"], "unknown option --rows"),
        (["--cluster", "h100-sxm:64", "--price", "-1"], "price = -1"),
        (["--cluster", "h100-sxm:64", "--price", "nan"], "--price = 'nan'"),
        (["--cluster", "h100-sxm:64", "--seed", "-1"], "seed = -1"),
        (["--cluster", "h100-sxm:64", "--plan", "nowhere.yaml"], "nowhere.yaml"),
        (["--cluster", "h100-sxm:64", "--set", "model.layers=3"], "model is not given"),
        (["--cluster", "h100-sxm:64", "--global-batch", "64"], "--global-batch"),
        (["--cluster", "h100-sxm:64", "--tp", "8", "--dp", "4"], "tp 8 x dp 4"),
        (["--cluster", "h100-sxm:64", "--tp", "3"], "64 GPUs"),
        (["--cluster", "h100-sxm:8", "--policy", "restart,restart"], "name each policy once"),
        (["spot", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["spot", "nowhere.csv", "--seed", "-1"], "seed = -1"),
        (["spot", "nowhere.csv", "--price", "-1"], "--price = -1"),
        (["spot", "nowhere.csv", "--look-ahead", "0"], "look-ahead = 0"),
        (["spot", "nowhere.csv", "--cluster", "h100-sxm:64"], "--cluster: it belongs to `windtunnel survive`"),
        (["spot", "nowhere.csv", "--plan", "x.yaml"], "unknown option --plan"),
        (["spot", "nowhere.csv", "--days", "54"], "--days: it belongs to `windtunnel survive`"),
        (["spot", "nowhere.csv", "--failures", "none"], "--failures: it belongs to `windtunnel survive`"),
        (["spot", "nowhere.csv", "--trace", "x.html"], "unknown option --trace"),
        (["spot", "nowhere.csv", "--failures-out", "x.yaml"], "unknown option --failures-out"),
        (["spot", "nowhere.csv", "--tp", "8"], "--tp: it belongs to `windtunnel survive`"),
    ],
)
def test_a_mistake_is_one_message(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["survive", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert len(err.splitlines()) == 1


def test_where_nothing_fails_nothing_is_listed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--cluster", "h100-sxm:1", "--days", "1", "--seeds", "1", "--failures", "none"]
    assert main(["survive", *words, "--report", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    assert not re.search(r"<li>1 <span>\w+s</span>", page)
    screen = capsys.readouterr().out
    assert "1 GPU for 1 day\n1 replica of 1 stage · failures none (nothing fails) · 1 run\n" in screen
    assert re.search(r"^interruptions +0 +nothing fails$", screen, re.MULTILINE)
    assert "largest loss" not in screen  # nothing is lost, so nothing is named
    assert main(["survive", "--cluster", "h100-sxm:64", "--seeds", "1", "--failures", "none", "--tp", "8"]) == 0
    assert "With restart, training goes on 100.0 % of the time.\n" in capsys.readouterr().out  # and so with all others


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
