"""Starts of real jobs on a real Slurm against the policies here, from its `jobcomp/filetxt` log.

    python validation/fleet/slurm_replay.py JOBS.txt NODES [--free-after 1] [--policies slurm,easy,fifo]

Each job holds whole nodes. Printed for each policy: mean wait and its error, the median and mean error of a job's wait
in seconds, jobs within 3 s, and the rank correlation of waits.
"""

from __future__ import annotations

import argparse
import csv
import re
import tempfile
from datetime import datetime
from pathlib import Path

import numpy as np

from windtunnel.studies.fleet.jobs.read import read_jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.policies.own import policy_of_text
from windtunnel.studies.fleet.run import simulate
from windtunnel.studies.fleet.site import parse_site

CELL = re.compile(r"(\w+)=(\S*)")
EXACT = "policy: slurm\nname: slurm\nbackfill_interval_s: 1\nresolution_s: 1\n"  # as the box was configured


def table(log: Path) -> list[dict[str, object]]:
    """Rows of our layout; a job that ended in its own second took half of one."""
    rows = []
    for line in log.read_text().splitlines():
        cells = dict(CELL.findall(line))
        submit, start, end = (
            datetime.fromisoformat(cells[f"{key}Time"]).timestamp() for key in ("Submit", "Start", "End")
        )
        job = int(cells["JobId"])
        rows.append(
            {
                "job": job,
                "submit_s": submit + job * 1e-3,  # order within a second
                "start_s": start,
                "duration_s": max(end - start, 0.5),
                "gpus": int(cells["NodeCnt"]),
                "limit_s": 60 * int(cells["TimeLimit"]) if cells["TimeLimit"].isdigit() else "",
            }
        )
    return sorted(rows, key=lambda row: row["job"])


def main() -> None:
    """Print a line for each policy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("nodes", type=int)
    parser.add_argument("--free-after", type=float, default=1.0)
    parser.add_argument("--policies", default="slurm,easy,fifo,fifo-skip,srtf")
    given = parser.parse_args()
    rows = table(given.log)
    with tempfile.TemporaryDirectory() as folder:
        trace, policy = Path(folder, "jobs.csv"), Path(folder, "slurm.yaml")
        with trace.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        policy.write_text(EXACT)
        jobs, site = read_jobs(trace), parse_site(f"node:{given.nodes}x1")
        real = np.round(jobs.start_s - np.floor(jobs.submit_s))
        print(f"{len(jobs)} jobs; real mean wait {real.mean():.1f} s")
        for name in given.policies.split(","):
            asked = policy_of_text(str(policy)) if name == "slurm" else name
            outcome = simulate(jobs, site, asked, Options(restart_s=given.free_after))
            wait = outcome.start_s - jobs.submit_s
            error = np.abs(wait - real)
            ranks = [np.argsort(np.argsort(each, kind="stable"), kind="stable") for each in (wait, real)]
            off = wait.mean() / real.mean() - 1
            print(
                f"{name:10s} mean wait {wait.mean():5.1f} s ({off:+.0%}); a job's error: median "
                f"{np.median(error):4.1f} s, mean {error.mean():4.1f} s; within 3 s {np.mean(error <= 3):.0%}; rank "
                f"{np.corrcoef(*ranks)[0, 1]:.2f}"
            )


if __name__ == "__main__":
    main()
