"""What became of each job, and the figures that a fleet is judged by: one definition each.

jct                     last end - submission, of completed jobs
queueing_delay          first start - submission, of jobs that started; total_wait adds later waits (JCT - time held)
deadline_met_by_log     real end <= deadline, over all submitted jobs that have one
deadline_met_scored     the same by an estimated end without slot rounding and overhead (rejected = missed), where a
                        clock makes one; the published figures of ElasticFlow are such scores
failed, cancelled       ran as long as the trace says and ended as it says; they hold GPUs, and have no jct
utilisation             GPU-seconds leased over the integral of the capacity from first submission to last end
finish_time_fairness    JCT over the time alone on 1/N of the cluster, N the jobs in the system on average
log_wait_error          mean wait over that of the log's own starts, less 1; log_start_error_p50_s: half are nearer
littles_law_residual    |mean jobs in the system - arrival rate x mean JCT| over the former
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.fleet.jobs.trace import Jobs

if TYPE_CHECKING:
    import os


Floats = NDArray[np.float64]
COMPLETED, REJECTED, UNFINISHED, IMPOSSIBLE, DROPPED = "completed", "rejected", "unfinished", "impossible", "dropped"
FAILED, CANCELLED = "failed", "cancelled"
COMPLETED_AT, UNFINISHED_AT = 0, 2  # in STATES
ON_FLAVOR = "gpu_hours_on_"  # and a flavor of Kueue: of jobs that ran on it last
STATES = (COMPLETED, REJECTED, UNFINISHED, IMPOSSIBLE, DROPPED, FAILED, CANCELLED)


class Reason(enum.Enum):
    """Why a job was left out; the value is the state that it then has."""

    TOO_LARGE = IMPOSSIBLE  # for the GPUs that there are, or for their memory
    NEVER_STARTED = CANCELLED
    SAYS_TOO_LITTLE = DROPPED


@dataclass(frozen=True, slots=True)
class Dropped:
    """A job that was left out, and why."""

    job: int
    reason: Reason
    words: str


@dataclass(frozen=True, eq=False)
class Outcome:
    """One policy's run over a trace, by job in the order of the trace. NaN: never."""

    jobs: Jobs
    policy: str
    clock: str
    start_s: Floats
    end_s: Floats
    restarts: NDArray[np.int64]
    gpu_seconds: Floats
    state: NDArray[np.int8]  # index in STATES
    scored_on_time: NDArray[np.bool_] | None = None
    node: NDArray[np.int64] | None = None  # one of its nodes, for pictures; -1 where unknown
    extra: dict[str, Any] | None = None  # further aggregates of a policy
    dropped: tuple[Dropped, ...] = ()  # jobs that were left out

    @property
    def why(self) -> dict[int, str]:
        """Why jobs were left out, in words, by job."""
        return {each.job: each.words for each in self.dropped}

    def of_state(self, state: str) -> NDArray[np.int64]:
        """Jobs in a state."""
        return np.flatnonzero(self.state == STATES.index(state))

    def ended_jobs(self) -> NDArray[np.int64]:
        """Jobs that came to an end, whichever, or to the end of the log that they are from."""
        ended = [STATES.index(state) for state in (COMPLETED, FAILED, CANCELLED, UNFINISHED)]
        return np.flatnonzero(np.isin(self.state, ended) & ~np.isnan(self.end_s))

    @property
    def jct_s(self) -> Floats:
        """End - submission, NaN for jobs that did not complete."""
        return np.where(self.state == 0, self.end_s - self.jobs.submit_s, np.nan)


class Ran(Protocol):
    """What a clock that counts nanoseconds knows of a job."""

    start_ns: int | None
    end_ns: int | None
    restarts: int
    gpu_ns: int


def outcome_of_runs(
    jobs: Jobs, policy: str, ran: Sequence[Ran], states: Sequence[str], extra: dict[str, Any] | None = None
) -> Outcome:
    """The table of a run of the exact clock; `states`: one of STATES for each job."""

    def seconds(times_ns: Iterable[int | None]) -> Floats:
        return np.array([np.nan if time_ns is None else time_ns / 1e9 for time_ns in times_ns])

    return Outcome(
        jobs,
        policy,
        "exact",
        seconds(job.start_ns for job in ran),
        seconds(job.end_ns for job in ran),
        np.array([job.restarts for job in ran], np.int64),
        seconds(job.gpu_ns for job in ran),
        np.array([STATES.index(state) for state in states], np.int8),
        extra=extra,
    )


