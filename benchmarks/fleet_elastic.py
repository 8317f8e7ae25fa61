"""Speed of the elastic policies, jobs per CPU-second on one core: ElasticFlow beside the same code uncompiled; Pollux.

In the published simulators' clocks (`validation/oracles`), and on the product's.

python benchmarks/fleet_elastic.py [DATA]

Without DATA: made-up jobs on 64 GPUs. With the folder of pollux_*.csv and ef_*.csv also the traces there.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "validation"))
from oracles.elasticflow import elasticflow
from oracles.elasticflow.state import EfJob
from oracles.run import in_adaptdl, in_elasticflow

from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site
from windtunnel.studies.fleet.speeds.tables import Tables

ONLY = "WINDTUNNEL_BENCHMARK_UNCOMPILED"  # set where numba is switched off


def made_up(count: int) -> list[EfJob]:
    random = np.random.default_rng(1)
    jobs, submit = [], 0
    for at in range(count):
        submit += int(random.exponential(700))
        largest = int(random.choice([4, 8, 16, 32]))
        rates = {level: level ** random.uniform(0.7, 0.95) for level in (1, 2, 4, 8, 16, 32) if level <= largest}
        work_s = int(random.lognormal(9.5, 1)) + 60
        deadline = submit + int(work_s * random.uniform(0.3, 1.5))
        jobs.append(EfJob(at, submit, work_s, 1, deadline, rates, largest, float(work_s)))
    return jobs


def jobs_per_s(count: int, run: Callable[[], object], times: int) -> float:
    spent = []
    for _ in range(times):
        began = time.process_time()
        run()
        spent.append(time.process_time() - began)
    return count / min(spent)


def elasticflow_speed(together: bool, count: int, times: int) -> float:
    return jobs_per_s(count, lambda: elasticflow.run(made_up(count), 16, 4, 60, together=together), times)


def main() -> None:
    if os.environ.get(ONLY):
        print(elasticflow_speed(os.environ[ONLY] == "artifact", 60, 1))
        return
    for name, together in (("artifact", True), ("paper", False)):
        elasticflow_speed(together, 20, 1)  # compiled
        fast = elasticflow_speed(together, 300, 3)
        environment = os.environ | {ONLY: name, "NUMBA_DISABLE_JIT": "1"}
        plain = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=True)
        print(f"elasticflow ({name}) made-up jobs: {fast:,.0f} jobs/s, {fast / float(plain.stdout):.0f} x uncompiled")
    if len(sys.argv) < 2:
        return
    data = Path(sys.argv[1])
    tables = Tables(data)
    runs = (
        ("elasticflow", "ef_traces.csv", "setting=fig8a", "t4:64", 3),
        ("elasticflow", "ef_traces.csv", "setting=fig10", "a100:128", 3),
        ("pollux", "pollux_workloads.csv", "workload=1,load=1.0", "t4:64", 3),
        ("pollux", "pollux_workloads.csv", "workload=2,load=2.0", "t4:64", 3),
        ("pollux exact", "pollux_workloads.csv", "workload=1,load=1.0", "t4:64", 3),
        ("elasticflow exact", "ef_traces.csv", "setting=fig8a", "t4:64", 3),
    )
    for name, file, where, cluster, times in runs:
        jobs, site = read_jobs(data / file, where), parse_site(cluster)
        policy, _, exact = name.partition(" ")
        published = in_adaptdl if policy == "pollux" else in_elasticflow

        def run(jobs=jobs, site=site, policy=policy, exact=exact, published=published) -> object:  # type: ignore[no-untyped-def]
            return simulate(jobs, site, policy, Options(tables)) if exact else published(jobs, site, policy, tables)

        run()  # compiled
        print(f"{name} {where}: {jobs_per_s(len(jobs), run, times):,.0f} jobs/s, {len(jobs)} jobs", flush=True)


if __name__ == "__main__":
    main()
