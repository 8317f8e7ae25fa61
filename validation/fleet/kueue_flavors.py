"""Situations of public issues and manifests with several flavors, as Kueue decides them and as the policy here does.

    python validation/fleet/kueue_flavors.py [--write]     a row for each; --write: kueue_flavors_2026_12_01/after.csv

`before.csv` beside it is of the code that counted all flavors together, written before they were known.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent / "kueue_flavors_2026_12_01"
sys.path.insert(0, str(HERE.parents[2] / "tests/unit/studies/fleet"))

from test_kueue_flavors import of_cycle  # noqa: E402

from windtunnel.files.document import read_document  # noqa: E402


def main() -> None:
    cases = read_document(HERE / "situations.yaml")
    assert isinstance(cases, list)
    rows = []
    for case in cases:
        for queue in case["queues"].values():
            queue["flavors"] = [{"name": name, "nominal": count} for name, count in queue["flavors"].items()]
        starts, stops = of_cycle(case)
        decided = case["decided"]
        alike = (starts, stops) == (decided["starts"], decided["stops"])
        told = f"stops {decided['stops']} starts {decided['starts']}"
        rows.append([case["case"], told, f"stops {stops} starts {starts}", alike])
        print(f"{'alike ' if alike else 'UNLIKE'} {case['case']}: {rows[-1][2]}")
    print(f"{sum(row[-1] for row in rows)} of {len(rows)} alike")
    if sys.argv[1:] == ["--write"]:
        with (HERE / "after.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["case", "kueue", "windtunnel", "alike"], *rows])


if __name__ == "__main__":
    main()
