"""A question of serving in whose model's place a command line of an engine stands, or files of one.

What they say becomes data of the question's own parts, over which what it says itself wins. What its verb has no place
for, such as a layout where layouts are chosen, is named in a note.
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.errors import SpecError
from windtunnel.questions.fields import fields_of
from windtunnel.questions.registry import question_class
from windtunnel.studies.serving.launch.lines import LINE, Parts, is_started, parts_of


def is_line(text: str) -> bool:
    """Whether a text is a command line of an engine, of which no file is read."""
    return LINE.search(text) is not None


def started(verb: str, text: str, *, rate_is_given: bool) -> Parts | None:
    """What a command line or files say to a verb; None where the text is neither. Raises UserError."""
    if not is_started(text):
        return None
    try:
        parts = parts_of(text)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:  # a list for a mapping
        remedy = "is no manifest as Kubernetes takes them: compare it with one that `--emit dynamo` writes"
        raise SpecError("model", text[:80], remedy) from error
    fields = {field.path: field for field in fields_of(question_class(verb))}
    layout, notes = dict(parts.replicas), list(parts.notes)
    engine_fields = {field.path for field in fields_of(fields["engine"].parts[0])}
    left = [name for name in parts.engine if name not in engine_fields]
    if left:
        notes.append(f"not asked by `windtunnel {verb}`, so left out: {', '.join(left)}")
    if "replicas" not in fields:
        notes.append(f"the layout of the command line is left open: `windtunnel {verb}` chooses layouts")
        layout = {}
    elif verb == "serve plan" and rate_is_given:
        notes.append("the layout of the command line is left open: a plan for --rate looks for it")
        layout = {}
    elif not fields["replicas"].members and layout.pop("kind", "") == "apart":
        raise SpecError("model", text[:80], f"has pools apart, and `windtunnel {verb}` serves with replicas of both")
    engine = {name: value for name, value in parts.engine.items() if name in engine_fields}
    return Parts(parts.model, engine, layout, tuple(notes))


def spelled_out(verb: str, data: Mapping[str, object]) -> tuple[Mapping[str, object], tuple[str, ...]]:
    """A question's plain data with what its model's place says in its parts, and notes. Raises UserError."""
    model, load = data.get("model"), data.get("load")
    text = model.get("base") if isinstance(model, Mapping) else model
    rate_is_given = isinstance(load, Mapping) and load.get("rate") is not None
    parts = started(verb, text, rate_is_given=rate_is_given) if isinstance(text, str) else None
    if parts is None:
        return data, ()
    whole = {**data, "model": {**model, "base": parts.model} if isinstance(model, Mapping) else parts.model}
    for name, below in (("engine", parts.engine), ("replicas", parts.replicas)):
        own = data.get(name) or {}
        if below and isinstance(own, Mapping) and own.get("kind", below.get("kind")) == below.get("kind"):
            whole[name] = {**below, **own}
    return whole, parts.notes
