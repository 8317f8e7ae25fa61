"""Questions of serving and of a fleet: what help shows of them, and that their choices are those of the studies."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from windtunnel.errors import SpecError
from windtunnel.faces.ui.jobs import VERBS
from windtunnel.physics.cost.inference.formats import WEIGHT_BYTES
from windtunnel.questions import QUESTIONS, changed, question_class, read
from windtunnel.questions.asked.parts.plan import SIZES, OpenPlan, Plan
from windtunnel.questions.asked.serve.parts import Router, Weights
from windtunnel.questions.fields import fields_of
from windtunnel.questions.form import inputs, of_form
from windtunnel.questions.old import question_of_command
from windtunnel.questions.words import flag_fields
from windtunnel.studies.serving.parts import workload_of
from windtunnel.studies.serving.routing import ROUTERS

SERVED = {
    "question": "serve",
    "model": "m",
    "cluster": "c",
    "requests": {"prompt": 8, "output": 2},
    "load": {"rate": 3},
}


@pytest.mark.parametrize("verb", [verb for verb in QUESTIONS if verb.split()[0] in ("serve", "fleet")])
def test_help_shows_twenty_flags_at_most(verb: str) -> None:
    flags = flag_fields(question_class(verb))
    assert sum(not all(field.about.rare for field in meanings) for meanings in flags.values()) <= 20


def test_choices_are_those_of_the_study() -> None:
    assert set(get_args(Weights)) == set(WEIGHT_BYTES)
    assert set(get_args(Router)) == set(ROUTERS)


def test_a_change_turns_a_union_to_the_member_that_knows_it() -> None:
    question = read(SERVED)
    closed = changed(question, {"load.concurrency": 4})
    assert (closed.load.kind, closed.load.concurrency) == ("closed", 4)
    apart = changed(changed(question, {"replicas.tp": 2}), {"replicas.prefill": "1xtp1", "replicas.decode": "1xtp1"})
    assert apart.replicas.kind == "apart"


@pytest.mark.parametrize("data", ["serve", None, ["serve"], 3])
def test_what_is_no_mapping_is_no_question(data: object) -> None:
    with pytest.raises(SpecError, match="mapping"):
        read(data)  # type: ignore[arg-type]


def test_what_must_stand_together_is_one_error() -> None:
    with pytest.raises(SpecError, match="--rate R"):
        read({**SERVED, "load": {"kind": "recorded"}})
    with pytest.raises(SpecError, match="price"):
        read({**SERVED, "question": "serve plan", "replicas": {"method": "distserve"}, "price": 2})
    with pytest.raises(SpecError, match="lyra"):
        read({"question": "fleet", "trace": "t.csv", "elastic": 0.1})


@pytest.mark.parametrize("verb", VERBS)
def test_a_form_begins_with_the_example_and_asks_it(verb: str) -> None:
    """Words of the registry are a question of their verb, and a form filled with it asks the same."""
    example = QUESTIONS[verb].example
    question = question_of_command(f"windtunnel {verb} {example}")
    assert example or verb == "techniques"  # which needs no word
    assert of_form(verb, {one.name: one.value for one in inputs(verb, question)}) == question


@pytest.mark.parametrize(
    ("data", "remedy"),
    [
        ({"question": "fleet pack", "trace": "pods.csv", "cluster": "nodes.csv", "policy": ""}, "leave it out"),
        ({"question": "fleet pack", "trace": "", "cluster": "nodes.csv"}, "it is needed"),
        ({"question": "run", "launch": ["train.py"], "captured": ""}, "leave it out"),  # forms cannot say it
    ],
)
def test_an_empty_text_is_no_answer_to_a_field(data: dict[str, object], remedy: str) -> None:
    with pytest.raises(SpecError, match=remedy):
        read(data)


def test_a_part_of_which_nothing_is_said_at_any_depth_is_none() -> None:
    """Its form could not tell it from one that is not there (found by the fuzz)."""
    question = read({"question": "survive", "cluster": {"base": "16", "host": {"cpu_speed": {}}}})
    assert question == read({"question": "survive", "cluster": {"base": "16"}})
    assert of_form("survive", {one.name: one.value for one in inputs("survive", question)}) == question


def test_the_form_of_an_empty_list_is_empty() -> None:
    texts = {one.name: one.value for one in inputs("explain", read({"question": "explain", "traces": []}))}
    assert texts["traces"] == ""


BESIDE = {"serve spot": {"machines": "m.csv"}, "serve scale": {"tpot": 0.02}}


@pytest.mark.parametrize("verb", ["serve", "serve plan", "serve policies", "serve spot", "serve scale"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "no lengths are given: requests of 1,024 tokens in and 1,024 out"),
        ({"requests": 40}, "no lengths are given: requests of 1,024 tokens in and 1,024 out"),
        ({"output": 100}, "no --prompt is given: requests of 1,024 tokens in"),
        ({"prompt": 100, "requests": 40}, "no --output is given: requests of 1,024 tokens out"),
        ({"prompt": 8, "output": 2}, ""),
    ],
)
def test_lengths_that_nobody_gives_are_assumed_and_said(verb: str, given: dict[str, int] | None, said: str) -> None:
    asked = {"question": verb, "model": "m", "cluster": "c", "load": {"rate": 3}, **BESIDE.get(verb, {})}
    question: Any = read(asked if given is None else {**asked, "requests": given})
    load = workload_of(question.requests, question.load, question.seed)
    assert [note.startswith(said) for note in load.notes] == [True] * bool(said)
    given = given or {}
    assert (load.input_tokens[0], load.output_tokens[0]) == (given.get("prompt", 1024), given.get("output", 1024))


def test_a_choice_of_parts_is_called_what_each_is() -> None:
    """Every kind has a phrase of its own, without the flag that asks for it on the command line."""
    choosers = [field for verb in QUESTIONS for field in inputs(verb) if field.name.endswith(".kind")]
    assert choosers
    for chooser in choosers:
        assert len(set(chooser.phrases)) == len(chooser.choices), chooser.name
        assert not any("--" in phrase for phrase in chooser.phrases), chooser.phrases


@pytest.mark.parametrize("tokens", [10**400, 0, -5])
def test_tokens_of_a_training_have_limits_at_every_door(tokens: int) -> None:
    asked: dict[str, dict[str, Any]] = {"predict/1": {"model": "gpt2", "cluster": "h100-sxm:8"}}
    asked["decide/1"] = {"models": ["gpt2"], "clusters": "h100-sxm:8"}
    for question, more in asked.items():
        with pytest.raises(SpecError, match="tokens"):
            read({"question": question, **more, "tokens": tokens})


def test_sizes_that_a_search_tries_name_no_default() -> None:
    """`plan --help` said "Pipeline stages (1)." of what it searches; `predict` does take 1."""
    searched, stated = ({entry.path: entry.about.text for entry in fields_of(part)} for part in (OpenPlan, Plan))
    assert searched["pp"] == "Pipeline stages."
    assert stated["pp"] == "Pipeline stages (1)."
    assert {name for name in stated if searched[name] != stated[name]} == set(SIZES)
