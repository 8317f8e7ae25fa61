"""A section of docs/accuracy-serving-history.md: predictions of a table, cell by cell.

    windtunnel validate TABLE --rows OUT.csv
    python validation/serving/history.py TABLE OUT.csv "title" [--write]

error = predicted / measured - 1 of rows that are no repeats. A cell is model family, GPU, engine, together or apart,
drafting or not; *held* is the share of its rows whose TPOT lies in their band.
"""

from __future__ import annotations

import csv
import statistics
import subprocess
import sys
from datetime import date
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "accuracy-serving-history.md"
HEAD = """# History of accuracy: serving

Written by `python validation/serving/history.py TABLE ROWS.csv TITLE --write`; do not edit. Each section is one table
of measured deployments, predicted by the code as it stood: mean, median and bias (median of predicted / measured) of
TPOT, mean error of output tokens/s, median error of TTFT, in percent.
"""
NAMES = ("cell", "rows", "answered", "TPOT", "median", "bias", "tokens/s", "TTFT", "held")
MEASURES = (
    ("tpot_s", "tpot_ms", 1e-3),
    ("output_tokens_per_s", "d_output_tokens_per_s", 1.0),
    ("ttft_s", "ttft_ms", 1e-3),
)
Pair = tuple[dict[str, str], dict[str, str]]


def ratios(pairs: list[Pair], name: str, column: str, scale: float) -> list[float]:
    """Predicted / measured, of rows that have both."""
    both = [(one[name], float(row[column]) * scale) for row, one in pairs if row.get(column) and one.get(name)]
    if name == "output_tokens_per_s":  # of five rows the source left out a power of ten: under one token a sample
        samples = [float(row.get("samples_per_s") or 0.0) for row, one in pairs if row.get(column) and one.get(name)]
        both = [pair for pair, least in zip(both, samples, strict=True) if pair[1] >= least]
    return [float(value) / measured for value, measured in both if measured > 0]


def line(name: str, pairs: list[Pair]) -> str:
    """A line of the table."""
    tpot, tokens, ttft = (ratios(pairs, *one) for one in MEASURES)
    answered = sum(one["status"] != "refused" for _, one in pairs)
    inside = [
        float(one["tpot_p5_s"]) <= float(row["tpot_ms"]) * 1e-3 <= float(one["tpot_p95_s"])
        for row, one in pairs
        if row.get("tpot_ms") and one.get("tpot_p5_s")
    ]

    def error(values: list[float], middle: bool) -> str:
        errors = [abs(value - 1.0) for value in values]
        return f"{100 * (statistics.median(errors) if middle else statistics.fmean(errors)):.1f}" if errors else ""

    cells = [
        name,
        str(len(pairs)),
        f"{100 * answered / len(pairs):.0f}",
        error(tpot, False),
        error(tpot, True),
        f"{statistics.median(tpot):.2f}" if tpot else "",
        error(tokens, False),
        error(ttft, True),
        f"{100 * sum(inside) / len(inside):.0f}" if inside else "",
    ]
    return "| " + " | ".join(cells) + " |"


def section(table: Path, answers: Path, title: str) -> str:
    """The section."""
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with answers.open(encoding="utf-8") as file:
        said = {one["id"]: one for one in csv.DictReader(file)}
    pairs = [(row, said[row["id"]]) for row in rows if not row.get("duplicate_of") and row["id"] in said]
    cells: dict[str, list[Pair]] = {}
    for row, one in pairs:
        apart = "apart" if row.get("mode", "").startswith("dis") else "together"
        drafted = " drafting" if row.get("spec") == "mtp" else ""
        kind = row.get("kind", "").partition("_")[0]
        load = f" {kind}" if kind in ("mlperf", "agentic") else ""
        family = row.get("model_family") or row["model"]
        cells.setdefault(f"{family} {row['gpu']} {row['engine']} {apart}{drafted}{load}", []).append((row, one))
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    lines = [f"\n## {date.today()}, {commit}: {title}, {table.name}\n", "| " + " | ".join(NAMES) + " |"]
    lines += ["|---|" + "---:|" * (len(NAMES) - 1), *(line(name, cells[name]) for name in sorted(cells))]
    levels = sorted({row.get("spec_level", "") for row, _ in pairs} - {""})
    lines += [
        line(f"level {level}", [pair for pair in pairs if pair[0].get("spec_level") == level]) for level in levels
    ]
    return "\n".join([*lines, line("all", pairs), ""])


if __name__ == "__main__":
    text = section(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    if "--write" in sys.argv:
        before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else HEAD
        PAGE.write_text(before + text, encoding="utf-8")
    else:
        print(text)
