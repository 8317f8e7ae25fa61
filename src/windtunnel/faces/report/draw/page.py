"""A document as one HTML file that needs nothing else: no network, no server, no library.

Python reckons the pictures; `templates/views_page.html.j2` writes and arranges; `templates/views.js` draws timelines
and heat maps and answers the pointer. Autoescape is on, data for the script travel as JSON with `<` escaped, and
a content security policy forbids every request. Why no chart library: docs/decisions/0003-charts.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.faces.report.draw.charts import Chart, Data, Tick, bar_ticks, chart_of, heat_data, lanes_data
from windtunnel.faces.report.draw.console import command_lines
from windtunnel.faces.report.draw.markdown import markdown_of
from windtunnel.faces.report.draw.shared import Legend, is_empty, legend_of, table_cells
from windtunnel.files.write import write_atomically
from windtunnel.views import Bars, Column, Curve, Document, Heat, Lanes, Table, View
from windtunnel.views.text import band_text, duration, plain, text_of, texts_of

if TYPE_CHECKING:
    from jinja2 import Template

SCRIPT = "views.js"


@dataclass(frozen=True, slots=True)
class Section:
    """A view with what the template needs of it."""

    id: str
    kind: str
    view: View
    half: bool = False  # two such beside each other
    chart: Chart | None = None
    legend: Legend | None = None
    scale: float = 1.0
    ticks: tuple[Tick, ...] = ()
    keys: tuple[tuple[str, str], ...] = ()
    texts: tuple[str, ...] = ()
    cells: tuple[tuple[str, ...], ...] = ()
    columns: tuple[Column, ...] = ()  # of the cells, as they are shown
    data: Data | None = None


@lru_cache
def page_template(name: str, package: str = "windtunnel.faces.report") -> Template:
    """The template `name` of a package's `templates/`, which may include those of the reports.

    A variable that a page lacks is an error, and text is escaped.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    folders = [files(fromkey) / "templates" for fromkey in dict.fromkeys((package, "windtunnel.faces.report"))]

    def source(part: str) -> str | None:
        path = next((folder / part for folder in folders if (folder / part).is_file()), None)
        return path.read_text(encoding="utf-8") if path else None

    environment = Environment(
        loader=FunctionLoader(source), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # `fmt` formats as an f-string does.
    environment.filters |= {"plain": plain, "duration": duration, "fmt": format}
    environment.filters |= {"text": text_of, "band": band_text, "unbroken": _unbroken}
    return environment.get_template(name)


def _unbroken(band: str) -> str:
    """A band whose numbers stay with their units where a line ends."""
    return band.replace(" ", "\N{NO-BREAK SPACE}").replace("\N{NO-BREAK SPACE}–\N{NO-BREAK SPACE}", " – ")


def write_page(document: Document, path: Path | str) -> None:
    """Write the page, or Markdown by the suffix .md. Raises InputFileError when it cannot be written."""
    path = Path(path)
    text = markdown_of(document) if path.suffix.lower() == ".md" else page_of(document)
    write_atomically(path, text.encode("utf-8", "replace"))


def page_of(document: Document) -> str:
    """The whole page. The same document gives the same text."""
    # Lone surrogates (from a JSON escape in a name) cannot be written as UTF-8.
    return page_template("views_page.html.j2").render(**_parts(document)).encode("utf-8", "replace").decode()


def body_of(document: Document, *, heading: bool = True) -> str:
    """The document as a part of a page that has the style sheet and the script."""
    parts = _parts(document) | {"heading": heading}
    return page_template("views.html.j2").render(**parts).encode("utf-8", "replace").decode()


def _parts(document: Document) -> dict[str, object]:
    sections = sections_of((*document.views, *document.details))
    return {
        "document": document,
        "heading": True,
        "sections": sections,
        "command": command_lines(plain(document.command), 96),
        "data": {section.id: section.data for section in sections if section.data is not None},
    }


def sections_of(views: Sequence[View]) -> list[Section]:
    """Views that have anything to show, each with an id of its own."""
    views = [view for view in views if not is_empty(view)]
    used: dict[str, int] = {}
    sections = []
    for view, half in zip(views, _halves(views), strict=True):
        kind = type(view).__name__.lower()
        name = re.sub(r"[^a-z0-9]+", "-", getattr(view, "title", "").lower()).strip("-")[:40] or kind
        used[name] = used.get(name, 0) + 1
        sections.append(_section(view, kind, name if used[name] == 1 else f"{name}-{used[name]}", half))
    return sections


def _halves(views: Sequence[View]) -> list[bool]:
    """Pictures in a row stand in pairs."""
    alone = [isinstance(view, Curve) and len({series.panel for series in view.series}) == 1 for view in views]
    halves = [False] * len(views)
    at = 0
    while at + 1 < len(views):
        if alone[at] and alone[at + 1]:
            halves[at] = halves[at + 1] = True
            at += 1
        at += 1
    return halves


def _section(view: View, kind: str, name: str, half: bool) -> Section:
    if isinstance(view, Curve):
        chart = chart_of(view)
        return Section(name, kind, view, half, chart=chart, data={"plots": [plot.data for plot in chart.plots]})
    if isinstance(view, Lanes):
        return Section(name, kind, view, data=lanes_data(view))
    if isinstance(view, Heat):
        return Section(name, kind, view, data=heat_data(view))
    if isinstance(view, Table):
        shown, cells = table_cells(view)
        return Section(name, kind, view, cells=tuple(map(tuple, cells)), columns=tuple(shown))
    if isinstance(view, Bars):
        return _bars_section(view, kind, name)
    return Section(name, kind, view)


def _bars_section(view: Bars, kind: str, name: str) -> Section:
    if len(view.bars) == 1:  # of a difference, on both sides of nothing
        legend = legend_of(view)
        sizes = [abs(part.value) for part, *_ in legend.rows]
        return Section(name, kind, view, legend=legend, scale=max(sizes) if view.signed else sum(sizes))
    lengths = [bar.length for bar in view.bars]
    most = max([*lengths, *(bar.limit or 0.0 for bar in view.bars)]) or 1.0
    several = any(len(bar.parts) > 1 for bar in view.bars)
    keys = {(part.colour, plain(part.label)): None for bar in view.bars for part in bar.parts} if several else {}
    scale = most * 1.02
    ticks = bar_ticks(view, scale) if several else ()
    return Section(
        name, kind, view, scale=scale, ticks=ticks, keys=tuple(keys), texts=tuple(texts_of(lengths, view.unit))
    )
