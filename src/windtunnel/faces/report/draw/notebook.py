"""A document in a notebook: headline, figures and parts as one HTML table without scripts."""

from __future__ import annotations

from html import escape

from windtunnel.faces.report.draw.console import table_cells
from windtunnel.views import Bars, Document, Figures, Headline, Notes, Table
from windtunnel.views.text import band_text, plain, text_of

PARTS_MOST = 8  # of a bar, longest first


def fragment_of(document: Document) -> str:
    """An HTML fragment; text of the document is escaped."""
    rows: list[tuple[str, ...]] = []
    for view in document.views:
        if isinstance(view, Headline):
            rows.append((view.verdict,))
        elif isinstance(view, Figures):
            for figure in view.figures:
                value, band = (
                    (figure.number, "")
                    if isinstance(figure.number, str)
                    else (text_of(figure.number), band_text(figure.number))
                )
                rows.append(
                    (figure.name, value, ", ".join(filter(None, (f"p5–p95 {band}" if band else "", figure.note))))
                )
        elif isinstance(view, Bars) and len(view.bars) == 1:
            whole = view.whole or view.bars[0].length or 1.0
            longest = sorted(view.bars[0].parts, key=lambda part: (-abs(part.value), part.label))[:PARTS_MOST]
            rows += [
                (part.label, text_of(part.value, view.unit), text_of(part.value / whole, "share"))
                for part in longest
                if part.value
            ]
        elif isinstance(view, Table):
            shown, cells = table_cells(view)
            rows += [
                tuple(column.name for column in shown),
                *map(tuple, cells if view.is_on_side else cells[: view.most]),
            ]
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
