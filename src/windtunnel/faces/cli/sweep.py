"""`windtunnel sweep STUDY.yaml` and `windtunnel sweep table TABLE.parquet --show Y_vs_X`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.flags import Command, Outputs
from windtunnel.faces.cli.output import counting, give, note
from windtunnel.questions.asked.sweep import Sweep, SweepTable


def sweep(
    question: Sweep,
    outputs: Outputs,
    *,
    out: Annotated[Path, Parameter(help="The table to write (sweep.parquet).")] = Path("sweep.parquet"),
    jobs: Annotated[int | None, Parameter(help="How many processes (one per core).")] = None,
    executor: Annotated[str, Parameter(help="processes, serial, ray or ray:ADDRESS (processes).")] = "processes",
) -> None:
    """Run, print."""
    from windtunnel.faces.report.sweeps import sweep_document
    from windtunnel.studies.sweeps.sweep import answer

    with counting("points") as report:
        outcome = answer(question, out=out, jobs=jobs, executor=executor, progress=report)
    give(question, outcome.to_dict(), outputs, sweep_document(outcome))
    if outcome.ran:
        note(f"wrote {outcome.path}")


def table(question: SweepTable, outputs: Outputs) -> None:
    """Read, print."""
    from windtunnel.faces.report.sweeps import table_document
    from windtunnel.studies.sweeps.table import answer

    outcome = answer(question)
    give(question, outcome, outputs, table_document(outcome["rows"], question.table))


COMMANDS = (
    Command("sweep", sweep),
    Command("sweep table", table, ("report", "json")),
)
