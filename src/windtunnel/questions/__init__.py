"""Questions: what each study is asked, as one frozen dataclass, and all that a door needs of it.

plain(question)              JSON data, nothing that holds its default      files, hashes, pages
digest(question)             of the plain form: a new field with a default changes none
read(data)                   plain data to a question, strict; SpecError names field, value and remedy
changed(question, {...})     dotted paths replaced: what-if, sweeps, advice, `--set`
run(question)                the study's answer
words.words(question)        the command line that asks it
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from windtunnel.questions.changing import changed
from windtunnel.questions.reading import digest, plain, read, read_part, schema
from windtunnel.questions.registry import QUESTIONS, Question, object_at, question_class

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Noted = TypeVar("Noted", bound="DataclassInstance")

__all__ = [
    "QUESTIONS",
    "Question",
    "ask",
    "changed",
    "digest",
    "noted",
    "plain",
    "question_class",
    "read",
    "read_part",
    "run",
    "schema",
    "spelled_out",
]


def run(question: Question) -> Any:
    """The study's answer to a question, which is read again first. Raises UserError."""
    return object_at(QUESTIONS[question.verb].answer)(read(plain(question)))


def ask(question: Mapping[str, object]) -> object:
    """The answer to a question as plain data: `{"question": "predict", "model": ..., "cluster": ..., "plan": {...}}`.

    The fields are those of `windtunnel schema VERB`. Raises UserError on the first mistake.
    """
    data, notes = spelled_out(question)
    return noted(run(read(data)), notes)


def spelled_out(question: Mapping[str, object]) -> tuple[Mapping[str, object], tuple[str, ...]]:
    """Plain data in which a command line or files of an engine stand for parts with these, and notes of what is left.

    Raises UserError.
    """
    verb = str(question.get("question", "")).partition("/")[0] if isinstance(question, Mapping) else ""
    if verb not in QUESTIONS or not QUESTIONS[verb].spells:
        return question, ()
    data, notes = object_at(QUESTIONS[verb].spells)(verb, question)
    return data, notes


def noted(answer: Noted, notes: tuple[str, ...]) -> Noted:
    """A study's answer with notes before its warnings."""
    return replace(answer, warnings=(*notes, *answer.warnings)) if notes else answer  # type: ignore[attr-defined]
