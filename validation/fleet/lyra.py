"""Lyra against the same scheduler with neither loaning nor scaling, on real traces, with serving measured.

    python validation/fleet/lyra.py DATA

DATA: a folder with jobs_itp.csv, jobs_philly.csv and synthetic.py, whose `serving` is the daily wave of a pool's
demand. The pool is 520/443 of the training servers, as in Lyra's paper, on the same GPUs; 5 % of jobs can use twice
their GPUs, in proportion. Each line: one policy on one site; then gains over `lyra-none`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.loans.frontier import frontier
from windtunnel.studies.fleet.loans.pool_file import loans_of
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import aggregates
from windtunnel.studies.fleet.policies.table import names_of
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site

SITES = (
    ("jobs_itp.csv", "cluster=03", 22),
    ("jobs_itp.csv", "cluster=03", 16),
    ("jobs_itp.csv", "cluster=03", 12),
    ("jobs_itp.csv", "cluster=01", 9),
    ("jobs_philly.csv", "", 64),
    ("jobs_philly.csv", "", 44),
)
POOL = """
model: llama-3.1-8b
gpu: h100-sxm
servers: {servers}
requests: {{prompt: 1024, output: 256, length_ratio: 0.5, stream: demand.csv}}
slo: {{ttft: 1 s, tpot: 30 ms}}
lend: {{headroom: {headroom}}}
"""


def main(data: Path, headroom: float = 0.05) -> None:
    sys.path.insert(0, str(data))
    from synthetic import serving

    for trace, where, nodes in SITES:
        jobs, site = read_jobs(data / trace, where), parse_site(f"a100:{nodes}x8")
        servers = round(nodes * 520 / 443)
        with tempfile.TemporaryDirectory() as folder:
            lines = [f"{time_s},{needed}" for time_s, needed in serving(1, servers)]
            (Path(folder) / "demand.csv").write_text("time_s,servers_needed\n" + "\n".join(lines) + "\n")
            file = Path(folder) / "pool.yaml"
            file.write_text(POOL.format(servers=servers, headroom=headroom))
            loans = loans_of(file, 0.05, 0)
        options = Options(loans=loans)
        load = float((jobs.gpus * jobs.duration_s).sum()) / (
            site.gpus * float(jobs.submit_s.max() - jobs.submit_s.min())
        )
        print(f"{trace} {where}: {nodes} servers, {servers} of the pool, offered load {load:.2f}")
        base = {}
        for name in names_of(lambda traits: traits.loop == "loans"):
            began = time.process_time()
            figures = aggregates(simulate(jobs, site, name, options), site.gpus)
            spent = time.process_time() - began
            base = base or figures
            gains = (
                f"queueing {base['queueing_delay_mean_s'] / figures['queueing_delay_mean_s']:.2f} x, "
                f"JCT {base['jct_mean_s'] / figures['jct_mean_s']:.2f} x, "
                f"use of own {figures['use_of_own'] / base['use_of_own'] - 1:+.1%}, "
                f"of all {figures['use_of_all'] / base['use_of_all'] - 1:+.1%}"
            )
            print(
                f"  {name:13} queueing {figures['queueing_delay_mean_s']:9,.0f} s, JCT {figures['jct_mean_s']:9,.0f} s"
                f"; {gains}; stopped {figures['preemptions']}, lost {figures['preempted_gpu_hours']:,.0f} GPU-h; "
                f"late {figures['loan_violations']:.4%} (alone {figures['loan_violations_alone']:.4%}); "
                f"{len(jobs) / spent:,.0f} jobs/CPU-s",
                flush=True,
            )
        if (trace, nodes) == ("jobs_itp.csv", 22):
            for point in frontier(jobs, site, replace(options)):
                print("  frontier", {key: round(value, 5) for key, value in point.items()}, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(float(text) for text in sys.argv[2:]))
