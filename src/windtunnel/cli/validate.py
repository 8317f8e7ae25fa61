"""`windtunnel validate TABLE.csv ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter


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
        CSV of measured runs, with the columns of validation/measurements.csv; one or several.
    """
    import os

    from windtunnel.accuracy import run_validation
    from windtunnel.cli.output import counting, note, print_json, stdout
    from windtunnel.errors import SpecError

    if workers is not None and not 1 <= workers <= 1024:
        raise SpecError("--workers", workers, "give 1 to 1024")
    with counting("predicting") as progress:
        report = run_validation(
            tables, level, source, anchor, progress=progress, workers=workers or os.cpu_count() or 1
        )
    if rows is not None:
        report.write_rows(rows)
    if page is not None:
        from windtunnel.report.accuracy_page import write_page

        words = ["windtunnel validate", *map(str, tables), *([f"--level {level}"] if level else []), f"--page {page}"]
        write_page(report, page, " ".join(words))
    if json:
        print_json(report.to_dict())
    else:
        from windtunnel.report.accuracy_console import render_report
        from windtunnel.report.printing import print_trimmed

        console = stdout(piped_width=160)
        print_trimmed(render_report(report, console.width), console)
    for written in (rows, page):
        if written is not None:
            note(f"wrote {written}")
