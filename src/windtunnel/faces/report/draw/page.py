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
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.faces.report.draw.charts import Data, bars_of, chart_of, heat_data, lanes_data
from windtunnel.faces.report.draw.console import command_lines
from windtunnel.faces.report.draw.markdown import markdown_of
from windtunnel.faces.report.draw.shared import is_empty, legend_of, table_cells
from windtunnel.files.write import write_atomically
from windtunnel.views import Bars, Curve, Document, Heat, Lanes, Table, View
from windtunnel.views.text import band_text, duration, plain, text_of

if TYPE_CHECKING:
    from jinja2 import Template

SCRIPT = "views.js"


@dataclass(frozen=True, slots=True)
class Section:
    """A view, and what is reckoned of it: for the template, and for the script."""

    id: str
    kind: str
    view: View
    half: bool  # two such beside each other
    drawn: object
    data: Data | None


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
        name = name if used[name] == 1 else f"{name}-{used[name]}"
        sections.append(Section(name, kind, view, half, *_drawn(view)))
    return sections


def _halves(views: Sequence[View]) -> list[bool]:
    """Pictures in a row stand in pairs."""
    halves: list[bool] = []
    for single, row in groupby(isinstance(view, Curve) and len({s.panel for s in view.series}) == 1 for view in views):
        count = len(list(row))
        halves += [single and at < count // 2 * 2 for at in range(count)]
    return halves


def _drawn(view: View) -> tuple[object, Data | None]:
    match view:
        case Curve():
            chart = chart_of(view)
            return chart, {"plots": [plot.data for plot in chart.plots]}
        case Lanes() | Heat():
            data = lanes_data(view) if isinstance(view, Lanes) else heat_data(view)
            return data, data
        case Table():
            return table_cells(view), None
        case Bars():
            return legend_of(view) if len(view.bars) == 1 else bars_of(view), None
    return None, None
