"""`windtunnel validate TABLE.csv ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.output import counting, note, print_answer, stdout
from windtunnel.files.write import writing


def validate(
    tables: Annotated[tuple[Path, ...], Parameter(name="TABLE", negative="")],
    /,
    *,
    level: Annotated[
        Literal["A", "B", "C"] | None, Parameter(help="Only rows specified this well; all levels by default.")
    ] = None,
    source: Annotated[str | None, Parameter(help="Only rows whose source contains this text.")] = None,
    anchor: Annotated[
        Literal["none", "smallest"],
        Parameter(help="smallest: one factor per source, GPU, model and precision, from its smallest run."),
    ] = "none",
    rows: Annotated[Path | None, Parameter(help="Write one CSV line per row of the table here.")] = None,
    page: Annotated[Path | None, Parameter(help="Write the accuracy page here, in Markdown.")] = None,
    json: Annotated[bool, Parameter(negative="", help="Print the report as JSON.")] = False,
    workers: Annotated[int | None, Parameter(help="Processes; one per core by default.")] = None,
) -> None:
    """Predict every run of a table of measured runs, and show how far off that is, source by source.

    Parameters
    ----------
    tables
        CSV of measured runs, with the columns of validation/measurements.csv; one or several. A table of served
        deployments (id, model, gpu, engine, isl, osl, concurrency ...) is predicted as such.
    """
    import os

    from windtunnel.evidence.accuracy import run_validation
    from windtunnel.evidence.accuracy.serving import is_serving_table

    if workers is not None and not 1 <= workers <= 1024:
        raise SpecError("--workers", workers, "give 1 to 1024")
    if tables and is_serving_table(tables[0]):
        _serving(tables, level, source, anchor, rows, page, json, workers or os.cpu_count() or 1)
        return
    with counting("predicting") as progress:
        report = run_validation(
            tables, level, source, anchor, progress=progress, workers=workers or os.cpu_count() or 1
        )
    if rows is not None:
        report.write_rows(rows)
    if page is not None:
        from windtunnel.faces.report.accuracy.page import write_page

        words = ["windtunnel validate", *map(str, tables), *([f"--level {level}"] if level else []), f"--page {page}"]
        write_page(report, page, " ".join(words))
    if json:
        print_answer("validate", report.to_dict(), provenance={"measured": report.table})
    else:
        from windtunnel.faces.report.accuracy.console import render_report
        from windtunnel.faces.report.draw.printing import print_trimmed

        console = stdout(piped_width=160)
        print_trimmed(render_report(report, console.width), console)
    for written in (rows, page):
        if written is not None:
            note(f"wrote {written}")


def _serving(
    tables: tuple[Path, ...],
    level: str | None,
    source: str | None,
    anchor: str,
    rows: Path | None,
    page: Path | None,
    json: bool,
    workers: int,
) -> None:
    """The same for measured deployments of served models."""
    from windtunnel.evidence.accuracy.serving import run_serving_validation
    from windtunnel.evidence.accuracy.serving.console import print_report, write_page

    for name, value in (("--level", level), ("--source", source), ("--anchor", None if anchor == "none" else anchor)):
        if value is not None:
            raise SpecError(name, value, "is for tables of training runs: leave it out")
    with counting("predicting") as progress:
        report = run_serving_validation(tables, progress=progress, workers=workers)
    if rows is not None:
        with writing(rows):
            report.write_rows(rows)
    if page is not None:
        with writing(page):
            write_page(report, page, " ".join(["windtunnel validate", *(table.name for table in tables)]))
    if json:
        print_answer("validate", report.to_dict(), provenance={"measured": report.source})
    else:
        print_report(report, stdout(piped_width=160))
    for written in (rows, page):
        if written is not None:
            note(f"wrote {written}")