def against_text(error: float) -> str:
    """`log_wait_error` in words: in per cent, or as a factor where the wait is beyond ten times the log's."""
    return f"{1 + error:,.0f} x the log's" if error > 9 else f"{error:+.0%}"


def aggregates(outcome: Outcome, capacity: int) -> dict[str, Any]:
    """The figures, by name. None where a figure has no meaning."""
    jobs = outcome.jobs
    done = outcome.of_state(COMPLETED)
    started = np.flatnonzero(~np.isnan(outcome.start_s))
    jct = outcome.jct_s[done]
    delay = outcome.start_s[started] - jobs.submit_s[started]
    result: dict[str, object] = {
        "policy": outcome.policy,
        "clock": outcome.clock,
        "jobs": len(jobs),
        **{f"{state}_jobs": len(outcome.of_state(state)) for state in STATES},
        **_spread("jct", jct),
        **_spread("queueing_delay", delay),
        "restarts": int(outcome.restarts.sum()),
        "gpu_seconds": _rounded(float(np.nansum(outcome.gpu_seconds))),
    }
    result["jobs_completed"] = result["completed_jobs"]
    result["mean_jct_s"], result["mean_wait_s"] = result["jct_mean_s"], result["queueing_delay_mean_s"]
    held_s = np.divide(outcome.gpu_seconds, jobs.gpus_asked, out=np.zeros(len(jobs)), where=jobs.gpus > 0)[done]
    rigid = not np.isnan(jobs.duration_s[done]).any()
    result["total_wait_mean_s"] = _mean(np.maximum(jct - held_s, 0)) if rigid else None
    ran = outcome.ended_jobs()
    if len(ran):
        stay = (outcome.end_s - jobs.submit_s)[ran]
        first, last = float(jobs.submit_s.min()), float(outcome.end_s[ran].max())
        span = max(last - first, 1e-9)
        result["last_end_s"] = _rounded(last)
        result["makespan_s"] = _rounded(span)
        whole = (outcome.extra or {}).get("capacity_gpu_hours")  # where nodes come and go
        offered = capacity * span if whole is None else whole * 3600.0
        used = float(np.nansum(outcome.gpu_seconds[ran]))
        result["utilisation"] = _rounded(used / offered) if offered > 0 else None
        ended = np.zeros(len(jobs), bool)
        ended[ran] = True
        ends = np.where(ended, outcome.end_s, last)
        there = ended | (outcome.state == UNFINISHED_AT)
        inside = float((np.minimum(ends, last) - jobs.submit_s)[there].clip(0).sum()) / span
        arrivals = int(there.sum()) / span
        result["jobs_in_system_mean"] = _rounded(inside)
        result["littles_law_residual"] = _rounded(abs(inside - arrivals * float(stay.mean())) / max(inside, 1e-12))
        result.update(_fairness(outcome, done, max(inside, 1.0), capacity))
        starts = outcome.start_s[ran] if len(ran) == len(jobs) else outcome.start_s[~np.isnan(outcome.start_s)]
        text = ",".join(str(round(start)) for start in starts.tolist())
        result["start_digest"] = hashlib.sha256(text.encode()).hexdigest()[:16]
    with_deadline = np.flatnonzero(~np.isnan(jobs.deadline_s))
    if len(with_deadline):
        in_time = (outcome.state[with_deadline] == 0) & (outcome.end_s[with_deadline] <= jobs.deadline_s[with_deadline])
        result["deadline_met_by_log"] = _rounded(float(in_time.mean()))
        scored = outcome.scored_on_time
        result["deadline_met_scored"] = (
            _rounded(float(scored[with_deadline].mean())) if scored is not None else result["deadline_met_by_log"]
        )
    return {**result, **(outcome.extra or {})}


def by_policy(figures: Sequence[dict[str, object]]) -> dict[str, object]:
    """Figures by policy, and those of a single policy at the top too."""
    only = figures[0] if len(figures) == 1 else {}
    return {**only, "policies": {figure["policy"]: figure for figure in figures}}


def against_log(outcome: Outcome) -> dict[str, object]:
    """How far a policy's starts are from those of the log; empty where the log tells too few, or it is the log."""
    jobs = outcome.jobs
    started = np.flatnonzero(~np.isnan(jobs.start_s) & ~np.isnan(outcome.start_s))
    if outcome.policy == "current" or 2 * len(started) < len(jobs):
        return {}
    waited = (jobs.start_s - jobs.submit_s)[started]
    off = (outcome.start_s - jobs.start_s)[started]
    return {
        "log_wait_mean_s": _mean(waited),
        "log_wait_error": _rounded(float(off.mean() / waited.mean())) if waited.mean() > 0 else None,
        "log_start_error_p50_s": _rounded(float(np.median(np.abs(off)))),
    }


