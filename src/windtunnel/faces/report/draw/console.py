"""Views on a terminal: one accent, bars of one cell height, nothing that needs colour to be understood.

Every text goes through `plain` and `Text`, so neither terminal escapes nor markup in a name take effect.
"""

from __future__ import annotations

import shlex
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.text import Text

from windtunnel.faces.report.draw.printing import DIM, LABEL, NUMBER, REST, WORD, bar, columns, grid, print_trimmed
from windtunnel.faces.report.draw.shared import figure_texts, is_empty, legend_of, table_cells
from windtunnel.views import (
    Bar,
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
    Part,
    Series,
    Table,
    Tone,
    View,
)
from windtunnel.views.text import plain, printable, text_of, texts_of

NARROW, WIDE = 48, 100
LABEL_CELLS, LEAST_WORDS = 34, 12
SHADES = "█▓▒░"
LANES_MOST, HEAT_MOST = 24, 40
FAMILY_STYLES = {
    **{"compute": "blue", "memory": "cyan", "optimizer": "green", "comm": "yellow", "bubble": "bright_black"},
    **{"waiting": "bright_black", "host": "magenta", "mem": "blue", "src": "blue", "line": "blue"},
}
TONES: dict[Tone, str] = {"good": "bold", "calm": "bold", "warn": "bold yellow", "bad": "bold red"}


def print_document(document: Document, console: Console, *, full: bool = False) -> None:
    """Print on `console`, in its width and in characters that it can show; `full`: with the details."""
    width = min(max(console.width, NARROW), WIDE)
    views = (*document.views, *(document.details if full else ()))
    parts: list[RenderableType] = [Text(), Text(plain(document.title), style="bold")]
    parts += [Text(plain(document.subtitle), style="dim")] if document.subtitle else []
    for view in views:
        parts += draw_view(view, max(width, min(console.width, _most(view))))
    parts += _command(document, width) if full or not document.details else []
    if document.details and not full:
        parts += [Text(), Text("--full shows the rest, --report FILE.html draws it.", style="dim")]
    widest = max(map(_most, views), default=WIDE)
    print_trimmed(Constrain(Group(*parts), max(width, min(console.width, widest))), console)


def print_views(views: Iterable[View], console: Console) -> None:
    """Print views that come after their document."""
    width = min(max(console.width, NARROW), WIDE)
    parts = [part for view in views for part in draw_view(view, width)]
    if parts:
        print_trimmed(Constrain(Group(*parts), width), console)


def draw_view(view: View, width: int) -> list[RenderableType]:
    """A view in `width` columns, below an empty line; nothing where there is nothing to show."""
    lines = [] if is_empty(view) else DRAW[type(view)](view, width)
    return [Text(), *lines] if lines else []


