"""Which function makes the views of which answer, and what a notebook does with them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from os import PathLike
from pathlib import Path

from windtunnel.errors import SpecError, UserError
from windtunnel.notebook import Shown
from windtunnel.views import Bars, Curve, Document, Heat, Lanes, Number, Table

# Class of an answer -> module of this package, and its function. A class of another name is found by its bases.
DOCUMENTS = {
    "Result": "prediction.views:prediction_document",
    "Plans": "plans:plans_document",
    "Survival": "survival:survival_document",
    "SpotAnswer": "survival:spot_document",
    "FabricResult": "fabric:fabric_document",
    "NicResult": "nic:nic_document",
    "Explanation": "explanation:explanation_document",
    "Decision": "decision:decide_document",
    "Checked": "decision:check_document",
    "Diagnosis": "own_run:diagnose_document",
    "Comparison": "comparison.views:comparison_document",
    "TraceComparison": "comparison.views:trace_document",
    "RlResult": "rl.views:rl_document",
    "RlPlanned": "rl.views:plan_document",
    "ServingResult": "serving.views:serving_document",
    "Served": "serving.views:served_document",
    "ServingPlans": "serving.placement:plans_document",
    "Placed": "serving.placement:placed_document",
    "FleetAnswer": "fleet:answer_document",
    "FleetResult": "fleet:result_document",
    "SweepOutcome": "sweeps:sweep_document",
}
PICTURES = (Curve, Bars, Lanes, Heat)
HEIGHT_PX = 520


def document_of(answer: Shown) -> Document:
    """Everything that there is to see of an answer. Raises SpecError for what is none."""
    place = next((DOCUMENTS[kind.__name__] for kind in type(answer).__mro__ if kind.__name__ in DOCUMENTS), None)
    if place is None:
        raise SpecError("answer", type(answer).__name__, f"give one of {', '.join(DOCUMENTS)}")
    module, _, name = place.partition(":")
    document = getattr(import_module(f"{__package__}.{module}"), name)(answer)
    assert isinstance(document, Document)
    return document


def notebook_html(answer: Shown) -> str:
    """An HTML fragment for a notebook; text of the answer is escaped."""
    from windtunnel.faces.report.draw.notebook import fragment_of

    return fragment_of(document_of(answer))


def write_report(answer: Shown, path: Path | str) -> None:
    """Write the report at `path`: HTML, or Markdown by its suffix. Raises InputFileError when it cannot be written."""
    from windtunnel.faces.report.draw.page import write_page

    if not isinstance(path, str | PathLike):
        raise SpecError("path", path, "give a str or a path")
    write_page(document_of(answer), path)


@dataclass(frozen=True, slots=True)
class Pictures:
    """Pictures of an answer. A notebook shows them in a frame of their own, with the script of the page."""

    document: Document

    def _repr_html_(self) -> str:
        """The frame."""
        from windtunnel.faces.report.draw.page import page_of

        page = escape(page_of(self.document), quote=True)
        style = f"width:100%;height:{HEIGHT_PX}px;border:0"
        return f'<iframe sandbox="allow-scripts" srcdoc="{page}" style="{style}"></iframe>'


def pictures(answer: Shown) -> Pictures:
    """The pictures of an answer, for a notebook. Raises UserError where it has none."""
    document = document_of(answer)
    views = [view for view in (*document.views, *document.details) if isinstance(view, PICTURES)]
    if not views:
        raise UserError(f"{document.title} has no picture: print it, or write its report")
    return Pictures(replace(document, views=views, details=(), command=""))


def first_table(answer: Shown) -> object:
    """The first table of an answer as a pandas DataFrame. Raises UserError without pandas, or without a table."""
    document = document_of(answer)
    table = next((view for view in (*document.views, *document.details) if isinstance(view, Table)), None)
    if table is None:
        raise UserError(f"{document.title} has no table: use to_dict()")
    try:
        import pyarrow as pa

        rows = [[cell.value if isinstance(cell, Number) else cell for cell in row] for row in table.rows]
        columns = {
            f"{column.name}, {column.unit}" if column.unit not in ("", "text") else column.name or "what": [
                row[at] for row in rows
            ]
            for at, column in enumerate(table.columns)
        }
        return pa.table(columns).to_pandas()
    except ImportError:
        raise UserError("to_dataframe needs pyarrow and pandas: pip install pyarrow pandas") from None
