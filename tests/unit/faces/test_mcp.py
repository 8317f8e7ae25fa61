"""Questions as tools: each door is the registry's, and arguments lead to no file that was not given."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import windtunnel
from windtunnel.errors import UserError
from windtunnel.faces.mcp import TOOLS, answered, descriptions, server
from windtunnel.questions import QUESTIONS

STEP = {"model": "llama-3-8b", "cluster": "h100-sxm:16", "plan": {"tp": 2, "global_batch": 64, "seq_len": 4096}}
SERVED = {"model": "llama-3.1-8b", "cluster": "h100-sxm:1", "requests": {"prompt": 64, "output": 8, "requests": 9}}
NO_TOOLS = {  # they run programs, hold a port, write, or look at the clock
    *("serve real", "serve listen", "fleet live", "watch", "runs tag", "runs delete"),
    *("capture", "run", "sweep", "calibrate device", "calibrate collectives"),
}


def test_each_verb_of_the_registry_is_a_tool_or_is_known_to_do_more_than_answer() -> None:
    assert set(QUESTIONS) == {*TOOLS.values(), *NO_TOOLS}
    for one in descriptions():
        assert one["inputSchema"]["type"] == "object"
        assert "question" not in one["inputSchema"]["properties"]
        json.dumps(one)


def test_a_tool_answers_as_the_function_does(tmp_path: Path) -> None:
    found = answered("predict", STEP, tmp_path)
    plan = {"tp": 2, "global_batch": 64, "seq_len": 4096}
    assert found["answer"]["step_time_ns"] == windtunnel.predict("llama-3-8b", "h100-sxm:16", plan).step_time_ns
    served = answered("serve", {**SERVED, "load": {"rate": 2}}, tmp_path)
    assert served["answer"]["finished"] == 9
    assert served["question"]["question"] == "serve/1"


@pytest.mark.parametrize(
    "change",
    [
        {"model": "/etc/passwd"},
        {"model": "../model.json"},
        {"model": "~/model.json"},
        {"model": "a\\..\\model.json"},
        {"model": "link.json"},
        {"cluster": "/etc/hosts.yaml:8"},
        {"cluster": {"base": "h100-sxm:8", "gpu": "../gpu.yaml"}},
        {"scenario": {"slow": ["/etc/slow.yaml"]}},
        {"scenario": {"lengths": "a=../../lengths.csv"}},
        {"question": "fleet live"},
        {"plan": {"tp": 0, "global_batch": 64, "seq_len": 4096}},
        {"plan": "tp: 2"},
        {"unheard_of": 1},
        {"model": {"base": ["x"]}},
        {"model": "x" * 2_000_000},
        {"tokens": float("nan")},
    ],
)
def test_hostile_arguments_are_errors(change: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("/etc/passwd")
    if change == {"question": "fleet live"}:  # the tool says which verb, never its arguments
        assert answered("predict", {**STEP, **change}, tmp_path)["question"]["question"] == "predict/1"
        return
    with pytest.raises(UserError) as caught:
        answered("predict", {**STEP, **change}, tmp_path)
    assert "\n" not in str(caught.value)
    assert "root:" not in str(caught.value)


def test_files_of_the_folder_are_read_and_of_no_other(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "jobs.csv").write_text("job,submit_s,gpus,duration_s\na,0,1,5\n")
    (tmp_path / "other.csv").write_text("job,submit_s,gpus,duration_s\na,0,1,5\n")
    asked = {"trace": "jobs.csv", "cluster": "v100:8"}
    assert answered("fleet", asked, tmp_path / "mine")["answer"]["jobs"] == 1
    for trace in ("../other.csv", str(tmp_path / "other.csv"), "other.csv"):
        with pytest.raises(UserError):
            answered("fleet", {**asked, "trace": trace}, tmp_path / "mine")


@pytest.mark.extras
def test_a_client_lists_calls_and_is_refused(tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp")

    async def talk() -> None:
        async with mcp.Client(server(tmp_path)) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == set(TOOLS)
            found = await client.call_tool("predict", STEP)
            assert not found.is_error
            assert json.loads(found.content[0].text)["answer"]["step_time_ns"] > 0
            wrong = await client.call_tool("predict", {**STEP, "model": "/etc/passwd"})
            assert wrong.is_error
            assert (await client.call_tool("capture", {})).is_error

    asyncio.run(talk())