def command_lines(command: str, columns: int) -> str:
    """A shell command folded at flags with backslashes, so that it can be read and pasted at any width."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    groups: list[str] = []
    for word in words:
        quoted = shlex.quote(word)
        if groups and not (word.startswith("-") and len(word) > 1):
            groups[-1] += f" {quoted}"
        else:
            groups.append(quoted)
    lines: list[str] = []
    for group in groups:
        if lines and len(lines[-1]) + len(group) + 3 <= columns:
            lines[-1] += f" {group}"
        else:
            lines.append(f"    {group}" if lines else group)
    return " \\\n".join(lines)


def _most(view: View) -> int:
    """Tables of many columns may take the whole terminal; everything else reads best in WIDE."""
    return 10_000 if isinstance(view, Table) and len(view.columns) > 5 else WIDE


def _command(document: Document, width: int) -> list[RenderableType]:
    if not document.command.strip():
        return []
    lines = command_lines(plain(document.command), width - 2)
    return [Text(), Text("Ask again", style="bold"), Padding(Text(lines, overflow="fold"), (0, 0, 0, 2))]


def _title(title: str, note: str = "") -> list[RenderableType]:
    lines: list[RenderableType] = [Text(plain(title), style="bold")] if title else []
    return [*lines, Text(plain(note), style="dim")] if note else lines


def _headline(view: Headline, width: int) -> list[RenderableType]:
    return [Text(plain(view.verdict), style=TONES[view.tone])]


def _figures(view: Figures, width: int) -> list[RenderableType]:
    table = grid(WORD | DIM, WORD | {"style": "bold"}, REST)
    for figure in view.figures:
        amount, band = figure_texts(figure)
        notes = [f"p5–p95 {band}" if band else "", plain(figure.note)]
        table.add_row(plain(figure.name), Text(amount), Text(", ".join(filter(None, notes))))
    return [*_title(view.title), table]


def _style(colour: str) -> str:
    return FAMILY_STYLES.get(colour.rpartition("-")[0], "")


def _bars(view: Bars, width: int) -> list[RenderableType]:
    if len(view.bars) != 1:
        return _many_bars(view, width)
    legend = legend_of(view)
    table = grid(LABEL | {"max_width": LABEL_CELLS}, NUMBER, NUMBER | DIM, WORD | {"overflow": "crop"})
    labels, texts, share_texts = zip(*(row[1:] for row in legend.rows), legend.total, strict=True)
    fixed = min(LABEL_CELLS, max(map(cell_len, labels)))
    cells = max(4, min(width - fixed - max(map(len, texts)) - max(map(len, share_texts)) - 6, 40))
    if view.signed:
        cells = max(3, cells // 2)
    longest = max(abs(part.value) for part, *_ in legend.rows)
    for part, label, amount, share in legend.rows:
        if not any(digit in amount for digit in "123456789"):
            continue  # shows as nothing: a page has it
        drawn_bar = bar(abs(part.value) / longest, cells)
        if view.signed:  # what is less ends where what is more begins
            blocks = "\u2588" * max(1, round(abs(part.value) / longest * cells))
            drawn_bar = f"{blocks:>{cells}}\u2502" if part.value < 0 else f"{'':>{cells}}\u2502{blocks}"
        table.add_row(Text(label), amount, share, Text(drawn_bar, style=_style(part.colour)))
    table.add_row(Text(legend.total[0], style="bold"), Text(legend.total[1], style="bold"), legend.total[2], "")
    return [*_title(view.title, view.note), table]


def _many_bars(view: Bars, width: int) -> list[RenderableType]:
    """A row each, all on one scale; segments of a bar differ in shade."""
    lengths = [row.length for row in view.bars]
    scale = max([abs(value) for value in lengths] + [row.limit or 0.0 for row in view.bars]) or 1.0
    texts = texts_of(lengths, view.unit)
    table = grid(LABEL | {"max_width": LABEL_CELLS}, NUMBER, WORD | {"overflow": "crop"}, REST | DIM)
    noted = max((cell_len(plain(row.note)) for row in view.bars), default=0)
    labels = min(LABEL_CELLS, max(cell_len(plain(row.label)) for row in view.bars))
    cells = max(4, min(width - labels - max(map(len, texts)) - min(noted, width // 2) - 8, 40))
    widths = [_widths(row, scale, cells) for row in view.bars]
    shown = list(dict.fromkeys(part.label for row in widths for part, width in row if width))
    named = max(map(len, widths)) > 1 and len(shown) <= len(SHADES)  # else a shade would stand for several
    for row, amount, inside in zip(view.bars, texts, widths, strict=True):
        drawn = _segments(inside, shown if named else ()) if len(inside) > 1 else _whole(row.parts[0], scale, cells)
        table.add_row(Text(plain(row.label)), amount, drawn, Text(plain(row.note)))
    words = "  ".join(f"{shade} {plain(label)}" for shade, label in zip(SHADES, shown, strict=False))
    return [*_title(view.title, view.note), table, *([Text(words, style="dim")] if named else [])]


def _widths(row: Bar, scale: float, cells: int) -> list[tuple[Part, int]]:
    """Its parts with the cells that each takes."""
    edges = [round(edge / scale * cells) for edge in accumulate(max(part.value, 0.0) for part in row.parts)]
    return [(part, end - begin) for part, begin, end in zip(row.parts, [0, *edges], edges, strict=False)]


def _whole(part: Part, scale: float, cells: int) -> Text:
    return Text(bar(abs(part.value) / scale, cells), style=_style(part.colour))


def _segments(row: Sequence[tuple[Part, int]], shown: Sequence[str]) -> Text:
    """Parts of one label have one shade in all bars; those that are not `shown` by name have the first."""
    line = Text()
    for part, width in row:
        if width:
            shade = SHADES[shown.index(part.label) if part.label in shown else 0]
            line.append(shade * width, style=_style(part.colour))
    return line


def _table(view: Table, width: int) -> list[RenderableType]:
    shown, cells = table_cells(view)
    left = {column.name for column in shown if column.unit == "text"}
    names, rows = [plain(column.name) for column in shown], cells if view.is_on_side else cells[: view.most]
    if view.is_on_side or _needed(view, names, rows) <= width:
        table = columns(names, left | {""}, dim=True, overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        lines: list[RenderableType] = [table]
    else:
        lines = [line for row in rows for line in _listed(view, names, row)]
    more = 0 if view.is_on_side else len(view.rows) - view.most
    rest = [Text(f"and {more:,} more", style="dim")] if more > 0 else []
    return [*_title(view.title, view.note), *lines, *rest]


def _needed(view: Table, names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Cells without which numbers would be cut; words can be folded."""
    widths = [max(map(cell_len, column)) for column in zip(names, *rows, strict=True)]
    words = [
        min(width, LEAST_WORDS) if column.unit == "text" else width
        for width, column in zip(widths, view.columns, strict=True)
    ]
    return sum(words) + 2 * (len(words) - 1)


