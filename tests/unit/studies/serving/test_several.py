"""Placement of several models: what is found fits, is the best that was tried, and more load never does better."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from windtunnel.errors import SpecError, UserError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.questions.asked.serve.parts import Lengths, OpenLoad
from windtunnel.studies.serving import Deployment
from windtunnel.studies.serving.parts import workload_of
from windtunnel.studies.serving.placement.several import Several, search_alpaserve, search_muxserve

SLO = {"ttft_s": 2.0, "tpot_s": 0.03}


def asked(rate: float, names: tuple[str, ...] = ("llama-3.1-8b", "qwen3-32b"), gpus: int = 4) -> Several:
    load = workload_of(Lengths(prompt=500, output=100, requests=200), OpenLoad(rate=rate), 0)
    rates = tuple(rate / len(names) for _ in names)
    cluster = parse_cluster(f"h100-sxm:{gpus}")
    return Several(tuple(map(load_model, names)), rates, cluster, Deployment(), load, SLO)


def test_groups_use_the_cluster_once_and_the_runner_up_is_no_better() -> None:
    found = search_alpaserve(asked(2.0))
    assert sum(group.gpus for group in found.groups) == 4
    assert {name for group in found.groups for name in group.models} == {"llama-3.1-8b", "qwen3-32b"}
    assert found.runner_up_value is not None
    assert found.runner_up_value <= found.value <= 1.0
    assert found.candidates > 5


def test_more_load_never_raises_attainment() -> None:
    values = [search_alpaserve(asked(rate)).value for rate in (0.1, 2.0, 20.0)]
    assert values == sorted(values, reverse=True)
    assert values[0] > 0.95 > values[2]


def test_meshes_carry_the_rate_while_they_can_and_hold_every_model() -> None:
    slow, fast = search_muxserve(asked(1.0)), search_muxserve(asked(500.0))
    for found in (slow, fast):
        assert sum(group.gpus for group in found.groups) == 4
        assert sorted(name for group in found.groups for name in group.models) == ["llama-3.1-8b", "qwen3-32b"]
        assert found.runner_up_value is not None
        assert found.runner_up_value <= found.value
        assert found.runner_up.count("GPU") == found.runner_up.count(" + ") + 1
        assert "llama-3.1-8b" in found.runner_up
    assert slow.value == pytest.approx(1.0, rel=0.05)
    assert 1.0 < fast.value < 500.0


def test_what_cannot_be_placed_is_said() -> None:
    with pytest.raises(SpecError, match="does not fit on 1 GPUs"):
        search_muxserve(asked(1.0, ("llama-3.1-70b",), 1))
    with pytest.raises(SpecError, match="no placement meets"):
        search_alpaserve(asked(1.0, ("llama-3.1-70b",), 1))
    one = asked(1.0)
    with pytest.raises(UserError, match="--ttft"):
        search_alpaserve(Several(one.models, one.rates_per_s, one.cluster, one.deployment, one.workload, {}))


@pytest.mark.parametrize("search", ["alpaserve", "muxserve"])
def test_the_command_line_names_what_was_tried_and_what_the_next_costs(search: str) -> None:
    words = "llama-3.1-8b=3,qwen3-32b=1 --cluster h100-sxm:4 --prompt 500 --output 100 --rate 2 --requests 100 --json"
    command = [sys.executable, "-m", "windtunnel", "serve", "plan", *words.split(), "--ttft", "2s", "--tpot", "30ms"]
    done = subprocess.run([*command, "--method", search], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["search"] == search
    assert answer["candidates"] >= 1
    assert answer["runner_up"] is None or answer["runner_up_costs"] >= 0.0
    wrong = subprocess.run(
        [*command[:5], "a=b", *command[6:], "--method", search], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert "MODEL" in wrong.stderr
