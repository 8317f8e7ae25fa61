"""`docs/accuracy.md`, written by `windtunnel validate TABLE... --report docs/accuracy.md` and never by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from windtunnel.evidence.accuracy.anchor import anchored
from windtunnel.evidence.accuracy.constants import Constants, fitted_constants
from windtunnel.evidence.accuracy.report import Report, report_of
from windtunnel.faces.report.accuracy.tables import Table, tables_of
from windtunnel.files.table import read_table
from windtunnel.files.write import write_atomically

LEAVE_ONE_OUT = "leave_one_source_out.csv"


def write_page(report: Report, path: str | Path, command: str) -> None:
    """Write the page of an unanchored report. Raises InputFileError where it cannot be written."""
    text = page_of(report, command, fitted_constants(), _leave_one_out(report))
    write_atomically(Path(path), text.encode())


def page_of(report: Report, command: str, constants: Sequence[Constants], leave_one_out: Table | None = None) -> str:
    """The page as Markdown. Same report, same text: no clock, no machine."""
    parts = [
        "# Accuracy",
        f"Written by `{command}`; do not edit. Every row is a published measurement with its citation in the table.",
        _READING,
        *_sections(tables_of(report), "##"),
    ]
    if leave_one_out is not None:
        parts += [f"## {leave_one_out.title}", _LEAVE_ONE_OUT_READING, _markdown(leave_one_out)]
    if report.anchor == "none":
        best = report.by_source[0][0] if report.by_source else None
        again = report_of(report.table, anchored(report.outcomes), best, report.source, "smallest")
        tables = [table for table in tables_of(again) if table.title.startswith("Step time by source, specification")]
        parts += ["## One anchor", _ANCHOR_READING, *_sections(tables, "###")]
    parts += ["## Sources", _citations(report), "## Constants", _CONSTANTS_READING]
    for file in constants:
        parts += [f"### `{file.file}`", *([file.about] if file.about else []), _constants_table(file)]
    return "\n\n".join(part for part in parts if part) + "\n"


_READING = """\
error = predicted / measured - 1 of one run. *Mean* and *median* are of its absolute value, *bias* is its mean with
sign, *worst* is the one farthest from zero, *in band* is the share of runs whose measured step lies in the predicted
p5-p95 band: what the model does not know, far more than one step differs from the next. *Level A* rows state model,
every parallel degree, batch, precision and recomputation; *level B* rows leave one to three of these open, which are
swept: the prediction is the fastest of the sweep that fits, the band spans all. *Level C* rows are used for ordering
only. A row that cannot be represented is skipped with its reason, never guessed.
Sources are not pooled: their conventions, releases and clusters differ. *Guess* is the mean error that one constant
FLOP rate per framework, GPU and precision would have, fitted on these very rows: what a prediction has to beat."""

_ANCHOR_READING = """\
The run on the fewest GPUs of each (source, GPU, model, precision) moves the others by nearness, and is left out of the
score (`--anchor smallest`)."""

_LEAVE_ONE_OUT_READING = """\
The constants fitted again without the rows of one source, and that source predicted with them."""

_CONSTANTS_READING = """\
Everything that was fitted, as the calibration files state it. Data-sheet numbers are in `hardware/catalogue`, each with
its source."""


def _sections(tables: Iterable[Table], level: str) -> list[str]:
    parts = []
    for table in tables:
        title, _, rest = table.title.partition(": ")
        parts.append(f"{level} {title}")
        if rest:
            parts.append(rest[0].upper() + rest[1:] + ".")
        parts.append(_markdown(table))
    return parts


def _markdown(table: Table) -> str:
    words = {index for index, name in enumerate(table.header) if index < table.left or "row" in name.split()[-1:]}
    rule = " | ".join("---" if index in words else "---:" for index in range(len(table.header)))
    lines = [" | ".join(map(_cell, table.header)), rule, *(" | ".join(map(_cell, row)) for row in table.rows)]
    return "\n".join(f"| {line} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _citations(report: Report) -> str:
    groups: dict[tuple[str, str], list[str]] = {}
    for outcome in report.outcomes:
        row = outcome.row
        groups.setdefault((row.source, row.licence), []).append(row.url_or_file)
    rows = tuple(
        (source, str(len(urls)), licence, urls[0] + (" and others" if len(set(urls)) > 1 else ""))
        for (source, licence), urls in sorted(groups.items())
    )
    return _markdown(Table("", ("source", "rows", "licence", "where"), rows))


def _constants_table(file: Constants) -> str:
    rows = tuple((f"`{one.name}`", f"`{one.value}`", one.comment) for one in file.constants)
    return _markdown(Table("", ("constant", "value", "fitted on, or source"), rows, left=3))


def _leave_one_out(report: Report) -> Table | None:
    """The table beside the measurements, where somebody has made one: it takes a fit per source to make."""
    path = Path(report.table.split(", ")[0]).parent / LEAVE_ONE_OUT
    if not path.exists():
        return None
    table = read_table(path, "write it again with validation/fit.py")
    rows = tuple(tuple(row.values()) for _, row in table.rows())
    return Table("Leave one source out", tuple(table.columns), rows)