def _listed(view: Table, names: Sequence[str], row: Sequence[str]) -> list[RenderableType]:
    """A row that is too wide for a line: the words that it begins with, and below them what its columns say."""
    first = next((at for at, column in enumerate(view.columns) if column.unit != "text"), 1)
    rest = ", ".join(f"{name} {cell}" for name, cell in zip(names[first:], row[first:], strict=True) if cell)
    return [Text(", ".join(row[:first])), Padding(Text(rest), (0, 0, 0, 2))]


def _curve(view: Curve, width: int) -> list[RenderableType]:
    """Each line as a row of eighths, over equal steps of x; points are left to the page."""
    series = [line for line in view.series if line.x]
    low, high = min(min(line.x) for line in series), max(max(line.x) for line in series)
    top = max(max(line.y) for line in series) or 1.0
    names = [plain(f"{line.panel} {line.name}".strip()) for line in series]
    label = min(LABEL_CELLS, max(map(cell_len, names)))
    cells = max(10, width - label - 22)
    table = grid(LABEL | {"max_width": LABEL_CELLS}, WORD | {"overflow": "crop"}, NUMBER)
    for name, line in zip(names, series, strict=True):
        table.add_row(
            Text(name), Text(_eighths(line, low, high, top, cells), style="blue"), text_of(max(line.y), view.y.unit)
        )
    begin, end = text_of(low, view.x.unit), text_of(high, view.x.unit)
    table.add_row("", Text(f"{begin}{end:>{max(1, cells - len(begin))}}", style="dim"), "")
    limits = [Text(f"{plain(limit.label)}: {text_of(limit.value, view.y.unit)}", style="dim") for limit in view.limits]
    return [*_title(f"{view.title}: {view.y.name} over {view.x.name}", view.note), table, *limits]


def _eighths(series: Series, low: float, high: float, top: float, cells: int) -> str:
    points = sorted(zip(series.x, series.y, strict=True))
    if series.form == "points" or len(points) < 2:
        return ""
    xs = [x for x, _ in points]
    text = ""
    for cell in range(cells):
        at = bisect_right(xs, low + (high - low) * cell / (cells - 1)) - 1
        text += " " if at < 0 else "▁▂▃▄▅▆▇█"[min(7, int(8 * max(points[at][1], 0.0) / top))]
    return text


