"""`windtunnel serve pool FILE` with `weights:`: three systems beside each other, priced as `serve`; mistakes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from windtunnel.faces.cli import main
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.model.catalogue import load_model
from windtunnel.studies.serving import Deployment, engine_of
from windtunnel.studies.serving.weight_pool.study import read_weight_pool, run_weight_pool

LOAD = {"prompt": 500, "output": 20, "rate": 4, "requests": 200, "zipf": 0.9}


def _file(folder: Path, **changes: Any) -> Path:
    document = {
        "weights": {"cluster": "a100-80gb:4", "host_cache": "64 GB", "gpu_hour": 1.5},
        "models": {"chat": {"model": "llama-3.1-8b", "copies": 8}, "code": {"model": "qwen3-8b"}},
        "workload": LOAD,
    }
    path = folder / "weights.yaml"
    path.write_text(yaml.safe_dump({**document, **changes}))
    return path


def test_the_systems_stand_beside_each_other(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["serve", "pool", str(_file(tmp_path)), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["study"] == "serve pool"
    assert found["schema"].startswith("windtunnel.result/")
    systems = found["systems"]
    assert set(systems) == {"pool", "fixed", "cold"}
    assert found["spec"]["models"] == 9
    for one in systems.values():
        assert one["requests_per_s"] == pytest.approx(200 / one["duration_s"])
        assert one["cost"] == pytest.approx(4 * one["duration_s"] / 3600 * 1.5)
        assert 0.0 < one["utilisation"] < 1.0
    assert systems["fixed"]["loads"] == 0
    assert systems["pool"]["loads"] >= systems["pool"]["host_hits"] > 0
    assert systems["pool"]["e2e_s"]["mean"] < systems["cold"]["e2e_s"]["mean"]
    assert main(["serve", "pool", str(_file(tmp_path, systems=["pool"]))]) == 0
    shown = capsys.readouterr().out
    assert "from the host" in shown
    assert "cold" not in shown


def test_a_request_alone_takes_its_load_and_the_steps_of_serve(tmp_path: Path) -> None:
    load = {**LOAD, "rate": 0.01, "cv": 0, "requests": 3}
    pool = read_weight_pool(_file(tmp_path, models={"one": {"model": "llama-3.1-8b"}}, workload=load))
    systems = run_weight_pool(pool).to_dict()["systems"]
    engine = engine_of(load_model("llama-3.1-8b"), parse_cluster("a100-80gb:1"), Deployment())
    times = engine.times
    alone = (times.mixed(0, 0, [(500, 0)], 1) + 19 * times.decode(1).at(510)) / 1024e9
    assert systems["fixed"]["e2e_s"]["mean"] == pytest.approx(alone)
    over_network = engine.memory.weights / pool.servers.network_bytes_per_s
    first = 3 * systems["pool"]["e2e_s"]["mean"] - 2 * alone  # loads once; the other two find it there
    assert systems["pool"]["loads"] == 1
    assert (
        max(alone, over_network) < first < over_network + engine.memory.weights / pool.servers.pcie_bytes_per_s + alone
    )


def test_what_fixed_places_cannot_hold_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    many = {"chat": {"model": "llama-3.1-8b", "copies": 40}}
    path = _file(tmp_path, models=many, systems=["fixed", "pool"], workload={**LOAD, "requests": 20})
    assert main(["serve", "pool", str(path)]) == 0
    assert re.search(r"Not possible\n.*fixed: 161 GB of weights", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"systems": ["magic"]}, "systems"),
        ({"weights": {"cluster": "a100-80gb:4", "speed": 3}}, "weights.speed"),
        ({"weights": {"cluster": "a100-80gb:4", "gpu_hour": -1}}, "weights.gpu_hour"),
        ({"weights": {}}, "weights"),
        ({"models": {"big": {"model": "llama-3.1-405b"}}}, "models.big"),
        ({"models": {"chat": {"model": "llama-3.1-8b", "copies": 0}}}, "models.chat.copies"),
        ({"workload": {**LOAD, "zipf": -1}}, "workload.zipf"),
        ({"groups": {"all": {"cluster": "a100-80gb:4"}}}, "pool.groups"),
    ],
)
def test_a_mistake_is_one_line(
    changes: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["serve", "pool", str(_file(tmp_path, **changes)), "--json"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
