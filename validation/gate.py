"""The accuracy that must not get worse, source by source.

    python validation/gate.py           predict every level A row of the tables beside this file, print, compare
    python validation/gate.py --write   and write `gate.csv`, which `test_accuracy_gate.py` holds to

`few` is of the first rows of each source, cheap enough for every run of the tests; `all` of all its rows. Errors are
|predicted / measured - 1|, means in percent.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Iterable
from pathlib import Path

from windtunnel.evidence.accuracy import Case, Row, Skip, case_of, read_table
from windtunnel.studies.training import predict

HERE = Path(__file__).parent
TABLES = ("measurements", "simumax", "vtrain", "published")
FILE = HERE / "gate.csv"
FEW = 2  # rows of each source


def rows_of_level_a() -> dict[str, list[Row]]:
    """Rows with a measured time that leave nothing open, by source."""
    found: dict[str, list[Row]] = {}
    for table in TABLES:
        for row in read_table(HERE / f"{table}.csv"):
            if row.level == "A" and row.measured_s is not None and row.task in ("", "pretrain"):
                found.setdefault(row.source, []).append(row)
    return found


def few(rows: list[Row]) -> list[Row]:
    """Those of the fewest GPUs, and of these the first ones."""
    return sorted(rows, key=lambda row: row.n_gpus or 0)[:FEW]


def mean_error(rows: Iterable[Row]) -> float:
    """In percent; a row that is not answered counts as 100."""
    errors = []
    for row in rows:
        case = case_of(row)
        if isinstance(case, Skip):
            errors.append(1.0)
            continue
        errors.append(abs(_fastest(case) / (row.measured_s or 1.0) - 1.0))
    return 100.0 * statistics.fmean(errors)


def _fastest(case: Case) -> float:
    return min(predict(case.model, case.cluster, plan).step_time_s for plan in case.plans)


def committed() -> dict[str, tuple[float, float]]:
    """Source -> mean errors of its few and of all its rows, as they were when last written."""
    with FILE.open(encoding="utf-8") as file:
        return {line["source"]: (float(line["few"]), float(line["all"])) for line in csv.DictReader(file)}


def main() -> None:
    """Predict, print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = []
    for source, rows in sorted(rows_of_level_a().items()):
        lines.append((source, len(rows), f"{mean_error(few(rows)):.1f}", f"{mean_error(rows):.1f}"))
        print(*lines[-1], flush=True)
    if options.write:
        with FILE.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("source", "rows", "few", "all"))
            writer.writerows(lines)


if __name__ == "__main__":
    main()
