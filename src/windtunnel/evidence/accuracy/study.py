"""`validate`: tables of measured training runs, served deployments or RL steps, by what the first one holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from windtunnel.errors import SpecError
from windtunnel.evidence.accuracy.report import Report
from windtunnel.evidence.accuracy.rl import RlReport, is_rl_table, run_rl_validation
from windtunnel.evidence.accuracy.run import run_validation
from windtunnel.evidence.accuracy.serving import ServingReport, is_serving_table, run_serving_validation
from windtunnel.questions.asked.validate import Validate
from windtunnel.questions.fields import fields_of


def answer(
    question: Validate, *, progress: Callable[[int, int], None] | None = None, workers: int = 1
) -> Report | ServingReport | RlReport:
    """The report; it does not depend on `workers`, which are processes. Raises UserError."""
    tables = [Path(table) for table in question.tables]
    of_rl = is_rl_table(tables[0])
    if not (of_rl or is_serving_table(tables[0])):
        return run_validation(
            tables, question.level, question.source, question.anchor, progress=progress, workers=workers
        )
    for field in fields_of(Validate):
        value = getattr(question, field.path)
        if not field.required and value != field.default:
            raise SpecError(f"--{field.path}", value, "is for tables of training runs: leave it out")
    run = run_rl_validation if of_rl else run_serving_validation
    return run(tables, progress=progress, workers=workers)