def _fairness(outcome: Outcome, done: NDArray[np.int64], jobs_at_once: float, capacity: int) -> dict[str, object]:
    """Finish-time fairness and Jain's index, for jobs whose duration on their GPUs is known."""
    duration, gpus = outcome.jobs.duration_s[done], outcome.jobs.gpus_asked[done]
    comparable = (duration > 0) & (gpus > 0)
    if not comparable.any():
        return {"finish_time_fairness_mean": None, "finish_time_fairness_max": None, "jain_index": None}
    share = np.maximum(capacity / jobs_at_once, 1.0)
    alone = duration[comparable] * np.maximum(gpus[comparable] / share, 1.0)
    ratio = outcome.jct_s[done][comparable] / alone
    speed = 1 / np.maximum(ratio, 1e-12)
    jain = float(speed.sum()) ** 2 / (len(speed) * float((speed**2).sum()))
    return {
        "finish_time_fairness_mean": _rounded(float(ratio.mean())),
        "finish_time_fairness_max": _rounded(float(ratio.max())),
        "jain_index": _rounded(jain),
    }


def _spread(name: str, values: Floats) -> dict[str, float | None]:
    if not len(values):
        return {f"{name}_{part}_s": None for part in ("mean", "p50", "p90", "p99", "max")}
    parts = np.percentile(values, (50, 90, 99, 100))
    percentiles = dict(zip(("p50", "p90", "p99", "max"), parts.tolist(), strict=True))
    return {
        f"{name}_mean_s": _mean(values),
        **{f"{name}_{part}_s": _rounded(value) for part, value in percentiles.items()},
    }


def _mean(values: Floats) -> float | None:
    return _rounded(float(values.mean())) if len(values) else None


def _rounded(value: float) -> float:
    return round(value, 6)


def write_jobs(outcomes: list[Outcome], path: str | os.PathLike[str]) -> None:
    """`job,queue,priority,gpus,submit_s,start_s,end_s,jct_s,restarts,gpu_seconds,state`, `policy` first if several.

    CSV, or Parquet by its suffix. What happened (`current`) has the log's own word for the state where it has one.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pq

    parts = []
    for outcome in outcomes:
        columns: dict[str, object] = (
            {"policy": pa.array([outcome.policy] * len(outcome.jobs))} if len(outcomes) > 1 else {}
        )
        jobs = outcome.jobs
        columns["job"] = pa.array(list(jobs.name), pa.string())
        for name in ("queue", "priority"):
            columns[name] = pa.array(list(jobs.columns.get(name, [""] * len(jobs))), pa.string())
        columns["gpus"] = pa.array(jobs.gpus_asked)
        for name, values in (
            ("submit_s", outcome.jobs.submit_s),
            ("start_s", outcome.start_s),
            ("end_s", outcome.end_s),
            ("jct_s", outcome.jct_s),
        ):
            columns[name] = _times(values)
        columns["restarts"] = pa.array(outcome.restarts)
        columns["gpu_seconds"] = _times(outcome.gpu_seconds)
        states = pa.array(list(STATES))
        state = pa.DictionaryArray.from_arrays(pa.array(outcome.state), states).cast(pa.string())
        in_log = jobs.columns.get("log_state") if outcome.policy == "current" else None
        columns["state"] = state if in_log is None else pa.array([word.lower() for word in in_log], pa.string())
        parts.append(pa.table(columns))
    table = pa.concat_tables(parts, promote_options="permissive")
    if str(path).lower().endswith((".parquet", ".pq")):
        pq.write_table(table, path)
        return
    with open(path, "wb") as file:
        file.write((",".join(table.column_names) + "\n").encode())
        jobs = outcomes[0].jobs
        texts = (jobs.name, *(jobs.columns.get(name, ()) for name in ("queue", "priority")))
        plain = not any(set(',"\r\n') & set(text) for column in texts for text in column)
        options = pa_csv.WriteOptions(include_header=False, quoting_style="none" if plain else "needed")
        pa_csv.write_csv(table, file, options)


def _times(values: Floats) -> object:
    """Whole seconds as whole numbers, where all are; empty where there is none."""
    import pyarrow as pa

    missing = np.isnan(values)
    filled = np.where(missing, 0.0, values)
    if (filled == np.rint(filled)).all() and (np.abs(filled) < 2**53).all():
        return pa.array(filled.astype(np.int64), mask=missing)
    return pa.array(np.round(filled, 6), mask=missing)
