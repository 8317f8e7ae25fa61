"""AlpaServe's real runs of two models on two GPUs against its group simulation.

    python validation/serving_policies/alpaserve.py FOLDER        (alpaserve_cluster_tune.csv)

Each case replays Poisson arrivals of the measured rates with the measured stage times, many seeds. Two constants are
fitted over all cases: how much longer a request holds a stage than it computes, and what dispatch adds to its latency.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

from windtunnel.studies.serving.multiplex.group import Group, serve_groups

SEEDS = 20
LEVELS = {"e2e_p50_s": 50, "e2e_p90_s": 90, "e2e_p99_s": 99}


Cases = dict[tuple[str, str], list[dict[str, str]]]


def fitted(cases: Cases, hold_s: float) -> tuple[float, float, float, dict[tuple[str, str, int], np.ndarray]]:
    """(mean relative error of mean E2E, hold, dispatch, times): dispatch is the median of what is missing at p50."""
    simulated: dict[tuple[str, str, int], np.ndarray] = {}
    gaps, measured, ours = [], [], []
    for (case, placement), rows in cases.items():
        rows.sort(key=lambda row: int(row["model_index"]))
        stages = {m: tuple(float(s) + hold_s for s in row["mean_stage_s"].split()) for m, row in enumerate(rows)}
        # baseline: each model on a GPU of its own; else both models on one group of two GPUs
        groups = [{m: s} for m, s in stages.items()] if placement == "baseline" else [stages]
        times: dict[int, list[float]] = defaultdict(list)
        for seed in range(SEEDS):
            rng = np.random.default_rng(seed)
            arrivals = []
            for model, row in enumerate(rows):
                at = np.cumsum(rng.exponential(1.0 / float(row["d_rate_req_per_s"]), int(row["requests"])))
                arrivals += [(float(t), model) for t in at]
            for one in serve_groups([Group(dict(one)) for one in groups], sorted(arrivals), overhead=0.0):
                times[one.model].append(one.end_s - one.arrival_s)
        for model, row in enumerate(rows):
            simulated[case, placement, model] = np.array(times[model])
            gaps.append(float(row["e2e_p50_s"]) - np.percentile(times[model], 50))
            measured.append(float(row["e2e_mean_s"]))
            ours.append(float(np.mean(times[model])))
    dispatch = max(0.0, float(np.median(gaps)))
    error = np.abs((np.array(ours) + dispatch) / np.array(measured) - 1.0).mean()
    return float(error), hold_s, dispatch, simulated


def main() -> None:
    cases: Cases = defaultdict(list)
    with (Path(sys.argv[1]) / "alpaserve_cluster_tune.csv").open() as file:
        for row in csv.DictReader(file):
            cases[row["case"], row["placement"]].append(row)
    best = min((fitted(cases, hold / 2e3) for hold in range(17)), key=lambda found: found[0])
    _, hold_s, overhead, simulated = best
    print(
        f"fitted: a stage is held {hold_s * 1e3:.1f} ms longer than it computes; dispatch takes {overhead * 1e3:.1f} ms"
    )
    errors = []
    for (case, placement), rows in cases.items():
        for m, row in enumerate(rows):
            ours = simulated[case, placement, m] + overhead
            parts = [f"mean {row['e2e_mean_s'][:6]} / {ours.mean():.4f}"]
            errors.append(abs(ours.mean() / float(row["e2e_mean_s"]) - 1.0))
            parts += [f"{k[4:7]} {row[k][:6]} / {np.percentile(ours, q):.4f}" for k, q in LEVELS.items()]
            for name, measured in (("within 0.1 s", 0.1), ("within 0.3 s", 0.3)):
                parts.append(f"{name} {np.mean(ours <= measured):.3f}")
            print(f"{case:17} {placement:9} {m}  " + "   ".join(parts))
    print(f"mean E2E: {np.mean(errors):.1%} off on average, {np.max(errors):.1%} at most ({len(errors)} points)")


if __name__ == "__main__":
    main()
