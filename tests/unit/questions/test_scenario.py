"""A scenario: one frozen object for all that disturbs a step, and the same step by its parts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import windtunnel
from windtunnel.errors import SpecError
from windtunnel.questions.asked.parts.scenario import CALM, NAMES, Parts, Scenario
from windtunnel.studies.programs.predict import predict_captured

SMALL = ("gpt2-xl", "a100-80gb:8", {"global_batch": 8, "seq_len": 256, "pp": 2})


def test_it_is_frozen_and_equal_to_its_like() -> None:
    scenario = Scenario(["gpu=1:1.2"], "2%", seed=3)
    assert scenario == Scenario(("gpu=1:1.2",), "2%", seed=3)
    assert len({scenario, Scenario(("gpu=1:1.2",), "2%", seed=3), CALM}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        scenario.seed = 4  # type: ignore[misc]
    assert tuple(Parts.__annotations__) == NAMES


@pytest.mark.parametrize(
    ("parts", "other"),
    [
        ({}, False),
        ({"seed": 7, "samples": 9}, False),
        ({"jitter": "0%"}, False),
        ({"jitter": 0.01}, True),
        ({"slow": ["gpu=1:1.2"]}, True),
        ({"router_load": "zipf:0.5"}, True),
        ({"lengths": Path("lengths.csv")}, True),
    ],
)
def test_whether_the_step_is_another(parts: Parts, other: bool) -> None:
    assert Scenario(**parts).disturbs is other


def test_whole_and_in_parts_it_is_the_same_question() -> None:
    scenario = Scenario(["gpu=1:1.2", "random=50%:1.1"], "1%", samples=5, seed=3)
    whole = windtunnel.predict(*SMALL, scenario=scenario)
    parts = {name: getattr(scenario, name) for name in NAMES}
    assert windtunnel.predict(*SMALL, **parts).to_json() == whole.to_json()
    seeded = windtunnel.predict(*SMALL, scenario=scenario, seed=4)  # a part beside it replaces that part
    assert seeded.to_json() == windtunnel.predict(*SMALL, scenario=dataclasses.replace(scenario, seed=4)).to_json()
    assert seeded.to_json() != whole.to_json()


@pytest.mark.parametrize("part", [{"router_load": "zipf:0.5"}, {"lengths": "lengths.csv"}])
def test_a_recorded_program_has_its_own_router_and_lengths(part: Parts) -> None:
    with pytest.raises(SpecError, match=f"{next(iter(part))} = .*the captured script has its own"):
        predict_captured("nowhere", "h100-sxm:8", scenario=Scenario(**part))
