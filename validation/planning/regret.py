"""What choosing by prediction costs: of the layouts that were measured for one job, the measured time of our choice.

    python validation/planning/regret.py training_ultrascale.csv [--most 600]

Prints the number of groups, the median and the 90th percentile of regret. `--most`: whole groups, up to so many rows.
"""

from __future__ import annotations

import argparse
import math

from windtunnel.evidence.accuracy.outcome import outcome_of
from windtunnel.evidence.accuracy.ranking import rankings
from windtunnel.evidence.accuracy.table import read_table
from windtunnel.studies.training import predict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table")
    parser.add_argument("--most", type=int, default=10**9)
    arguments = parser.parse_args()
    groups: dict[tuple[object, ...], list[object]] = {}
    for row in read_table(arguments.table):
        groups.setdefault((row.model, row.n_gpus, row.global_batch), []).append(row)
    outcomes, rows = [], 0
    for group in groups.values():
        if rows + len(group) > arguments.most:
            continue
        rows += len(group)
        outcomes += [outcome_of(row, predict) for row in group]
    for ranking in rankings(outcomes):
        regrets = sorted(math.inf if one.regret is None else one.regret for one in ranking.groups)
        tenth = regrets[min(len(regrets) - 1, math.ceil(0.9 * len(regrets)) - 1)]
        print(f"{ranking.name}: {rows} rows, {len(regrets)} groups")
        print(f"median regret {regrets[len(regrets) // 2]:.2%}, 90th percentile {tenth:.2%}, worst {regrets[-1]:.2%}")


if __name__ == "__main__":
    main()
