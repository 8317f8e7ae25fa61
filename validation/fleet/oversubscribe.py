"""Over-subscription on three days of a real trace: use of machines and the p95 of the service beside, by contention.

    python validation/fleet/oversubscribe.py DATA [machines]

DATA: a folder with jobs_philly.csv. Each machine of 8 GPUs holds a service that requests half of it; usage is not in
the trace and wanders as `fleet/oversubscribe/machines.py` says. p95 is over that of `requested` on the same draws.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.oversubscribe.machines import Beside
from windtunnel.studies.fleet.oversubscribe.run import RULES, simulated
from windtunnel.studies.fleet.site import parse_site

FROM_S, TO_S = 2_000_000, 2_260_000


def main(data: Path, machines: int = 8) -> None:
    jobs = read_jobs(data / "jobs_philly.csv")
    jobs = jobs.take(np.flatnonzero((jobs.submit_s > FROM_S) & (jobs.submit_s < TO_S) & (jobs.gpus <= 4)))
    site = parse_site(f"v100:{machines}x8")
    calm, rough = Beside(), Beside(spread=0.5, wave=0.8, service_use=0.6)  # rough: use swings far and fast
    cases = [("calm", calm, 30.0, name) for name in RULES]
    cases += [("calm", replace(calm, contention=k), 30.0, name) for k in (0.05, 0.3) for name in RULES]
    cases += [("calm, seen late", calm, staleness_s, "rose-qos") for staleness_s in (0.0, 60.0)]
    cases += [("rough", rough, 30.0, name) for name in RULES]
    plain = 1.0
    for world, beside, staleness_s, name in cases:
        began = time.process_time()
        rules = replace(RULES[name], staleness_s=staleness_s)
        tasks, tally = simulated(jobs, site, rules, beside, 0)
        if name == "requested":
            plain = tally.p95()
        jct_h = float(np.mean([(task.end_s or np.nan) - task.submit_s for task in tasks])) / 3600
        wait_h = float(np.mean([(task.start_s or np.nan) - task.submit_s for task in tasks])) / 3600
        print(
            f"{world:15} contention {beside.contention:.2f} staleness {staleness_s:2.0f} s {name:9}"
            f" use {tally.used / tally.steps:.3f}"
            f"  requested {tally.requested / tally.steps:.3f}  p95 {tally.p95() / plain:.4f} x  JCT {jct_h:7.2f} h"
            f"  wait {wait_h:7.2f} h  evicted {tally.evicted}  moved {tally.moved}  memory {tally.killed}"
            f"  lost {tally.lost_s * 8 / 3600:.1f} GPU-h  {len(tasks) / (time.process_time() - began):.0f} jobs/CPU-s",
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(text) for text in sys.argv[2:]))
