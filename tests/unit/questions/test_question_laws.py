"""What holds for every question: each door gives it back as it was."""

from __future__ import annotations

import json
from dataclasses import field as dataclass_field
from dataclasses import fields, make_dataclass
from typing import get_type_hints

from drawn import questions
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.questions import QUESTIONS, changed, digest, plain, question_class, read
from windtunnel.questions.form import inputs, of_form
from windtunnel.questions.old import question_of, question_of_command
from windtunnel.questions.words import command

ANY = st.sampled_from(sorted(QUESTIONS)).flatmap(questions)


@given(ANY)
def test_plain_data_give_it_back(question: object) -> None:
    through_a_file = json.loads(json.dumps(plain(question)))
    assert read(through_a_file) == question
    assert digest(read(through_a_file)) == digest(question)


@given(ANY)
def test_its_command_gives_it_back(question: object) -> None:
    assert question_of_command(command(question)) == question
    assert question_of({"reproduce": command(question)}) == question
    assert question_of({"question": plain(question), "reproduce": "something else"}) == question


@given(ANY)
def test_its_form_gives_it_back(question: object) -> None:
    verb = question.verb  # type: ignore[attr-defined]
    texts = {one.name: one.value for one in inputs(verb, question)}
    assert of_form(verb, texts) == question


@given(questions("predict"), st.data())
def test_a_change_is_what_reading_the_changed_data_gives(question: object, data: st.DataObject) -> None:
    assert changed(question, {}) == question
    number = data.draw(st.integers(1, 9))
    after = changed(question, {"seed": number})
    assert changed(after, {"seed": None}) == changed(question, {"seed": None})
    assert plain(after)["scenario"]["seed"] == number


@given(st.sampled_from(sorted(QUESTIONS)), st.data())
def test_a_new_field_with_a_default_changes_no_hash(verb: str, data: st.DataObject) -> None:
    question = data.draw(questions(verb))
    kind = question_class(verb)
    hints = get_type_hints(kind, include_extras=True)  # of fields that a part hands down as well
    old = [
        (field.name, hints[field.name], dataclass_field(default=field.default, default_factory=field.default_factory))
        for field in fields(kind)
    ]
    new = ("brand_new", int, dataclass_field(default=7))
    space = {"verb": verb, "__module__": kind.__module__}
    later = make_dataclass("Later", [*old, new], frozen=True, kw_only=True, namespace=space)
    values = {field.name: getattr(question, field.name) for field in fields(kind)}
    assert plain(later(**values)) == plain(question)
    assert plain(later(**values, brand_new=8)) == {**plain(question), "brand_new": 8}


def test_hashes_of_today() -> None:
    """They name runs of users: a change of this file is a change of a version."""
    data = {
        "question": "predict/1",
        "model": "llama-3-8b",
        "cluster": {"base": "h100-sxm:16", "nic": "800Gb/s"},
        "plan": {"tp": 2, "global_batch": 64, "seq_len": 4096},
        "scenario": {"jitter": "2%"},
    }
    assert digest(read(data)) == "3e96f5311578"
    assert digest(read({**data, "scenario": {"jitter": 0.02}})) == "3e96f5311578"
    assert digest(changed(read(data), {"tp": 4})) != "3e96f5311578"
