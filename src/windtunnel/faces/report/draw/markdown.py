"""A document as Markdown: for issues, pull requests, and a reader without a browser."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from windtunnel.faces.report.draw.shared import figure_texts, is_empty, legend_of, table_cells
from windtunnel.views import (
    Bars,
    Changes,
    Curve,
    Document,
    Figures,
    Files,
    Headline,
    Heat,
    Lanes,
    Notes,
    Table,
    View,
)
from windtunnel.views.text import plain, text_of, texts_of


def markdown_of(document: Document) -> str:
    """The whole text. The same document gives the same text."""
    parts = [f"# {_escaped(document.title)}", _escaped(document.subtitle)]
    for view in (*document.views, *document.details):
        parts += [] if is_empty(view) else _lines_of(view)
    parts += [_fenced(plain(document.command))] if document.command else []
    return "\n\n".join(part for part in parts if part) + "\n"


def _lines_of(view: View) -> list[str]:
    rows: list[tuple[str, ...]]
    match view:
        case Headline():
            return [f"**{_escaped(view.verdict)}**"]
        case Figures():
            rows = [(figure.name, *figure_texts(figure), figure.note) for figure in view.figures]
            return [*_titled(view.title), _table(("figure", "value", "p5–p95", ""), rows)]
        case Bars():
            return [*_titled(view.title, view.note), _bars(view)]
        case Table():
            shown, cells = table_cells(view)
            numbers = {at for at, column in enumerate(shown) if column.unit != "text"}
            return [*_titled(view.title, view.note), _table([column.name for column in shown], cells, numbers)]
        case Curve():
            lines = [
                f"- {_escaped(f'{series.panel} {series.name}'.strip())}: {text_of(min(series.y), view.y.unit)} to"
                f" {text_of(max(series.y), view.y.unit)} for {text_of(min(series.x), view.x.unit)} to"
                f" {text_of(max(series.x), view.x.unit)}"
                for series in view.series
                if series.x
            ]
            return [*_titled(f"{view.title}: {view.y.name} over {view.x.name}", view.note), "\n".join(lines)]
        case Changes():
            rows = [
                (change.words, text_of(change.gain), *map(text_of, change.figures), change.group)
                for change in view.changes
            ]
            return [*_titled(view.title, view.note), *([_table(("change", *view.names, ""), rows)] if rows else [])]
        case Notes():
            return [*_titled(view.title), "\n".join(f"- {_escaped(line)}" for line in view.lines)]
        case Files():
            files = (f"{_escaped(name)}\n\n{_fenced(text.rstrip())}" for name, text in view.files)
            return [*_titled(view.title), *files]
        case Heat() if view.texts:
            lines = [f"- {_escaped(f'{view.place(at)}: {text}')}" for at, text in view.texts]
            return [*_titled(view.title), "\n".join(lines)]
        case Lanes() | Heat():
            return []


def _bars(view: Bars) -> str:
    if len(view.bars) != 1:
        lengths = texts_of([bar.length for bar in view.bars], view.unit)
        return _table(
            ("", "amount", ""), [(bar.label, text, bar.note) for bar, text in zip(view.bars, lengths, strict=True)]
        )
    legend = legend_of(view)
    share = "share" if legend.total[2] else ""
    return _table(("part", "amount", share), [*(row[1:] for row in legend.rows), legend.total])


def _titled(title: str, note: str = "") -> list[str]:
    return [*([f"## {_escaped(title)}"] if title else []), *([_escaped(note)] if note else [])]


def _fenced(text: str) -> str:
    """A block of code that no line of the text can end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}\n{text}\n{fence}"


def _escaped(text: object) -> str:
    """Text that is text in Markdown too: names come from files of users."""
    escaped = plain(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{word}" if word in "\\`*_[]|" else word for word in escaped)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], numbers: Collection[int] = ()) -> str:
    """Columns of `numbers`, by position, are set from the right."""
    lines = [head, ["---:" if at in numbers else "---" for at in range(len(head))], *rows]
    return "\n".join(
        "| " + " | ".join(str(cell) if at == 1 else _escaped(cell) for cell in row) + " |"
        for at, row in enumerate(lines)
    )
