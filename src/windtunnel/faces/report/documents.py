"""Which function makes the views of which answer, and what a notebook does with them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from os import PathLike
from pathlib import Path

from windtunnel.errors import SpecError, UserError
from windtunnel.notebook import Shown
from windtunnel.questions.header import Answer
from windtunnel.views import Bars, Curve, Document, Heat, Lanes, Number, Table

# Class of an answer -> module of this package, and its function.
DOCUMENTS = {
    "physics.step.result:Result": "prediction.views:prediction_document",
    "studies.planning.answers.plans:Plans": "plans:plans_document",
    "studies.resilience.study:Survival": "survival:survival_document",
    "studies.resilience.spot.study:SpotAnswer": "survival:spot_document",
    "studies.fabric:FabricResult": "fabric:fabric_document",
    "studies.nic.study:NicResult": "fabric:nic_document",
    "studies.traces.stragglers.explanation:Explanation": "explanation:explanation_document",
    "studies.decide:Decision": "decision:decide_document",
    "studies.check:Checked": "decision:check_document",
    "studies.diagnose:Diagnosis": "own_run:diagnose_document",
    "faces.report.comparison.compare:Comparison": "comparison.views:comparison_document",
    "faces.report.comparison.compare:TraceComparison": "comparison.views:trace_document",
    "evidence.accuracy.report:Report": "accuracy.views:accuracy_document",
    "evidence.accuracy.serving.report:ServingReport": "accuracy.views:serving_accuracy_document",
    "evidence.accuracy.rl.run:RlReport": "rl.views:accuracy_document",
    "studies.rl.result:RlResult": "rl.views:rl_document",
    "studies.rl.plan:RlPlanned": "rl.views:plan_document",
    "studies.serving.result:ServingResult": "serving.views:serving_document",
    "studies.serving.study:ServingAnswer": "serving.views:served_document",
    "studies.serving.placement.plan:ServingPlans": "serving.placement:plans_document",
    "studies.serving.placement.answer:PlacementAnswer": "serving.placement:placed_document",
    "studies.fleet.study:FleetAnswer": "fleet:answer_document",
    "studies.fleet.study:FleetResult": "fleet:result_document",
    "studies.sweeps.sweep:SweepOutcome": "sweeps:sweep_document",
    "studies.fleet.when:WhenAnswer": "fleet:when_answer_document",
    "studies.fleet.packing.study:PackAnswer": "fleet:pack_document",
    "studies.fleet.jobs.lint:LintAnswer": "fleet:lint_document",
    "studies.fleet.jobs.usage:FleetUse": "fleet_measured:usage_document",
    "studies.fleet.sharing.study:Shared": "fleet:sharing_document",
    "studies.fleet.flows.study:FlowsStudy": "fleet:flows_document",
    "studies.fleet.live.study:LiveRun": "fleet:live_document",
    "studies.fleet.live.beside:BesideRun": "fleet_measured:beside_document",
}
OF_JSON = {  # views that are made of `to_dict()`
    "studies.serving.policies:PolicyComparison": "serving.views:policies_document",
    "studies.serving.multiplex.shared:Sharing": "serving.views:policies_document",
    "studies.serving.stateful.study:Scaled": "serving.views:scaled_document",
    "studies.serving.spot.study:SpotServing": "serving.views:spot_serving_document",
    "studies.serving.shared_pool.result:PoolResult": "serving.views:pool_document",
    "studies.serving.weight_pool.study:WeightPoolResult": "serving.views:weight_pool_document",
    "real.serving.compare:Compared": "serving.views:real_document",
}
PICTURES = (Curve, Bars, Lanes, Heat)
HEIGHT_PX = 520


def _place(answer: object) -> str:
    kind = f"{type(answer).__module__.partition('.')[2]}:{type(answer).__name__}"
    return DOCUMENTS.get(kind) or OF_JSON.get(kind, "")


def document_of(answer: Shown) -> Document:
    """Everything that there is to see of an answer. Raises SpecError for what is none."""
    place = _place(answer)
    if not place:
        raise SpecError("answer", type(answer).__name__, "give what a study answers, such as a Result")
    module, _, name = place.partition(":")
    shown = answer.to_dict() if isinstance(answer, Answer) and place in OF_JSON.values() else answer
    document = getattr(import_module(f"{__package__}.{module}"), name)(shown)
    assert isinstance(document, Document)
    return document


def notebook_html(answer: Shown) -> str:
    """An HTML fragment for a notebook; text of the answer is escaped. One without views is shown as its JSON."""
    from windtunnel.faces.report.draw.notebook import fragment_of

    if isinstance(answer, Answer) and not _place(answer):
        return f"<pre>{escape(json.dumps(answer.to_dict(), indent=1, default=str))}</pre>"
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
