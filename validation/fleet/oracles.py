"""Holds the fleet study against the published simulators' own answers, job by job, and prints what is equal.

    python validation/fleet/oracles.py DATA [pollux] [exact]

DATA: a folder with pollux_*.csv, ef_*.csv, coflow_*, classic_*.csv, jobs_*.csv, openb_*.csv (layouts: docs/fleet.md).
`pollux` adds the runs of Pollux, which is random and dear; `exact` the gap of the exact clock. Each line: oracle, equal
of all.
"""

from __future__ import annotations

import csv
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from oracles.coflowsim.clock import run_ticks
from oracles.run import in_adaptdl, in_elasticflow

from windtunnel.studies.fleet.flows import read_trace, run_flows
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import aggregates
from windtunnel.studies.fleet.packing.study import packing_figures, read_nodes
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.speeds.tables import Tables

PUBLISHED_FIG8A = {"edf": 0.118, "gandiva": 0.090, "tiresias": 0.287, "elasticflow": 0.728}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def say(what: str, equal: int, total: int, more: str = "") -> None:
    print(f"{what:44} {equal:6,} of {total:6,} equal {more}", flush=True)


def adaptdl(data: Path, policies: tuple[str, ...], exact: bool) -> None:
    tables = Tables(data)
    runs = rows(data / "pollux_runs.csv")
    for workload, load in sorted({(row["workload"], row["load"]) for row in runs}):
        jobs = read_jobs(data / "pollux_workloads.csv", f"workload={workload},load={load}")
        for policy in policies:
            truth = {
                row["job"]: row
                for row in runs
                if (row["workload"], row["load"], row["policy"]) == (workload, load, policy)
            }
            if not truth:
                continue
            began = time.process_time()
            outcome = in_adaptdl(jobs, parse_site("t4:64"), policy, tables)
            spent = time.process_time() - began
            wanted = np.array([float(truth[name]["jct_s"]) for name in jobs.name])
            mean, published = float(np.nanmean(outcome.jct_s)), float(wanted.mean())
            more = f"mean {mean:,.4f} / {published:,.4f} = {mean / published:.4f}  {spent:.1f} CPU-s"
            if exact:
                other = simulate(jobs, parse_site("t4:64"), policy, Options(tables))
                gap = float(np.nanmean(other.jct_s)) / published
                more += f"; exact clock {gap:.4f}"
            say(f"{policy} workload {workload} load {load}", int((outcome.jct_s == wanted).sum()), len(jobs), more)


def elasticflow(data: Path) -> None:
    tables = Tables(data)
    logs = rows(data / "ef_logs.csv")
    for setting, cluster in (("fig8a", "t4:64"), ("fig10", "a100:128")):
        jobs = read_jobs(data / "ef_traces.csv", f"setting={setting}")
        for policy, logged in (("edf", "edf"), ("tiresias", "dlas-gpu"), ("gandiva", ""), ("elasticflow", "")):
            outcome = in_elasticflow(jobs, parse_site(cluster), policy, tables)
            figures = aggregates(outcome, 64)
            ours = aggregates(simulate(jobs, parse_site(cluster), policy, Options(tables)), 64)["deadline_met_by_log"]
            truth = {
                row["job"]: float(row["end_s"]) for row in logs if (row["setting"], row["policy"]) == (setting, logged)
            }
            ends = dict(zip(jobs.name, outcome.end_s.tolist(), strict=True))
            equal = sum(ends[name] == end for name, end in truth.items())
            scored, by_log = figures["deadline_met_scored"], figures["deadline_met_by_log"]
            more = f"on time: scored {scored:.3f}, by log {by_log:.3f}"
            more += f"; the product's clock {ours:.3f}"
            if setting == "fig8a":
                more += f"; published {PUBLISHED_FIG8A[policy]:.3f}"
            say(f"{policy} {setting}", equal, len(truth), more)


def coflows(data: Path) -> None:
    published = rows(data / "coflow_cct.csv")
    for name, policy in dict.fromkeys((row["trace"], row["policy"]) for row in published):
        trace = read_trace(data / f"coflow_{name}.txt")
        ticks = run_ticks(trace, policy.lower())
        ours = dict(zip((shuffle.name for shuffle in trace.shuffles), ticks.finish.tolist(), strict=True))
        truth = {
            row["coflow"]: int(row["finish_tick"])
            for row in published
            if (row["trace"], row["policy"]) == (name, policy)
        }
        gap = run_flows(trace, policy.lower()).cct_s.mean() / ticks.cct_s.mean()
        equal = sum(ours[coflow] == tick for coflow, tick in truth.items())
        say(f"{policy.lower()} coflows {name}", equal, len(truth), f"exact clock {gap:.4f}")


def classic(data: Path) -> None:
    cache: dict[str, Any] = {}
    for row in rows(data / "classic_means.csv"):
        trace = row["trace"]
        if trace not in cache:
            file, where = ("jobs_philly.csv", "") if trace == "philly" else ("jobs_itp.csv", f"cluster={trace[4:]}")
            cache[trace] = read_jobs(data / file, where)
        site = parse_site(f"gpu:{row['nodes']}x8")
        outcome = simulate(cache[trace], site, row["policy"], Options(pool=row["mode"] == "pool"))
        figures = aggregates(outcome, site.gpus)
        same = figures["start_digest"] == row["start_digest"]
        gap = figures["mean_jct_s"] - float(row["mean_jct_s"])
        say(
            f"{trace} {row['mode']} {row['policy']}",
            len(outcome.jobs) * same,
            len(outcome.jobs),
            f"mean off {gap:.3f} s",
        )


def packing(data: Path) -> None:
    nodes = read_nodes(data / "openb_nodes.csv")
    curves = rows(data / "openb_curves.csv")
    for name in sorted({row["list"] for row in curves}):
        jobs = read_jobs(data / "openb_pods.csv", f"list={name}")
        for policy in ("random", "bestfit", "dotprod", "gpupacking", "gpuclustering", "fgd"):
            figures = packing_figures(jobs, nodes, policy, 0, 10)
            truth = [
                [float(row[key]) for key in ("allocated_pct", "fragment_pct", "fragment_of_free_pct")]
                for row in curves
                if row["list"] == name and row["policy"][3:].lower() == policy and row["arrived_pct"] == "100"
            ]
            ours = [figures[key] for key in ("allocated_pct", "fragment_pct", "fragment_of_free_pct")]
            off = "" if not truth else "; off " + " ".join(f"{x:+.2f}" for x in np.array(ours) - np.mean(truth, axis=0))
            print(
                f"openb {name:11} {policy:14} at 100 % arrived: " + " ".join(f"{x:.2f}" for x in ours) + off, flush=True
            )


def main() -> None:
    data = Path(sys.argv[1])
    began = time.process_time()
    adaptdl(data, ("tiresias", "optimus"), "exact" in sys.argv)
    elasticflow(data)
    coflows(data)
    classic(data)
    packing(data)
    if "pollux" in sys.argv:
        adaptdl(data, ("pollux",), exact=False)
    print(f"{time.process_time() - began:.0f} CPU-s in all")


if __name__ == "__main__":
    main()
