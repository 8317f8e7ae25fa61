"""Bands judged by sources that made none of them.

    python validation/bands.py TABLE.csv ... [--source TEXT] [--generation TEXT] [--every N]

For each source of the tables: `seen.yaml` is made again from all rows of `left_out_rows.csv` but its own, its rows are
predicted, and held against the band is the error that `left_out_rows.csv` has for them with the source left out of the
constants as well. So neither the middle nor the width knows the source. What adds for a distance (`distance` in the
calibration) and what parts of a step miss by (`uncertainty`) stay as they are. N: every n-th row of a source;
`--generation cdna`: only AMD's.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml
from seen import HERE, OTHERS, TABLES, Known, entries_of, known_rows

from windtunnel.evidence.accuracy import read_table
from windtunnel.evidence.accuracy.outcome import outcome_of
from windtunnel.physics.cost.calibration import read_calibration
from windtunnel.studies.training import answers, predict

FACTORS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2)


def judged(rows: Known, source: str, every: int, generation: str) -> list[tuple[float, float, float]]:
    """ln(measured / predicted left out) and the ends of the band in the same, of each row of a source."""
    others = {name: one for name, one in rows.items() if one[0].source != source}
    seen: dict[str, Any] = read_calibration("seen.yaml")
    seen.clear()
    seen.update(yaml.safe_load(entries_of(others)))
    answers.forget_answers()
    found = []
    own = [one for one in rows.values() if one[0].source == source]
    for row, _, left_out, _ in [one for one in own if one[1].cluster.gpu.generation.startswith(generation)][::every]:
        outcome = outcome_of(row, predict)
        step, low, high = outcome.step_time_s, outcome.p5_s, outcome.p95_s
        assert step is not None
        assert low is not None
        assert high is not None
        found.append((-left_out, math.log(low / step), math.log(high / step)))
    return found


def _inside(off: float, low: float, high: float, factor: float) -> bool:
    """Whether ln(measured / predicted) lies in a band so many times as wide; its ends are 1 / (1 + .7 z), 1 + 1.5 z."""
    return -math.log1p(factor * math.expm1(-low)) <= off <= math.log1p(factor * math.expm1(high))


def main() -> None:
    """Judge the sources of the tables that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--source", default="", help="only those whose name contains this")
    parser.add_argument("--generation", default="", help="only runs on GPUs whose generation begins with this")
    asked = parser.parse_args()
    own = [HERE / f"{name}.csv" for name in (*TABLES, *OTHERS)]
    rows = known_rows(list(dict.fromkeys([*own, *asked.tables])))
    tables = [row for path in asked.tables for row in read_table(path) if row.id in rows]
    wanted = [row for row in tables if rows[row.id][1].cluster.gpu.generation.startswith(asked.generation)]
    named = {row.id: row.source for row in wanted}
    inside: dict[str, list[bool]] = defaultdict(list)
    widths: dict[str, list[float]] = defaultdict(list)
    rows_of: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for source in sorted(one for one in set(named.values()) if asked.source in one):
        for off, low, high in judged(rows, source, asked.every, asked.generation):
            rows_of[source].append((off, low, high))
            inside[source].append(low <= off <= high)
            widths[source].append(high - low)
        one = inside[source]
        width = sum(widths[source]) / len(one)
        print(f"{source:60s} {len(one):4d} rows  held {sum(one) / len(one):6.1%}  {width:.2f} wide", flush=True)
    for factor in FACTORS:
        shares = [sum(_inside(*one, factor) for one in each) / len(each) for each in rows_of.values()]
        print(f"{factor:.2f} times as wide: mean of sources {sum(shares) / len(shares):.1%}")
    every = [one for each in inside.values() for one in each]
    of_sources = [sum(one) / len(one) for one in inside.values()]
    print(
        f"all {len(every)} rows {sum(every) / len(every):.1%}, mean of sources {sum(of_sources) / len(of_sources):.1%}"
    )


if __name__ == "__main__":
    main()
