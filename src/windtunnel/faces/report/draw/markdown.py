"""A document as Markdown: for issues, pull requests, and a reader without a browser."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from windtunnel.faces.report.draw.console import amounts, table_cells
from windtunnel.views import (
    Bars,
    Changes,
    Curve,
    Document,
    Figures,
    Files,
    Flow,
    Headline,
    Heat,
    Lanes,
    Notes,
    Number,
    Table,
    View,
    Why,
)
from windtunnel.views.text import band_text, plain, shares, text_of, texts_of


def markdown_of(document: Document) -> str:
    """The whole text. The same document gives the same text."""
    parts = [f"# {_escaped(document.title)}", _escaped(document.subtitle)]
    for view in (*document.views, *document.details):
        parts += _lines_of(view)
    parts += [_fenced(plain(document.command))] if document.command else []
    return "\n\n".join(part for part in parts if part) + "\n"


def _lines_of(view: View) -> list[str]:
    rows: list[tuple[str, ...]]
    match view:
        case Headline():
            return [f"**{_escaped(view.verdict)}**"]
        case Figures():
            rows = [
                (
                    figure.name,
                    *((figure.number, "") if isinstance(figure.number, str) else _banded(figure.number)),
                    figure.note,
                )
                for figure in view.figures
            ]
            return [*_titled(view.title), _table(("figure", "value", "p5–p95", ""), rows)] if rows else []
        case Bars():
            return _bars(view)
        case Table():
            shown, cells = table_cells(view)
            numbers = {at for at, column in enumerate(shown) if column.unit != "text"}
            table = _table([column.name for column in shown], cells, numbers)
            return [*_titled(view.title, view.note), table] if cells else []
        case Curve():
            lines = [
                f"- {_escaped(f'{series.panel} {series.name}'.strip())}: {text_of(min(series.y), view.y.unit)} to"
                f" {text_of(max(series.y), view.y.unit)} for {text_of(min(series.x), view.x.unit)} to"
                f" {text_of(max(series.x), view.x.unit)}"
                for series in view.series
                if series.x
            ]
            title = f"{view.title}: {view.y.name} over {view.x.name}"
            return [*_titled(title, view.note), "\n".join(lines)] if lines else []
        case Changes():
            rows = [
                (change.words, text_of(change.gain), *map(text_of, change.figures), change.group)
                for change in view.changes
            ]
            return [*_titled(view.title, view.note), *([_table(("change", *view.names, ""), rows)] if rows else [])]
        case Notes():
            lines = [f"- {_escaped(line)}" for line in view.lines]
            return [*_titled(view.title), "\n".join(lines)] if lines else []
        case Files():
            return [
                *_titled(view.title),
                *(f"{_escaped(name)}\n\n{_fenced(text.rstrip())}" for name, text in view.files),
            ]
        case Why():
            rows = [(term.name, text_of(term.number), term.source) for term in view.terms]
            return [*_titled(view.figure, view.formula), _table(("term", "value", "source"), rows)]
        case Flow():
            rows = [(view.boxes[a].name, view.boxes[b].name, text_of(number)) for a, b, number in view.arrows]
            return [*_titled(view.title), _table(("from", "to", "amount"), rows)] if rows else []
        case Lanes():
            return []
        case Heat():
            return (
                [
                    *_titled(view.title),
                    "\n".join(f"- {_escaped(f'{view.place(at)}: {text}')}" for at, text in view.texts),
                ]
                if view.texts
                else []
            )


def _bars(view: Bars) -> list[str]:
    if len(view.bars) != 1:
        lengths = texts_of([bar.length for bar in view.bars], view.unit)
        rows = [(bar.label, text, bar.note) for bar, text in zip(view.bars, lengths, strict=True)]
        return [*_titled(view.title, view.note), _table(("", "amount", ""), rows)] if rows else []
    parts = [part for part in view.bars[0].parts if part.value]
    if not parts:
        return []
    values = [part.value for part in parts]
    texts = amounts(values, view.unit, view.signed)
    if view.signed or view.unit == "share":
        rows = [(part.label, text, "") for part, text in zip(parts, texts, strict=False)]
        return [*_titled(view.title, view.note), _table(("part", "amount", ""), [*rows, (view.total, texts[-1], "")])]
    whole = view.whole or sum(values)
    share_texts = [text_of(value / whole, "share") for value in values] if view.whole else shares(values)
    rows = [(part.label, text, share) for part, text, share in zip(parts, texts, share_texts, strict=False)]
    total = (view.total, texts[-1], text_of(sum(values) / whole, "share"))
    return [*_titled(view.title, view.note), _table(("part", "amount", "share"), [*rows, total])]


def _banded(number: Number) -> tuple[str, str]:
    return text_of(number), band_text(number)


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
