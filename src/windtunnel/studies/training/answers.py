"""Answers of this process to questions that nothing disturbs: the same question, the same answer."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from windtunnel.physics.hardware import Cluster
    from windtunnel.physics.model import Model
    from windtunnel.physics.step.result import Result
    from windtunnel.questions.asked.parts.plan import Plan

KEPT = 256
# By the identity of the model, which is kept: hashing its layers costs more than the rest of the answer.
Key = tuple[int, "Cluster", "Plan", object]
_ANSWERS: OrderedDict[Key, tuple[Model, Result]] = OrderedDict()


def answer_to(key: Key) -> Result | None:
    """The answer that was given to a question; None where it was not asked."""
    entry = _ANSWERS.get(key)
    if entry is None:
        return None
    _ANSWERS.move_to_end(key)
    return entry[1]


def remember(key: Key, model: Model, result: Result) -> None:
    """Keep an answer, and let the one go that was asked for longest ago."""
    _ANSWERS[key] = (model, result)
    while len(_ANSWERS) > KEPT:
        _ANSWERS.popitem(last=False)


def forget_answers() -> None:
    """Whatever they were made of has changed."""
    _ANSWERS.clear()
