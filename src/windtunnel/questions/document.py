"""The document of an answer, for JSON and for tools: the header, the question, the study's own part."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from windtunnel.questions.header import Answer, header
from windtunnel.questions.reading import plain
from windtunnel.questions.registry import Question
from windtunnel.questions.words import command


def document(question: Question, answer: Answer | Mapping[str, object]) -> dict[str, object]:
    """Of an answer, as `run` gives it."""
    own = answer if isinstance(answer, Mapping) else answer.to_dict()
    if not isinstance(answer, Answer):
        return document_of(question, own)
    return document_of(question, own, band=answer.band, provenance=answer.provenance, warnings=answer.warnings)


def document_of(
    question: Question,
    own: Mapping[str, object],
    *,
    band: Mapping[str, object] | None = None,
    provenance: Mapping[str, object] | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, object]:
    """Of the study's own part and what the header says of it."""
    data = plain(question)
    head = header(question.verb, data, command(question), band=band, provenance=provenance, warnings=warnings)
    return head | {"question": data} | dict(own)


def as_text(document: Mapping[str, object]) -> str:
    """One JSON document, keys sorted, so that the same answer is the same bytes."""
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False)
