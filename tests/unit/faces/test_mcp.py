"""Questions as tools: each door is the registry's, and arguments lead to no file that was not given."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import windtunnel
from windtunnel.errors import UserError
from windtunnel.faces.cli.app import main
from windtunnel.faces.mcp import TOOLS, answered, descriptions, server
from windtunnel.questions import QUESTIONS, question_class, read
from windtunnel.questions.document import as_text
from windtunnel.questions.words import flag_fields, words

STEP = {"model": "llama-3-8b", "cluster": "h100-sxm:16", "plan": {"tp": 2, "global_batch": 64, "seq_len": 4096}}
SERVED = {"model": "llama-3.1-8b", "cluster": "h100-sxm:1", "requests": {"prompt": 64, "output": 8, "requests": 9}}
NO_TOOLS = {  # they run programs, hold a port, write, or look at the clock
    *("serve real", "serve listen", "fleet live", "fleet beside", "watch", "runs tag", "runs delete"),
    *("capture", "run", "sweep", "calibrate device", "calibrate collectives"),
}


def test_each_verb_of_the_registry_is_a_tool_or_is_known_to_do_more_than_answer() -> None:
    assert set(QUESTIONS) == {*TOOLS.values(), *NO_TOOLS}
    for description in descriptions():
        assert description["inputSchema"]["type"] == "object"
        assert "question" not in description["inputSchema"]["properties"]
        json.dumps(description)


def test_tools_are_told_in_few_words_and_each_reference_leads_somewhere() -> None:
    for one in descriptions():
        text = json.dumps(one["inputSchema"])
        assert len(text) <= 20_000, one["name"]
        defined = set(one["inputSchema"]["$defs"])
        assert set(re.findall(r'"#/\$defs/(\w+)"', text)) == defined
    fields = next(one for one in descriptions() if one["name"] == "predict")["inputSchema"]
    assert fields["$defs"]["ClusterPart"]["type"] == ["string", "number", "object"]
    assert "n_gpus" in fields["$defs"]["ClusterPart"]["description"]


@pytest.mark.parametrize("stages", [1, 16])
def test_a_prediction_is_told_without_its_timelines(stages: int, tmp_path: Path) -> None:
    plan = {"tp": 8, "pp": stages, "global_batch": 256, "seq_len": 4096}
    found = answered("predict", {"model": "llama-3-70b", "cluster": "h100-sxm:1024", "plan": plan}, tmp_path)
    assert len(found["memory"]) == stages
    assert "excerpt" not in found
    assert not any("timeline" in one for one in found["memory"])
    assert {"step_time_s", "mfu", "peak_memory_bytes", "advice", "breakdown_ns", "stages"} <= set(found)
    assert len(json.dumps(found)) <= 40_000


def test_a_tool_answers_as_the_function_does(tmp_path: Path) -> None:
    found = answered("predict", STEP, tmp_path)
    plan = {"tp": 2, "global_batch": 64, "seq_len": 4096}
    assert found["step_time_ns"] == windtunnel.predict("llama-3-8b", "h100-sxm:16", plan).step_time_ns
    served = answered("serve", {**SERVED, "load": {"rate": 2}}, tmp_path)
    assert served["finished"] == 9
    assert served["question"]["question"] == "serve/1"


FIXED = {"tp": 2, "pp": 1, "cp": 1, "micro_batch": 1, "recompute": "none", "global_batch": 64, "seq_len": 4096}


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("predict", STEP),
        ("plan", {**STEP, "plan": {**FIXED, "framework": "megatron", "zero_stage": 1}}),  # few plans: all are replayed
        ("survive", {**STEP, "seeds": 5}),
        ("diagnose", {**STEP, "measured": 3.0}),
        ("check", {**STEP, "fail_if": "oom,mfu=90%"}),
        ("serve", {**SERVED, "load": {"rate": 2}}),
        ("serve_scale", {**SERVED, "load": {"rate": 2}, "tpot": 0.05}),
        ("rl", {"model": "qwen3-8b", "cluster": "h100-sxm:16", "prompts": 16, "lengths": "mean=900,cap=3000"}),
        ("fabric", {"cluster": "h100-sxm:64"}),
        ("fleet", {"trace": "jobs.csv", "cluster": "v100:8"}),
        ("fleet_lint", {"trace": "jobs.csv", "cluster": "v100:8"}),
        ("survive_spot", {"machines": "machines.csv", "policy": "varuna"}),
        ("model", {"config": "llama-3-8b"}),
        ("techniques", {}),
    ],
)
def test_a_tool_says_what_the_command_line_says(
    tool: str,
    arguments: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "jobs.csv").write_text("job,submit_s,gpus,duration_s\na,0,1,50\nb,5,4,100\n")
    (tmp_path / "machines.csv").write_text("time_s,event,node\n0,add,n1\n0,add,n2\n300,remove,n2\n")
    mine = as_text(answered(tool, arguments, tmp_path))
    question = read({**arguments, "question": TOOLS[tool]})
    monkeypatch.chdir(tmp_path)
    main([*question.verb.split(), *words(question), "--json", *(["--no-save", "--brief"] if tool == "predict" else [])])
    printed = capsys.readouterr().out
    taken = re.compile(r'^ "seconds": .*', re.MULTILINE)  # that a search took
    assert taken.sub("", mine) == taken.sub("", printed.removesuffix("\n"))


TRAIN = """torchrun pretrain_gpt.py --tensor-model-parallel-size 2 --sequence-parallel --num-layers 32 \\
 --hidden-size 4096 \\
 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --swiglu \\
 --untie-embeddings-and-output-weights --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 \\
 --vocab-size 128256 --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --bf16
