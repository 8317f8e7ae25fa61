"""Own GPUs and clouds on a real trace: the four strategies, mixtures of cost and time, Starburst's patience, and spot.

    python validation/fleet/hybrid.py DATA

DATA: a folder with jobs_itp.csv. Labels, data and where they lie are drawn by a seed (the trace has none): 50 %
public, 30 % internal, 20 % private; 1 to 1,000 GB; 70 % own, 20 % east, 10 % partner. Prices are round ones of our own.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

from windtunnel.studies.fleet.hybrid.clouds import read_clouds
from windtunnel.studies.fleet.hybrid.plan import plan
from windtunnel.studies.fleet.hybrid.run import figures_of, hybrid_jobs, roaming
from windtunnel.studies.fleet.hybrid.starburst import starburst
from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.policies.beyond.hybrid import STRATEGIES, Weights

OWN_GPUS = 128
SITE = """
gpu: a100
gpus: 128
price_per_gpu_hour: 1.1
privacy: private
pools:
  - {name: east, price_per_gpu_hour: 3.4, egress_per_gb: 0.09, bandwidth: 5 Gb/s, startup: 3 min}
  - {name: partner, gpus: 64, price_per_gpu_hour: 1.9, egress_per_gb: 0.02, privacy: internal}
  - {name: spot-a, price_per_gpu_hour: 1.2, egress_per_gb: 0.09, spot: {up: 5 h, down: 30 min}}
  - {name: spot-b, price_per_gpu_hour: 1.4, egress_per_gb: 0.09, spot: {up: 9 h, down: 60 min}}
"""


def main(data: Path) -> None:
    file = Path("hybrid-site.yaml")
    file.write_text(SITE)
    jobs = read_jobs(data / "jobs_itp.csv", "cluster=03")
    draw = random.Random(1)
    jobs = replace(
        jobs,
        columns={
            "privacy": draw.choices(("public", "internal", "private"), (0.5, 0.3, 0.2), k=len(jobs)),
            "data_gb": draw.choices(("1", "10", "100", "1000"), k=len(jobs)),
            "data_at": draw.choices(("own", "east", "partner"), (0.7, 0.2, 0.1), k=len(jobs)),
        },
    )
    clouds = read_clouds(file, OWN_GPUS)
    file.unlink()
    work = hybrid_jobs(jobs, clouds)
    fits = [job for job in work if job.gpus <= OWN_GPUS]

    def say(name, placed):
        there = [(job, each) for job, each in zip(fits, placed, strict=True) if each is not None]
        jct_s = sum(each.end_s - job.submit_s for job, each in there) / len(there)
        figures = figures_of(placed, fits, clouds)
        hours = {pool: round(value) for pool, value in figures["gpu_hours_by_pool"].items()}
        print(
            f"{name:22} cost {figures['cost']:9,.0f}  JCT {jct_s / 3600:7.2f} h  moved {figures['moved_gb']:9,.0f} GB"
            f"  secret {figures['secret_gb']:7,.0f} GB  outside {figures['outside_jobs']:5}"
            f"  private outside {figures['private_outside']}  {hours}",
            flush=True,
        )

    for name, weights in STRATEGIES.items():
        say(name, plan(fits, clouds, weights))
    for hour in (1.0, 3.0, 10.0, 30.0, 100.0):  # what an hour of a job is worth
        say(f"an hour worth {hour:g}", plan(fits, clouds, Weights(cost=1.0, end=hour / 3600)))
    for factor in (0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 16.0):
        say(f"starburst {factor:g} x run", starburst(fits, replace(clouds, per="runtime", factor=factor)))
    for factor in (0.02, 0.1, 0.5):
        say(f"starburst {factor:g} x cost", starburst(fits, replace(clouds, per="cost", factor=factor)))
    say("spot", roaming(fits, clouds, 0))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
