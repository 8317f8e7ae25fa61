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
from typing import Any

from windtunnel.questions.changing import changed
from windtunnel.questions.reading import digest, plain, read, read_part, schema
from windtunnel.questions.registry import QUESTIONS, Question, object_at, question_class

__all__ = [
    "QUESTIONS",
    "Question",
    "ask",
    "changed",
    "digest",
    "plain",
    "question_class",
    "read",
    "read_part",
    "run",
    "schema",
]


def run(question: Question) -> Any:
    """The study's answer to a question, which is read again first. Raises UserError."""
    return object_at(QUESTIONS[question.verb].answer)(read(plain(question)))


def ask(question: Mapping[str, object]) -> object:
    """The answer to a question as plain data: `{"question": "predict", "model": ..., "cluster": ..., "plan": {...}}`.

    The fields are those of `windtunnel schema VERB`. Raises UserError on the first mistake.
    """
    return run(read(question))
