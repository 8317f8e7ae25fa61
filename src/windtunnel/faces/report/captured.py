"""A captured job on one screen: which ranks were run, who equals whom, what a step executes, and what was made up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from windtunnel.units import format_bytes, format_count
from windtunnel.views import Column, Document, Field, Headline, Notes, Table, View, table_of

MOST_CLASSES, MOST_ANSWERS, MOST_NOTES = 20, 8, 8
CALLS = (Column("kind"), Column("calls", "number"), Column("a rank", "number"), Column(""))
HOST = "objects and small tensors of the host"


def captured_document(document: Mapping[str, Any], folder: str, cluster: str | None) -> Document:
    """What a captured folder's document says. `cluster`: what the next command names."""
    world, classes, facts, grid = int(document["world_size"]), document["classes"], document["facts"], document["grid"]
    sizes = " x ".join(f"{name} {size}" for name, size in zip(grid["names"], grid["sizes"], strict=True))
    notes = [str(text) for text in document["notes"]]
    findings = [f"{finding['effect']}: {finding['text']}" for finding in document.get("findings", ())]
    views: list[View] = [Headline(_verdict(document, world)), Notes("What may go wrong in the real job", findings)]
    views += [
        Notes("Not seen", [str(text) for text in document.get("not_seen", ())], "warn"),
        _classes(classes),
        Notes("Compared, and fit", [str(document["compared"])] if document.get("compared") else []),
        Table("Communication", CALLS, [*_calls(classes, "collectives"), *_calls(classes, "control", HOST)]),
        Notes("Answered where Python read a tensor", _answers(document["answers"])),
        Notes("Faked", [str(text) for text in document["faked"]]),
        Notes("Notes", [*notes[:MOST_NOTES], *_more(len(notes) - MOST_NOTES, "notes")]),
        Notes("", [_spent(document), *_next(document, folder, cluster)]),
    ]
    where = f"step {facts['step']} on {world:,} ranks" + (f" ({sizes})" if len(grid["sizes"]) > 1 else "")
    where += _period(document.get("period_steps") or 1, document.get("period", ()))
    return Document("captured", str(document["script"]["line"]), views, subtitle=where)


def _period(steps: int, kinds: Sequence[Mapping[str, int]]) -> str:
    """After how many steps the script repeats itself, and how many of them are unlike the one that is shown."""
    others = sum(kind["steps"] for kind in kinds[1:])
    return f" · repeats after {steps:,} steps, {others:,} of them unlike this one" if steps > 1 else ""


def _classes(classes: Sequence[Mapping[str, Any]]) -> Table:
    fields: list[Field[Mapping[str, Any]]] = [
        *(("rank", "number", lambda of: str(of["rank"])), ("stands for", "number", lambda of: f"{of['ranks']:,}")),
        *(("at", "text", lambda of: str(of["at"])), ("ops", "number", lambda of: f"{of['ops']:,}")),
        ("FLOPs", "number", lambda of: format_count(of["flops"])),
        ("peak memory", "number", lambda of: format_bytes(of["peak_bytes"])),
        ("at the peak", "text", lambda of: str(of["peak_op"])),
    ]
    return table_of("", classes, fields, most=MOST_CLASSES)


def _verdict(document: Mapping[str, Any], world: int) -> str:
    verification, played = document["verification"], document["verification"]["played"]
    count = len(document["classes"])
    kinds = f"{count} class{'es' if count > 1 else ''} of ranks"
    if "stages" not in document and "runs" not in document:
        return f"{played} ranks run, those that were asked for; nothing is said about the other {world - count:,}"
    if "runs" in document or played == world:
        return f"{kinds}; all {world:,} ranks were run"
    draws = len(verification["drawn"])
    checked = f"{draws} drawn at random equal theirs" if draws else "none was drawn at random to check that"
    return f"{kinds}, from {played} ranks that were run; {checked}"


def _calls(classes: Sequence[Mapping[str, Any]], which: str, more: str = "") -> Iterator[tuple[str, str, str, str]]:
    """Calls and bytes a step, of the class with most bytes; `to` where classes differ."""
    kinds: dict[str, list[tuple[int, int]]] = {}
    for rank_class in classes:
        for kind, entry in rank_class.get(which, {}).items():
            kinds.setdefault(kind, []).append((entry["calls"], entry["bytes"]))
    for kind, entries in sorted(kinds.items(), key=lambda pair: -max(moved for _, moved in pair[1])):
        calls, moved = zip(*entries, strict=True)
        yield kind, _range(calls, str), _range(moved, format_bytes), more


def _range(values: Sequence[int], form: Callable[[int], str]) -> str:
    low, high = form(min(values)), form(max(values))
    return low if low == high else f"{low} to {high}"


def _answers(answers: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        f"{answer['where']}: {answer['told']} for {answer['what']}, {_times(answer['times'])}" for answer in answers
    ]
    return [*lines[:MOST_ANSWERS], *_more(len(lines) - MOST_ANSWERS, "answers")]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _more(count: int, what: str) -> list[str]:
    return [f"... and {count} more {what}, in captured.yaml"] if count > 0 else []


def _spent(document: Mapping[str, Any]) -> str:
    ranks = document["verification"]["played"]
    return (
        f"{ranks} ranks run in {document['seconds']:.1f} s, the longest {document['seconds_of_one_rank']:.1f} s;"
        f" at most {format_bytes(document['peak_rss_bytes'])} of this machine's memory a rank"
    )


def _next(document: Mapping[str, object], folder: str, cluster: str | None) -> list[str]:
    if "stages" not in document and "runs" not in document:
        return []
    spec = cluster or f"h100-sxm:{document['world_size']}"
    return [f"next: windtunnel predict {folder} --cluster {spec}"]
