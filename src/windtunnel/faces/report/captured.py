"""A captured job on one screen: which ranks were run, who equals whom, what a step executes, and what was made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from windtunnel.faces.report.draw.printing import print_trimmed
from windtunnel.units import format_bytes, format_count
from windtunnel.views.text import plain

MOST_CLASSES, MOST_ANSWERS, MOST_NOTES = 20, 8, 8


def print_captured(document: Mapping[str, object], folder: str, cluster: str | None, console: Console) -> None:
    """Print the document of a captured folder."""
    print_trimmed(render_captured(document, folder, cluster), console)


def render_captured(document: Mapping[str, Any], folder: str, cluster: str | None = None) -> RenderableType:
    """The screen as a rich renderable. `cluster`: what the next command names."""
    world = int(document["world_size"])
    parts: list[RenderableType] = [_title(document, world), Text(""), _classes(document, world)]
    parts += [Text(""), *_collectives(document["classes"], "collectives")]
    parts += _collectives(document["classes"], "control", ", objects and small tensors of the host")
    parts += _section("answered where Python read a tensor", _answers(document["answers"]))
    parts += _section("faked", [plain(str(text)) for text in document["faked"]])
    notes = [plain(str(text)) for text in document["notes"]]
    parts += _section("notes", [*notes[:MOST_NOTES], *_more(len(notes) - MOST_NOTES, "notes")])
    parts += [Text(""), Text(_spent(document)), *_next(document, folder, cluster)]
    return Group(*parts)


def _title(document: Mapping[str, Any], world: int) -> Text:
    facts = document["facts"]
    grid = document["grid"]
    dimensions = " x ".join(f"{name} {size}" for name, size in zip(grid["names"], grid["sizes"], strict=True))
    text = Text(plain(str(document["script"]["line"])), style="bold")
    text.append(f"  step {facts['step']} on {world:,} ranks", style="default")
    if len(grid["sizes"]) > 1:
        text.append(f" ({plain(dimensions)})", style="default")
    return text


def _classes(document: Mapping[str, Any], world: int) -> RenderableType:
    classes = document["classes"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bright_black")
    for name in ("rank", "stands for"):
        table.add_column(name, justify="right")
    table.add_column("at")
    for name in ("ops", "FLOPs", "peak memory"):
        table.add_column(name, justify="right")
    table.add_column("at the peak", overflow="ellipsis", no_wrap=True)
    for one in classes[:MOST_CLASSES]:
        table.add_row(
            str(one["rank"]),
            f"{one['ranks']:,}",
            plain(str(one["at"])),
            f"{one['ops']:,}",
            format_count(one["flops"]),
            format_bytes(one["peak_bytes"]),
            plain(str(one["peak_op"])),
        )
    verdict = _verdict(document, world)
    more = [Text(text) for text in _more(len(classes) - MOST_CLASSES, "classes")]
    compared = [Text(f"compared, and fit: {document['compared']}")] if document.get("compared") else []
    return Group(table, *more, Text(verdict), *compared)


def _verdict(document: Mapping[str, Any], world: int) -> str:
    found, played = document["verification"], document["verification"]["played"]
    count = len(document["classes"])
    kinds = f"{count} class{'es' if count > 1 else ''} of ranks"
    if "stages" not in document and "runs" not in document:
        return f"{played} ranks run, those that were asked for; nothing is said about the other {world - count:,}"
    if "runs" in document or played == world:
        return f"{kinds}; all {world:,} ranks were run"
    drawn = len(found["drawn"])
    checked = f"{drawn} drawn at random equal theirs" if drawn else "none was drawn at random to check that"
    return f"{kinds}, from {played} ranks that were run; {checked}"


def _collectives(classes: Sequence[Mapping[str, Any]], which: str, more: str = "") -> list[RenderableType]:
    """Calls and bytes a step, of the class with most bytes; `to` where classes differ."""
    kinds: dict[str, list[tuple[int, int]]] = {}
    for one in classes:
        for kind, entry in one.get(which, {}).items():
            kinds.setdefault(kind, []).append((entry["calls"], entry["bytes"]))
    lines: list[RenderableType] = []
    for kind, entries in sorted(kinds.items(), key=lambda pair: -max(moved for _, moved in pair[1])):
        calls, moved = [calls for calls, _ in entries], [moved for _, moved in entries]
        lines.append(Text(f"{kind:<15} {_range(calls, str):>12} calls   {_range(moved, format_bytes)} a rank{more}"))
    return lines


def _range(values: Sequence[int], form: Any) -> str:
    low, high = form(min(values)), form(max(values))
    return str(low) if low == high else f"{low} to {high}"


def _answers(answers: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"{one['where']}: {one['told']} for {one['what']}, {_times(one['times'])}" for one in answers]
    return [*map(plain, lines[:MOST_ANSWERS]), *_more(len(lines) - MOST_ANSWERS, "answers")]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _section(title: str, lines: Sequence[str]) -> list[RenderableType]:
    if not lines:
        return []
    return [Text(""), Text(title, style="bright_black"), *(Padding(Text(line), (0, 0, 0, 2)) for line in lines)]


def _more(count: int, what: str) -> list[str]:
    return [f"... and {count} more {what}, in captured.yaml"] if count > 0 else []


def _spent(document: Mapping[str, Any]) -> str:
    ranks = document["verification"]["played"]
    return (
        f"{ranks} ranks run in {document['seconds']:.1f} s, the longest {document['seconds_of_one_rank']:.1f} s;"
        f" at most {format_bytes(document['peak_rss_bytes'])} of this machine's memory a rank"
    )


def _next(document: Mapping[str, object], folder: str, cluster: str | None) -> list[RenderableType]:
    if "stages" not in document and "runs" not in document:
        return []
    spec = cluster or f"h100-sxm:{document['world_size']}"
    return [Text(f"next: windtunnel predict {folder} --cluster {spec}")]
