"""`windtunnel validate TABLE.csv ...`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.flags import Outputs, command
from windtunnel.faces.cli.output import counting, print_question, show, wrote
from windtunnel.files.write import writing
from windtunnel.questions.asked.validate import Validate
from windtunnel.questions.words import command as line_of

if TYPE_CHECKING:
    from windtunnel.evidence.accuracy import Report
    from windtunnel.evidence.accuracy.rl import RlReport
    from windtunnel.evidence.accuracy.serving.report import ServingReport
    from windtunnel.views import Document


def validate_app(*, everything: bool = False) -> Callable[..., object]:
    """The verb."""
    return command("validate", validate, ("report", "rows", "json"), everything=everything)


def validate(
    question: Validate,
    outputs: Outputs,
    *,
    jobs: Annotated[int | None, Parameter(help="Processes; one per core by default.")] = None,
) -> None:
    """Answer, print, write: the report in Markdown, and a row of CSV for each row of the tables."""
    import os

    from windtunnel.evidence.accuracy import Report
    from windtunnel.evidence.accuracy.rl import RlReport
    from windtunnel.evidence.accuracy.study import answer

    if jobs is not None and not 1 <= jobs <= 1024:
        raise SpecError("--jobs", jobs, "give 1 to 1024")
    with counting("predicting") as progress:
        report = answer(question, progress=progress, workers=jobs or os.cpu_count() or 1)
    if outputs.rows is not None:
        with writing(outputs.rows):
            report.write_rows(outputs.rows)
    if outputs.report is not None:
        line = f"{line_of(question)} --report {outputs.report}"
        if isinstance(report, Report):
            from windtunnel.faces.report.accuracy.page import write_page

            write_page(report, outputs.report, line)
        elif isinstance(report, RlReport):
            from windtunnel.faces.report.draw.page import write_page as write_views

            write_views(_document(report, line), outputs.report)
        else:
            from windtunnel.evidence.accuracy.serving.tables import write_page as write_serving_page

            with writing(outputs.report):
                write_serving_page(report, outputs.report, line)
    if outputs.json:
        measured = report.table if isinstance(report, Report) else report.source
        print_question(question, report.to_dict(), provenance={"measured": measured})
    else:
        show(_document(report, line_of(question)), full=True, piped_width=160)
    for path in (outputs.rows, outputs.report):
        if path is not None:
            wrote(path)


def _document(report: Report | ServingReport | RlReport, line: str) -> Document:
    from windtunnel.evidence.accuracy import Report
    from windtunnel.evidence.accuracy.serving.report import ServingReport
    from windtunnel.faces.report.accuracy.views import accuracy_document, serving_accuracy_document
    from windtunnel.faces.report.rl.views import accuracy_document as rl_accuracy_document

    if isinstance(report, Report):
        return accuracy_document(report)
    if isinstance(report, ServingReport):
        return serving_accuracy_document(report)
    return rl_accuracy_document(report, line)
