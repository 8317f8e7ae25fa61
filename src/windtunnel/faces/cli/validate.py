"""`windtunnel validate TABLE.csv ...`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.flags import Command, Outputs
from windtunnel.faces.cli.output import counting, give, wrote
from windtunnel.files.write import writing
from windtunnel.questions.asked.validate import Validate
from windtunnel.questions.words import command as line_of


def validate(
    question: Validate,
    outputs: Outputs,
    *,
    jobs: Annotated[int | None, Parameter(help="Processes; one per core by default.")] = None,
) -> None:
    """Answer, print, write: the report in Markdown, and a row of CSV for each row of the tables."""
    import os

    from windtunnel.evidence.accuracy.study import answer
    from windtunnel.faces.report.documents import document_of

    if jobs is not None and not 1 <= jobs <= 1024:
        raise SpecError("--jobs", jobs, "give 1 to 1024")
    with counting("predicting") as progress:
        report = answer(question, progress=progress, workers=jobs or os.cpu_count() or 1)
    if outputs.rows is not None:
        with writing(outputs.rows):
            report.write_rows(outputs.rows)
        wrote(outputs.rows)
    document = replace(document_of(report), command=line_of(question))
    give(question, report, outputs, document)


COMMANDS = (Command("validate", validate, ("report", "rows", "full", "json")),)
