"""Coflows held against CoflowSim's published ends, and its clock against the exact one.

    python validation/fleet/coflows.py TRACE.txt [ENDS.csv] [--policies sebf,scf,...]

TRACE: coflow-benchmark's layout. ENDS: `policy,coflow,start_tick,finish_tick`, what CoflowSim says of that trace.
Prints for each policy how many ends differ, and the mean completion time on both clocks, with the gap between them.
Also Fai over D-CLAS on each clock.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracles.coflowsim.clock import run_ticks

from windtunnel.studies.fleet.flows import POLICIES, read_trace, run_flows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("ends", type=Path, nargs="?")
    parser.add_argument("--policies", default=",".join(POLICIES))
    asked = parser.parse_args()
    trace = read_trace(asked.trace)
    published: dict[str, dict[str, int]] = defaultdict(dict)
    if asked.ends:
        with asked.ends.open() as file:
            for row in csv.DictReader(file):
                published[row["policy"].lower()][row["coflow"]] = int(row["finish_tick"])
    means: dict[tuple[str, str], float] = {}
    print("policy   ends that differ   mean CCT, s: CoflowSim's clock   exact   exact / CoflowSim's   CPU-s of both")
    for policy in asked.policies.split(","):
        begun = time.process_time()
        ticks = run_ticks(trace, policy)
        middle = time.process_time()
        exact = run_flows(trace, policy)
        done = time.process_time()
        ours = dict(zip((shuffle.name for shuffle in trace.shuffles), ticks.finish.tolist(), strict=True))
        known = published.get(policy, {})
        differ = f"{sum(ours[name] != tick for name, tick in known.items())} of {len(known)}" if known else "-"
        means[policy, "tick"], means[policy, "exact"] = ticks.cct_s.mean(), exact.cct_s.mean()
        ratio = exact.cct_s.mean() / ticks.cct_s.mean()
        cpu = f"{middle - begun:.2f} + {done - middle:.2f}"
        print(f"{policy:8} {differ:>17} {ticks.cct_s.mean():30.3f} {exact.cct_s.mean():9.3f} {ratio:15.3f} {cpu:>20}")
    for clock in ("tick", "exact"):
        if {("fai", clock), ("d-clas", clock)} <= set(means):
            print(f"Fai over D-CLAS, {clock}: {means['d-clas', clock] / means['fai', clock]:.2f} x")


if __name__ == "__main__":
    main()
