"""`windtunnel serve spot`: policies beside each other on one trace, priced as `serve` prices, and its mistakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import windtunnel
from windtunnel.faces.cli import main
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.model.catalogue import load_model
from windtunnel.questions.asked.serve.parts import Lengths, OpenLoad
from windtunnel.studies.serving import Deployment, engine_of
from windtunnel.studies.serving.parts import workload_of
from windtunnel.studies.serving.spot.models import CatalogueModel
from windtunnel.studies.serving.spot.study import Availability

EVENTS = "time_s,event,node\n0,add,a\n0,add,b\n0,add,c\n60,remove,a\n100,add,d\n150,remove,b\n"
MINUTES = "minute,added,removed\n0,3,0\n1,0,1\n2,1,0\n"
ASKED = ["--cluster", "a100-80gb:24", "--prompt", "512", "--output", "64", "--rate", "4"]
SPOT = ["serve", "spot", "llama-2-13b"]
MORE = ["--requests", "800", "--cv", "3"]
POLICIES = ("spotserve", "reroute", "restart")


def _trace(folder: Path, text: str = EVENTS) -> str:
    path = folder / "machines.csv"
    path.write_text(text)
    return str(path)


def _json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_each_policy_stands_beside_the_others(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = [*SPOT, _trace(tmp_path), *ASKED, *MORE]
    found = _json(capsys, *words, "--gpu-hour", "1.5")
    assert found["study"] == "serve spot"
    assert found["schema"].startswith("windtunnel.result/")
    assert found["provenance"]["machines"].endswith("machines.csv")
    assert found["spec"]["machines"] == {"first": 3, "least": 2, "most": 3}
    assert tuple(found["policies"]) == tuple(sorted(POLICIES))
    for one in found["policies"].values():
        assert one["finished"] == 800
        assert one["unfinished"] == 0
        assert one["cost"] == pytest.approx(one["gpu_seconds"] / 3600 * 1.5)
        assert one["output_tokens_per_s"] == pytest.approx(800 * 64 / one["duration_s"])
        assert one["e2e_s"]["p50"] <= one["e2e_s"]["p99"]
    p99 = {name: one["e2e_s"]["p99"] for name, one in found["policies"].items()}
    assert p99["spotserve"] < min(p99["reroute"], p99["restart"])
    assert found["policies"]["restart"]["paused_s"] > found["policies"]["spotserve"]["paused_s"] > 0
    assert main([*words, "--policy", "spotserve,restart"]) == 0
    shown = capsys.readouterr().out
    assert "spotserve" in shown
    assert "reroute" not in shown


def test_from_python_minutes_and_machines_that_only_cost(tmp_path: Path) -> None:
    """Three machines of eight GPUs for a minute, then two; a third from the second minute on."""
    load = workload_of(Lengths(prompt=512, output=64, requests=100), OpenLoad(rate=0.5, cv=0.0), 0)
    found = windtunnel.serve_on_spot(
        "llama-2-13b", "a100-80gb:24", load, _trace(tmp_path, MINUTES), ["restart"], deployment=Deployment()
    )
    one = found.policies["restart"]
    end = one.duration_s + float(load.arrival_ns[0]) * 1e-9  # type: ignore[index]
    assert one.gpu_seconds == pytest.approx(8 * (3 * 60 + 2 * 60 + 3 * (end - 120)))


def test_machines_come_under_numbers_of_their_own_and_have_notice_before_they_go() -> None:
    changes = Availability(2, ((40.0, 1, 1), (100.0, 0, 1))).changes(30.0)
    assert [(one.at_s, one.machine, one.comes, one.gone_s) for one in changes] == [
        (40.0, 2, True, None),
        (10.0, 0, False, 40.0),
        (70.0, 1, False, 100.0),
    ]


def test_steps_and_memory_are_those_of_serve() -> None:
    model, cluster = load_model("llama-3.1-70b"), parse_cluster("h100-sxm:8")
    priced = CatalogueModel(model, cluster, Deployment(), 1000, 200)
    engine = engine_of(model, cluster, Deployment(tp=4))
    assert priced.token_s(1, 4, 8) == engine.times.decode(8).at(8 * 1100) / 1024e9
    for tensor in (1, 2, 4):
        for pipeline in (1, 2):
            whole = engine_of(model, cluster, Deployment(tp=tensor, pp=pipeline))
            assert priced.fits(pipeline, tensor, 1) == (whole.memory.tokens >= 1200)
    assert not priced.fits(1, 1, 1)
    assert priced.tensors == (1, 2, 4, 8)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "hope"], "unknown policy for spot machines 'hope'"),
        (["--policy", ","], "policy"),
        (["--notice", "soon"], "--notice"),
        (["--tp", "2"], "--tp"),
        (["--slo", "ttft=1s"], "--ttft"),
        (["--max-num-seqs", "4"], "--max-num-seqs"),
        (["--router", "round-robin"], "--router"),
        (["--ep", "2"], "--ep"),
        (["--attain", "0.5"], "--attain"),
        (["--no-prefix-caching"], "--no-prefix-caching"),
        (["--speed", "2"], "--speed"),
        (["--lose", "0@1s+1s"], "--lose"),
        (["--record", "r.jsonl"], "--record"),
        (["--gpu-hour", "-1"], "--price"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*SPOT, _trace(tmp_path), *ASKED, "--requests", "5", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("when,what\n1,2\n", "is no trace of spot machines"),
        ("time_s,event,node\n0,add,a\n5,remove,a\n9,remove,b\n", "more nodes go than there are"),
        ("minute,added,removed\n0,0,0\n", "no machine at any time"),
        ("minute,added,removed\n0,4,0\n", "cluster = 24: the trace has up to 4 machines of 8 GPUs"),
    ],
)
def test_a_trace_that_cannot_be_played_is_one_line(
    text: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*SPOT, _trace(tmp_path, text), *ASKED, "--requests", "5"]) == 2
    assert said in capsys.readouterr().err
    assert main([*SPOT, str(tmp_path / "none.csv"), *ASKED, "--requests", "5"]) == 2
    assert "none.csv" in capsys.readouterr().err
    closed = [*SPOT, _trace(tmp_path), *ASKED[:-2], "--concurrency", "4"]
    assert main(closed) == 2
    assert "--concurrency" in capsys.readouterr().err


def test_a_model_that_fits_on_no_machine_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["--cluster", "v100:16", "--prompt", "64", "--output", "8", "--rate", "1"]
    machines = _trace(tmp_path, "minute,added,removed\n0,2,0\n")
    assert main(["serve", "spot", "llama-3.1-405b", machines, *words]) == 2
    assert "does not fit the 2 machines" in capsys.readouterr().err