"""
LINE = " iteration {at}/ 100 | elapsed time per iteration (ms): 9000.0 | global batch size:   64 |"


def test_five_questions_of_the_skills_are_answered_with_files_of_the_folder(tmp_path: Path) -> None:
    """What the skills ask, by a client that has nothing but the tools."""
    (tmp_path / "train.sh").write_text(TRAIN)
    (tmp_path / "train.log").write_text("\n".join(LINE.format(at=at) for at in range(1, 20)))
    job = {"model": "train.sh", "cluster": "h100-sxm:16"}
    plan = {"tp": 2, "global_batch": 64, "seq_len": 4096, "recompute": "full"}
    step = answered("predict", {**job, "plan": plan}, tmp_path)
    assert step["step_time_ns"] > 0  # how long is a step?
    assert step["peak_memory_bytes"] < step["memory_capacity_bytes"]  # does it fit?
    slow = answered("diagnose", {**job, "log": ["train.log"]}, tmp_path)
    assert slow["verdict"] == "slower"  # is 9 s good?
    assert slow["advice"][0]["diff"].startswith("--- a/train.sh")  # what do I change?
    gate = answered("check", {**job, "fail_if": "oom,slower=5%"}, tmp_path)
    assert not gate["passed"]  # may I submit it?
    asked = {"models": ["llama-3-8b"], "clusters": "h100-sxm:16,b200:16", "tokens": "1T", "plan": FIXED, "seeds": 5}
    which = answered("decide", {**asked, "price": "h100-sxm=2.5,b200=4", "within": 1}, tmp_path)
    assert [one["fits"] for one in which["options"]] == [True, True]  # H100 or B200?
    with pytest.raises(UserError):
        answered("diagnose", {**job, "log": ["../train.log"]}, tmp_path)
    with pytest.raises(UserError):
        answered("diagnose", {**job, "log": ["train.log"], "launch": "/etc/passwd"}, tmp_path)


def test_every_line_of_the_skills_is_one_that_the_command_line_takes() -> None:
    lines = [
        line
        for skill in sorted((Path(windtunnel.__file__).parents[2] / "skills").glob("*/SKILL.md"))
        for line in re.findall(r"(?m)(?:^    |`)(windtunnel (?!schema|mcp|explain|compare)[^`\n]+)", skill.read_text())
        if "..." not in line
    ]
    assert len(lines) >= 7
    for line in lines:
        _, verb, *given = shlex.split(line.replace("MODEL", "llama-3-8b").replace("train.sh", "llama-3-8b"))
        names = {f"--{name}" for name in (*flag_fields(question_class(verb)), "json", "no-save")}
        assert {word for word in given if word.startswith("--")} <= names, line


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
        assert answered("predict", {**STEP, **change}, tmp_path)["study"] == "predict"
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
    assert answered("fleet", asked, tmp_path / "mine")["jobs"] == 1
    for trace in ("../other.csv", str(tmp_path / "other.csv"), "other.csv"):
        with pytest.raises(UserError):
            answered("fleet", {**asked, "trace": trace}, tmp_path / "mine")


@pytest.mark.parametrize("name", ["config.json", "serve.sh"])
def test_a_link_in_a_folder_that_is_named_leads_nowhere_else(name: str, tmp_path: Path) -> None:
    real = tmp_path / "real" / name
    real.parent.mkdir()
    shape = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "max_position_embeddings": 8192,
    }
    text = {
        "config.json": json.dumps({"model_type": "llama", "vocab_size": 999, **shape}),
        "serve.sh": "vllm serve qwen3-8b",
    }
    real.write_text(text[name])
    tool, asked = ("predict", STEP) if name == "config.json" else ("serve", {**SERVED, "load": {"rate": 2}})
    folder = tmp_path / "files" / "model"
    folder.mkdir(parents=True)
    (folder / name).symlink_to(real)
    for model in ("model", "model/", "./model"):
        with pytest.raises(UserError, match="folder"):
            answered(tool, {**asked, "model": model}, tmp_path / "files")
    (folder / name).unlink()
    (folder / name).write_text(text[name])
    assert answered(tool, {**asked, "model": "model"}, tmp_path / "files")


@pytest.mark.extras
def test_a_client_lists_calls_and_is_refused(tmp_path: Path) -> None:
    mcp = pytest.importorskip("mcp")

    async def talk() -> None:
        async with mcp.Client(server(tmp_path)) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == set(TOOLS)
            call_tool = await client.call_tool("predict", STEP)
            assert not call_tool.is_error
            assert json.loads(call_tool.content[0].text)["step_time_ns"] > 0
            wrong = await client.call_tool("predict", {**STEP, "model": "/etc/passwd"})
            assert wrong.is_error
            assert (await client.call_tool("capture", {})).is_error

    asyncio.run(talk())
