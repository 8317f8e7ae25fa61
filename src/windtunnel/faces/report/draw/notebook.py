"""A document in a notebook: headline, figures and parts as one HTML table without scripts."""

from __future__ import annotations

from html import escape

from windtunnel.faces.report.draw.shared import figure_texts, is_empty, legend_of, table_cells
from windtunnel.views import Bars, Document, Figures, Headline, Notes, Table
from windtunnel.views.text import plain

PARTS_MOST = 8  # of a bar, longest first


def fragment_of(document: Document) -> str:
    """An HTML fragment; text of the document is escaped."""
    rows: list[tuple[str, ...]] = []
    for view in (view for view in document.views if not is_empty(view)):
        if isinstance(view, Headline):
            rows.append((view.verdict,))
        elif isinstance(view, Figures):
            for figure in view.figures:
                value, band = figure_texts(figure)
                notes = (f"p5–p95 {band}" if band else "", figure.note)
                rows.append((figure.name, value, ", ".join(filter(None, notes))))
        elif isinstance(view, Bars) and len(view.bars) == 1:
            longest = sorted(legend_of(view).rows, key=lambda row: (-abs(row[0].value), row[1]))
            rows += [row[1:] for row in longest[:PARTS_MOST]]
        elif isinstance(view, Table):
            shown, cells = table_cells(view)
            rows.append(tuple(column.name for column in shown))
            rows += map(tuple, cells if view.is_on_side else cells[: view.most])
        elif isinstance(view, Notes):
            rows += [("warning" if view.tone in ("warn", "bad") else "", line) for line in view.lines]
    widest = max(map(len, rows), default=1)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(plain(cell))}</td>" for cell in row[:-1])
        + f'<td colspan="{widest - len(row) + 1}">{escape(plain(row[-1]))}</td></tr>'
        for row in rows
    )
    return f"<table><caption>{escape(plain(document.title))}</caption><tbody>{body}</tbody></table>"
