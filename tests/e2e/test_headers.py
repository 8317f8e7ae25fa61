"""The header of every answer: what was asked, by which command it is asked again, and that all verbs have it."""

from __future__ import annotations

import ast
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from in_this_process import assert_header, command_line

import windtunnel.faces.cli
from windtunnel.questions.header import SCHEMA, header

COFLOWS = Path(__file__).parents[1] / "unit" / "studies" / "fleet" / "coflows.txt"
SERVE = "serve llama-3.1-8b --cluster h100-sxm:1 --prompt 64 --output 8 --rate 2 --requests 8"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the questions below read."""
    folder = tmp_path_factory.mktemp("asked")
    (folder / "jobs.csv").write_text("job,submit_s,gpus,duration_s\na,0,8,100\nb,5,8,30\nbig,7,640,10\n")
    (folder / "flows.txt").write_bytes(COFLOWS.read_bytes())
    study = {
        "fixed": {"model": "gpt2-xl", "cluster": "a100-80gb:8", "plan.global_batch": 8, "plan.seq_len": 256},
        "grid": {"plan.tp": [1]},
    }
    (folder / "study.yaml").write_text(json.dumps(study))
    return folder


@pytest.mark.parametrize(
    ("words", "study", "spec"),
    [
        ("techniques lina", "techniques", {"name": "lina"}),
        ("fleet jobs.csv --cluster v100:8 --policy easy --rows out.csv", "fleet", {"policy": "easy"}),
        ("fleet when jobs.csv b --cluster v100:8", "fleet when", {"job": "b"}),
        ("fleet jobs.csv --cluster v100:8 --seeds 2", "fleet", {"seeds": 2}),
        ("fleet lint jobs.csv", "fleet lint", {"trace": "jobs.csv"}),
        ("fleet flows flows.txt --policy sebf --rows out.csv", "fleet flows", {"trace": "flows.txt"}),
        ("survive --cluster h100-sxm:64 --seeds 2 --days 1 --policy restart", "survive", {"seeds": 2}),
        ("sweep study.yaml --executor serial", "sweep", {"study": "study.yaml"}),
        ("sweep sweep.parquet --show time_vs_plan.tp", "sweep table", {"show": "time_vs_plan.tp"}),
        (SERVE, "serve", {}),
        ("runs", "runs list", {}),
    ],
)
def test_the_question_and_the_command_stand_in_the_answer(
    folder: Path, words: str, study: str, spec: dict[str, Any]
) -> None:
    first = command_line(*shlex.split(words), "--json", cwd=folder)
    assert first.returncode in (0, 3), first.stderr
    document = json.loads(first.stdout)
    assert document["study"] == study
    assert spec.items() <= document["spec"].items()
    asked = shlex.split(document["reproduce"])
    assert "out.csv" not in asked
    again = json.loads(command_line(*asked[1:], "--json", cwd=folder).stdout)
    assert {**again, "ran": None} == {**document, "ran": None}  # a sweep's rows are there the second time


def test_what_has_a_band_and_what_is_to_mind_is_said(folder: Path) -> None:
    fleet = json.loads(command_line("fleet", "jobs.csv", "--cluster", "v100:8", "--json", cwd=folder).stdout)
    assert fleet["warnings"] == ["1 job left out, asks 640 GPUs of 8: big"]
    assert fleet["band"] is None
    words = "survive --cluster h100-sxm:64 --seeds 5 --days 9 --policy restart,standby --json"
    survived = json.loads(command_line(*words.split()).stdout)
    assert survived["band"] == {"of": "ettr", "p5": survived["ettr_p5"], "p95": survived["ettr_p95"]}
    assert survived["provenance"] == {"failures": survived["failures_source"]}
    served = json.loads(command_line(*SERVE.split(), "--json").stdout)
    assert served["band"]["p5"] <= served["tpot_s"]["mean"] <= served["band"]["p95"]
    assert served["spec"]["model"] == "llama-3.1-8b"


def test_every_verb_prints_its_json_with_the_header() -> None:
    """`print_json` alone has none: only the prediction, which brings its own, may call it."""
    bare, headed = set(), set()
    for path in Path(windtunnel.faces.cli.__file__).parent.glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        called = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        if "print_json" in called:
            bare.add(path.stem)
        if {"give", "print_answered", "print_question", "to_document"} & called:
            headed.add(path.stem)
    assert bare == {"ask", "output", "predict"}  # `ask` hands on to a verb, and prints schemas
    assert headed >= {"model", "sweep", "answered"}


def test_an_answer_that_no_command_line_asked_has_no_command() -> None:
    made = header("plan", {"model": "m"}, None)
    assert (made["schema"], made["reproduce"], made["band"], made["provenance"]) == (SCHEMA, None, None, None)
    assert_header(made | {"reproduce": "windtunnel plan m"})
