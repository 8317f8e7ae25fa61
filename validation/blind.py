"""Every ledger predicted as the code stands, and one table of how far off that is, kept with its date.

    python validation/blind.py TABLE.csv ...                  the ledgers beside this file and further ones; print
    python validation/blind.py TABLE.csv ... --write "why"    and keep it in `history/` and docs/accuracy-history.md

Run it before a change of physics with `--write "before ..."` and again after. Of a ledger that is not in this
repository only names of sources and errors are kept. Scores are per source and per year of what was measured (year of
the row's date), over specification levels A and B: error = predicted / measured - 1, in percent; `held` is the share of
runs in their p5-p95 band, `answered` the share that got a step time.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import statistics
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from windtunnel.evidence.accuracy.outcome import Outcome, outcome_of
from windtunnel.evidence.accuracy.table import read_tables
from windtunnel.studies.training import predict

HERE = Path(__file__).parent
LEDGERS = ("measurements", "published", "simumax", "vtrain", "unseen", "ultrascale")
FILE, PAGE = HERE / "history" / "blind.csv", HERE.parent / "docs" / "accuracy-history.md"
EVERY = {"ultrascale": 12, "vtrain": 4}  # of long ledgers every n-th row, so that a run takes minutes
HEADER = (
    *("date", "commit", "why", "group", "name", "rows", "answered", "mean", "median", "bias", "worst", "held"),
    *("memory rows", "memory mean", "memory bias", "left out"),
)
LEFT_OUT = HERE / "left_out_rows.csv"
ABOUT = """# History of accuracy

Written by `python validation/blind.py ... --write`; do not edit. Each section is one run of that script: all ledgers
predicted by the code as it stood, by source and by year of what was measured. error = predicted / measured - 1; *held*
is the share of runs in their p5-p95 band; *left out* the mean error of the rows without what their own source informed,
as `validation/seen.py` last wrote it. Levels A and B; every 12th row of the Ultra-Scale sweep, every 4th of vTrain.
"""


def outcomes_of(extra: Sequence[Path]) -> list[Outcome]:
    """Rows of levels A and B that have a measured time, predicted."""
    found = []
    for path in (*(HERE / f"{name}.csv" for name in LEDGERS), *extra):
        rows = [row for row in read_tables([path]) if row.level != "C" and row.measured_s is not None]
        found += [outcome_of(row, predict) for row in rows[:: EVERY.get(path.stem, 1)]]
    return found


def year_of(outcome: Outcome) -> str:
    """Year of a row's date, the last one of a span."""
    return (
        outcome.row.date[-4:] if outcome.row.date[4:5] == "-" and len(outcome.row.date) == 9 else outcome.row.date[:4]
    )


@cache
def errors_left_out() -> dict[str, float]:
    """Error of each row without its own source, as `validation/seen.py` wrote it."""
    return {line["id"]: float(line["left_out"]) for line in csv.DictReader(LEFT_OUT.open(encoding="utf-8"))}


def scored(outcomes: Iterable[Outcome], group: str, name: str) -> dict[str, str]:
    """One line of the table."""
    outcomes = list(outcomes)
    left_out = [abs(errors_left_out()[one.row.id]) for one in outcomes if one.row.id in errors_left_out()]
    errors = [one.error for one in outcomes if one.error is not None]
    held = [bool(one.inside_band) for one in outcomes if one.inside_band is not None]
    memory = [one.memory_error for one in outcomes if one.memory_error is not None]
    line = {"group": group, "name": name, "rows": str(len(outcomes)), "answered": _percent(len(errors) / len(outcomes))}
    if errors:
        sizes = [abs(error) for error in errors]
        line |= {
            "mean": _percent(statistics.fmean(sizes)),
            "median": _percent(statistics.median(sizes)),
            "bias": _percent(statistics.fmean(errors)),
            "worst": _percent(max(errors, key=abs)),
            "held": _percent(statistics.fmean(held)),
        }
    if left_out:
        line["left out"] = _percent(statistics.fmean(left_out))
    if memory:
        line |= {
            "memory rows": str(len(memory)),
            "memory mean": _percent(statistics.fmean(map(abs, memory))),
            "memory bias": _percent(statistics.fmean(memory)),
        }
    return line


def table_of(outcomes: Sequence[Outcome]) -> list[dict[str, str]]:
    """All lines: by source, then by year; under each group the mean of its lines, each counting once."""
    lines = []
    for group, name_of in (("source", lambda one: one.row.source), ("year", year_of)):
        parts: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in outcomes:
            parts[name_of(outcome)].append(outcome)
        lines += [scored(parts[name], group, name) for name in sorted(parts)]
    return lines


def _percent(share: float) -> str:
    return f"{100.0 * share:.1f}"


def commit() -> str:
    """Short name of the commit that is checked out, `+` where files have changed since."""
    name = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=True)
    changed = subprocess.run(
        ["git", "status", "--porcelain", "src"], cwd=HERE, capture_output=True, text=True, check=True
    )
    return name.stdout.strip() + ("+" if changed.stdout.strip() else "")


def page_of(lines: Sequence[dict[str, str]]) -> str:
    """The history as Markdown, newest run first."""
    runs: dict[tuple[str, str, str], list[dict[str, str]]] = defaultdict(list)
    for line in lines:
        runs[line["date"], line["commit"], line["why"]].append(line)
    text = ABOUT
    shown = HEADER[4:]
    for (date, name, why), own in reversed(runs.items()):
        text += f"\n## {date}, {name}: {why}\n"
        for group in ("source", "year"):
            text += f"\n| {group} | " + " | ".join(shown[1:]) + " |\n|---|" + "---:|" * (len(shown) - 1) + "\n"
            for line in own:
                if line["group"] == group:
                    text += "| " + " | ".join(line.get(column) or "" for column in shown) + " |\n"
    return text


def main() -> None:
    """Predict, print, and keep if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--write", metavar="WHY", help="add the table to the history, with this reason")
    options = parser.parse_args()
    lines = table_of(outcomes_of(options.tables))
    for line in lines:
        print(
            "  ".join(
                f"{line.get(column) or '':>8s}" if column != "name" else f"{line[column][:52]:52s}"
                for column in HEADER[3:]
            )
        )
    if options.write:
        stamp = {"date": datetime.date.today().isoformat(), "commit": commit(), "why": options.write}
        kept = list(csv.DictReader(FILE.open(encoding="utf-8"))) if FILE.exists() else []
        kept += [stamp | line for line in lines]
        FILE.parent.mkdir(exist_ok=True)
        with FILE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, HEADER, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(kept)
        PAGE.write_text(page_of(kept), encoding="utf-8")


if __name__ == "__main__":
    main()