def _lanes(view: Lanes, width: int) -> list[RenderableType]:
    end = max((span.end_s for lane in view.lanes for span in lane.spans), default=0.0)
    if not end or len(view.lanes) > LANES_MOST:
        return []
    table = grid(LABEL | {"max_width": 20}, WORD | {"overflow": "crop"})
    cells = width - 24
    for lane in view.lanes:
        line, now = Text(), 0
        for span in sorted(lane.spans, key=lambda each: each.begin_s):
            own = round(span.begin_s / end * cells)
            begin = max(own, now)
            # A short one is a cell, but not behind others that fill its own: the line would grow past its end.
            until = max(round(span.end_s / end * cells), begin + 1 if own >= now and span.end_s > span.begin_s else 0)
            if until <= begin:
                continue
            line.append(" " * (begin - now))
            line.append("█" * (until - begin), style=_style(span.colour))
            now = until
        table.add_row(Text(plain(lane.name if lane.name.startswith(lane.group) else f"{lane.group} {lane.name}")), line)
    return [*_title(f"{view.title}, to {text_of(end, 's')}", view.note), table]


def _heat(view: Heat, width: int) -> list[RenderableType]:
    values = [value for value in view.values if value is not None]
    low = min(values) if view.low is None else view.low
    high = max(values) if view.high is None else view.high
    words = Text(
        f"{plain(view.measure)} {text_of(low, view.unit)} to {text_of(high, view.unit)} over"
        f" {view.columns.count:,} x {view.rows.count:,} cells",
        style="dim",
    )
    texts = [Text(plain(f"{view.place(at)}: {text}")) for at, text in view.texts[:LANES_MOST]]
    if view.rows.count > HEAT_MOST or view.columns.count > min(HEAT_MOST, (width - 20) // 2):
        return [*_title(view.title), words, *texts]
    table = grid(LABEL | {"max_width": 18}, WORD)
    for row in range(view.rows.count):
        shades = ""
        for column in range(view.columns.count):
            value = view.values[column * view.rows.count + row]
            share = 0.0 if value is None else (value - low) / ((high - low) or 1.0)
            shades += "  " if value is None else "·░▒▓█"[max(0, min(4, int(5 * share)))] * 2
        table.add_row(Text(plain(view.rows.label(row))), shades)
    return [*_title(view.title), table, words, *texts]


def _changes(view: Changes, width: int) -> list[RenderableType]:
    if not view.changes:
        return _title(view.title, view.note)
    table = grid(NUMBER, *[NUMBER | DIM for _ in view.changes[0].figures], REST)
    group = ""
    for change in view.changes:
        if change.group != group:
            group = change.group
            table.add_row(*[""] * (1 + len(change.figures)), Text(plain(group), style="dim italic"))
        table.add_row(
            Text(text_of(change.gain), style="bold"),
            *(text_of(figure) for figure in change.figures),
            Text(plain(change.words)),
        )
    return [*_title(view.title, view.note), table]


def _notes(view: Notes, width: int) -> list[RenderableType]:
    table = grid({}, {})
    for line in view.lines:
        table.add_row(Text("•", style="yellow" if view.tone in ("warn", "bad") else "dim"), Text(plain(line)))
    table.padding = (0, 1)
    return [*_title(view.title), table]


def _files(view: Files, width: int) -> list[RenderableType]:
    parts: list[RenderableType] = _title(view.title)
    for name, text in view.files:
        lines = "\n".join(printable(line) for line in text.rstrip().splitlines())
        parts += [Text(f"{plain(name)}:"), Text(lines, overflow="ignore", no_wrap=True)]  # a folded patch is none
    return parts


DRAW: dict[type, Callable[..., list[RenderableType]]] = {
    Headline: _headline,
    Figures: _figures,
    Bars: _bars,
    Table: _table,
    Curve: _curve,
    Lanes: _lanes,
    Heat: _heat,
    Changes: _changes,
    Notes: _notes,
    Files: _files,
}
