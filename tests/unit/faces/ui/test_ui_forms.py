"""Forms of the local page: the fields of each question, what is asked of them, and the way back."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from inspect import signature
from pathlib import Path

import pytest

pytest.importorskip("starlette")
pytest.importorskip("httpx")

from cyclopts import App
from starlette.testclient import TestClient

from windtunnel.faces.cli.verbs import command_of
from windtunnel.faces.ui.jobs import UNDRAWN, VERBS, JobList
from windtunnel.faces.ui.server import application
from windtunnel.questions.form import inputs

HERE = "127.0.0.1:8765"
SAME = {"origin": f"http://{HERE}"}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(application(tmp_path / "runs", frozenset({HERE})), base_url=f"http://{HERE}") as found:
        yield found


def wait(jobs: JobList, name: str, seconds: float = 120.0) -> str:
    end = time.monotonic() + seconds
    while jobs.get(name).state == "running" and time.monotonic() < end:
        time.sleep(0.1)
    return jobs.get(name).state


@pytest.mark.parametrize("verb", VERBS)
def test_each_study_has_a_form_of_its_questions_fields(client: TestClient, verb: str) -> None:
    text = client.get("/studies", params={"verb": verb}).text
    names = set(re.findall(r'<(?:input|select|textarea) id="f-[^"]+" name="([^"]+)"', text))
    assert names == {one.name for one in inputs(verb)}


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in UNDRAWN])
def test_each_study_draws_a_report(verb: str) -> None:
    app = command_of(verb.split()[0])
    for name in verb.split()[1:]:
        app = app[name]
    shown = app.default_command if isinstance(app, App) else app
    assert "report" in signature(shown).parameters


def test_a_form_begins_filled_and_can_be_emptied(client: TestClient) -> None:
    field = r'name="requests.prompt"[^>]* value="([^"]*)"'
    filled = client.get("/studies", params={"verb": "serve"}).text
    emptied = client.get("/studies", params={"verb": "serve", "empty": "yes"}).text
    assert (re.search(field, filled)[1], re.search(field, emptied)[1]) == ("2000", "")  # type: ignore[index]


def test_a_form_is_asked_as_its_question(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = []
    monkeypatch.setattr(JobList, "start", lambda self, verb, line: begun.append((verb, line)) or "x")
    form = {
        "verb": "serve", "model.base": "llama-3.1-8b", "cluster.base": "h100-sxm:1", "requests.kind": "lengths",
        "requests.prompt": "2,000", "requests.output": "300", "load.kind": "closed", "load.concurrency": "32",
        "load.rate": "5", "engine.engine": "", "words": "",
    }  # fmt: skip
    where = client.post("/studies/start", data=form, headers=SAME, follow_redirects=False)
    assert where.headers["location"] == "/studies/x"
    line = "llama-3.1-8b --cluster h100-sxm:1 --prompt 2000 --output 300 --concurrency 32"  # nothing of `open`
    assert begun == [("serve", line)]
    refused = client.post("/studies/start", data=form | {"requests.prompt": "many"}, headers=SAME)
    assert "requests.prompt" in refused.text
    assert len(begun) == 1


def test_a_layout_that_does_not_fit_the_gpus_names_the_button_that_finds_one(client: TestClient) -> None:
    asked = {"model": "llama-3.1-8b", "gpu": "h100-sxm", "gpus": "8", "tp": "8", "pp": "4", "global_batch": "64"}
    text = client.get("/answer", params=asked | {"seq_len": "4096"}).text
    assert 'data-field="tp"' in text
    assert "press Find the best plan" in text


def test_what_if_says_first_what_is_fastest_and_what_a_slow_gpu_costs(client: TestClient) -> None:
    asked = {
        "model": "llama-3.1-8b",
        "gpu": "h100-sxm",
        "gpus": "8",
        "global_batch": "64",
        "seq_len": "4096",
        "tp": "2",
    }
    text = client.get("/points", params=asked | {"vary": "precision"}).text
    assert re.search(r"Precision \w+ is the fastest that fits: [\d.]+ m?s a step", text)
    text = client.get("/points", params=asked | {"vary": "slow"}).text
    assert re.search(r"gpu=\d:1.5 makes the step [\d.]+\s% longer", text)


def test_a_form_says_what_its_fields_are_and_which_files_they_take(client: TestClient) -> None:
    """A log goes to `log`, not to the seconds that were measured, which is the first free field."""
    text = client.get("/studies", params={"verb": "diagnose"}).text
    assert re.search(r'<textarea id="f-log"[^>]* data-takes="out out log', text)
    assert re.search(r'<input id="f-model.base"[^>]* data-takes="sh', text)
    assert re.search(r'<span class="help" id="h-measured">Step time that was measured', text)
    assert '<optgroup label="Serving">' in text
    every = re.findall(r'<option value="([a-z ]+)"', text.partition("</select>")[0])
    assert sorted(every) == sorted(VERBS)  # each stands in one area


def test_an_answer_leads_back_to_its_form(client: TestClient, tmp_path: Path) -> None:
    form = {"verb": "model", "config": "llama-3.1-8b"}
    where = client.post("/studies/start", data=form, headers=SAME, follow_redirects=False).headers["location"]
    wait(JobList(tmp_path / "runs"), where.rpartition("/")[2])
    again = re.search(r'href="(/studies\?[^"]+)">Change the question', client.get(where).text)
    assert again is not None
    assert 'value="llama-3.1-8b"' in client.get(again[1].replace("&amp;", "&")).text
