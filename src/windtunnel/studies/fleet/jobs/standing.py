"""A log as it stands where it ends: the jobs that run and those that wait, for a question about one that waits.

Nobody knows how long these will run. They are taken for the share of their time limits that the log's finished jobs
took (the median; all of it where fewer than 20 say so), those that are past it for their whole limit, and those that
run without a limit for twice as long as so far. What runs came when it started, what waits comes now, in the order in
which it came.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.units import format_many

FINISHED_LEAST = 20  # jobs whose run times say what share of a limit is used


def as_it_stands(jobs: Jobs, job: str) -> tuple[Jobs, tuple[str, ...]]:
    """The jobs that run and wait where the log ends, and what was assumed; all of them where `job` does not wait."""
    ended = np.array(jobs.columns.get("ended", [""] * len(jobs)))
    waits = (ended == "unfinished") & np.isnan(jobs.start_s)
    if job not in {jobs.name[at] for at in np.flatnonzero(waits).tolist()}:
        return jobs, ()
    runs = (ended == "unfinished") & ~np.isnan(jobs.start_s)
    limit, so_far_s = jobs.further("limit_s"), np.nan_to_num(jobs.duration_s)
    past = np.concatenate([jobs.submit_s, (jobs.start_s + so_far_s)[~np.isnan(jobs.start_s)]])
    now_s = float(past.max())
    # squeue may not say how long.
    so_far_s = np.where(runs, np.where(so_far_s > 0, so_far_s, now_s - jobs.start_s), 0.0)
    finished = (ended != "unfinished") & (jobs.duration_s > 0) & (limit > 0)
    share = float(np.median((jobs.duration_s / limit)[finished])) if finished.sum() >= FINISHED_LEAST else 1.0
    lasts = np.where(np.isnan(limit), np.where(runs, 2 * so_far_s, np.nan), share * limit)
    lasts = np.where(runs & (lasts <= so_far_s), np.fmax(limit, so_far_s), lasts)
    order = np.flatnonzero(runs | waits)
    order = order[np.argsort(jobs.submit_s[order], kind="stable")]
    columns = {key: values for key, values in jobs.columns.items() if key != "eligible_s"}
    columns["ended"] = [""] * len(jobs)
    standing = replace(
        jobs, duration_s=lasts, submit_s=np.where(runs, jobs.start_s, now_s), start_s=jobs.start_s, columns=columns
    ).take(order)
    counts = f"{int(runs.sum()):,} running and {format_many(int(waits.sum()), 'waiting job')}"
    source = "the median of its finished jobs" if share < 1.0 or finished.sum() >= FINISHED_LEAST else "an upper bound"
    notes = [f"as the log ends: {counts}, each for {share:.0%} of its time limit ({source}); waits are from then on"]
    endless = int((runs & np.isnan(limit)).sum())
    if endless:
        notes.append(f"{format_many(endless, 'job')} of no time limit: for twice as long as so far")
    return standing, tuple(notes)
