"""When one job of a trace will start and end, how sure that is, and why it waits: as known when it is submitted.

From the state of the cluster at that moment the trace goes on once per seed: run times are lognormal around the traced
ones, ln-spread `spread`, given that they are longer than what is done. What is assumed: docs/fleet.md.

Queues (`policies/rigid/queues.py`) go on from a trace of what runs, what waits, and what comes; nodes of what runs are
chosen again in the order of the starts. The loop of the exact clock is stopped, copied and goes on as it is.
"""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError, UserError
from windtunnel.questions.asked.fleet.further import FleetWhen
from windtunnel.questions.header import Answer
from windtunnel.studies.fleet.asked import as_asked, options_of, refuse_files
from windtunnel.studies.fleet.changed import as_changed
from windtunnel.studies.fleet.clock.clock import Clock
from windtunnel.studies.fleet.clock.running import NS
from windtunnel.studies.fleet.jobs.standing import as_it_stands
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import COMPLETED, STATES, Outcome
from windtunnel.studies.fleet.parts.part import rows_of_whole_gpus
from windtunnel.studies.fleet.parts.profile import cuts_of
from windtunnel.studies.fleet.policies.table import POLICIES, names_of, on_clock, plain_name
from windtunnel.studies.fleet.run import as_counted, simulate
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.speeds.predicted import with_predictions
from windtunnel.units import format_many

SPREAD = 0.3
DRAWS = 40
LOOK_S = 3600.0  # after its submission that the loop runs at first, and twice as far each time
BAND = (5.0, 50.0, 95.0)  # percentiles
NORMAL = NormalDist()
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Holder:
    """A job that has GPUs which another one waits for."""

    job: str
    gpus: int
    end_s: float | None


@dataclass(frozen=True)
class Why:
    """What keeps a job waiting at its submission, in the run as traced."""

    text: str
    free_gpus: int
    ahead: tuple[str, ...]  # submitted no later, waiting too, and started before it
    overtaking: tuple[str, ...]  # submitted later, and started before it
    holders: tuple[Holder, ...]  # by their end
    freed_by: tuple[str, ...]  # that ended or stopped at the moment when it starts, by the run's account of ends


@dataclass(frozen=True)
class When:
    """The answer. Seconds of the trace; a band is (5, 50, 95 %) over the draws in which the job got so far."""

    job: str
    policy: str
    gpus: int
    submit_s: float
    state: str
    start_s: float | None
    end_s: float | None
    start_band_s: tuple[float, ...] | None
    wait_band_s: tuple[float, ...] | None
    end_band_s: tuple[float, ...] | None
    draws: int
    ended_draws: int
    spread: float
    uncertainty: str
    why: Why

    def to_dict(self) -> dict[str, object]:
        """The answer as JSON-able data."""
        return asdict(self)


def when(
    jobs: Jobs, site: Site, policy: str, options: Options, job: str, *, draws: int = DRAWS, spread: float = SPREAD
) -> When:
    """When `job` starts and ends under a policy of the exact clock.

    Raises SpecError for a job that is not there, and UserError for one that cannot run or says no run time.
    """
    policy = plain_name(policy)
    _check(options, policy, draws, spread)
    whole = rows_of_whole_gpus(jobs, _row(jobs, job))
    parts = len(jobs) - len(whole)
    jobs = jobs.take(np.array(whole, np.int64))
    at = _row(jobs, job)
    run = simulate(jobs, site, policy, options)
    if at in run.why:
        raise UserError(f"job {job} ({jobs.where(at)}) cannot run: it {run.why[at]}")
    if math.isnan(jobs.duration_s[at]) and math.isnan(jobs.iterations[at]):
        raise UserError(f"{jobs.where(at)}: job {job} says no duration_s and no iterations: a run time is needed")
    asked_s = float(jobs.submit_s[at])
    left_out = run.why
    keep = np.array([row for row in range(len(jobs)) if row not in left_out], np.int64)
    runnable, here = jobs.take(keep), int(np.searchsorted(keep, at))
    so_far, once = None, None
    if POLICIES[policy].compiled:
        share = np.clip((asked_s - run.start_s[keep]) / np.maximum(runnable.duration_s, 1e-9), 0.0, 1.0)
        state = _at_moment(runnable, run.start_s[keep], share, asked_s, here)
    else:
        from windtunnel.studies.fleet.clock.on_clock import clock_of

        counted, nodes = as_counted(runnable, site, POLICIES[policy])
        once = clock_of(counted, nodes, POLICIES[policy], options)
        once.run(round(asked_s * NS))
        so_far = np.zeros(len(jobs), np.int64)
        so_far[keep] = [sum(each.counts) // nodes.unit for each in once.jobs]
        share = np.array([each.share_done for each in once.jobs])
    starts, ends = [], []
    for seed in range(draws):
        random = np.random.default_rng((options.seed, seed))
        if once is None:
            rows, jobs_then, target = state
            resampled = drawn_jobs(jobs_then, share[rows], spread, random)
            part = simulate(resampled, site, policy, options)
            start_s, end_s = float(part.start_s[target]), float(part.end_s[target])
        else:
            start_s, end_s = _gone_on(once, drawn_jobs(runnable, share, spread, random), site, policy, options, here)
        starts.append(start_s)
        ends.append(end_s)
    start, end = np.array(starts), np.array(ends)
    return When(
        job=job,
        policy=run.policy,
        gpus=int(jobs.gpus[at]),
        submit_s=asked_s,
        state=STATES[int(run.state[at])],
        start_s=_rounded(run.start_s[at]),
        end_s=_rounded(run.end_s[at]),
        start_band_s=_band(start),
        wait_band_s=_band(start - asked_s),
        end_band_s=_band(end),
        draws=draws,
        ended_draws=int((~np.isnan(end)).sum()),
        spread=spread,
        uncertainty=f"run times lognormal around the trace's, spread {spread:g} of their logarithm; "
        "longer than so far for jobs that had begun when this one was submitted"
        + (f"; {parts:,} job{'s' * (parts > 1)} of parts of GPUs left out" if parts else ""),
        why=_why(run, so_far, at, site, options),
    )


def _check(options: Options, policy: str, draws: int, spread: float) -> None:
    names = names_of(on_clock)
    if policy not in names:
        raise SpecError("--policy", policy, f"this is answered for {', '.join(names)}")
    if options.restart_s is not None and POLICIES[policy].compiled:
        raise SpecError("--restart", options.restart_s, "leave it out: bands of a queue are of run times without it")
    if draws < 1:
        raise SpecError("--seeds", draws, "give at least 1")
    if not 0 <= spread < 10:
        raise SpecError("--spread", spread, "give from 0 (run times as traced) to below 10")


def _row(jobs: Jobs, job: str) -> int:
    row = next((at for at, name in enumerate(jobs.name) if name == job), None)
    if row is None:
        shown = ", ".join(list(jobs.name)[:5]) + (", ..." if len(jobs) > 5 else "")
        raise SpecError("job", job, f"{jobs.source} has no such job; it has {shown}")
    return row


def _at_moment(
    jobs: Jobs, start_s: Floats, share: Floats, asked_s: float, at: int
) -> tuple[NDArray[np.int64], Jobs, int]:
    """(rows, trace, place of the job asked about) of what a queue goes on from: what runs is submitted when it
    started, what waits is submitted now, both in the order in which they were submitted.
    """
    order = np.lexsort((np.arange(len(jobs)), jobs.submit_s))
    rows = order[(share < 1)[order] | (order == at)]
    runs = start_s[rows] < asked_s
    submit_s = np.where(runs, start_s[rows], np.maximum(jobs.submit_s[rows], asked_s))
    return rows, replace(jobs.take(rows), submit_s=submit_s), int(np.flatnonzero(rows == at)[0])


def _gone_on(clock: Clock, resampled: Jobs, site: Site, policy: str, options: Options, at: int) -> tuple[float, float]:
    """(start, end) of a job when a copy of the clock goes on with other run times; NaN: never."""
    from windtunnel.studies.fleet.clock.on_clock import exact_works

    other = deepcopy(clock)
    other.replace_works(exact_works(resampled, site, POLICIES[policy], options))
    job = other.jobs[at]
    span_ns = max(round(LOOK_S * NS), 1)
    while job.end_ns is None and not job.rejected and other.unfinished and other.queue.next_ns() is not None:
        other.run(job.submit_ns + span_ns)  # no further than the job's end
        span_ns *= 2
    return (
        math.nan if job.start_ns is None else job.start_ns / NS,
        math.nan if job.end_ns is None else job.end_ns / NS,
    )


def drawn_jobs(jobs: Jobs, share: Floats, spread: float, random: np.random.Generator) -> Jobs:
    """The trace with run times drawn anew, given how far each job has come."""
    if spread == 0:
        return jobs
    score = random.standard_normal(len(jobs))
    for at in np.flatnonzero((share > 0) & (share < 1)).tolist():
        beyond = NORMAL.cdf(-math.log(share[at]) / spread)  # chance of lasting longer than so far
        tail = beyond * (1 - random.random())
        score[at] = -NORMAL.inv_cdf(tail) if 0 < tail < 1 else math.log(share[at]) / spread
    factor = np.exp(spread * score)
    factor[share >= 1] = 1.0
    return replace(jobs, duration_s=jobs.duration_s * factor, iterations=jobs.iterations * factor)


def _band(values: Floats) -> tuple[float, ...] | None:
    finite = values[~np.isnan(values)]
    return tuple(round(float(value), 6) for value in np.percentile(finite, BAND)) if len(finite) else None


def _rounded(value: float) -> float | None:
    return None if math.isnan(value) else round(float(value), 6)


def _why(run: Outcome, so_far: NDArray[np.int64] | None, at: int, site: Site, options: Options) -> Why:
    jobs = run.jobs
    submit_s, start_s = float(jobs.submit_s[at]), float(run.start_s[at])
    started = math.inf if math.isnan(start_s) else start_s
    order = np.arange(len(jobs))
    if so_far is not None:
        gpus_of = so_far.copy()
    else:
        gpus_of = np.where((run.start_s <= submit_s) & (run.end_s > submit_s), jobs.gpus, 0)
    gpus_of[at] = 0
    before = (jobs.submit_s < submit_s) | ((jobs.submit_s == submit_s) & (order < at))
    ran_first = (run.start_s < started) | ((run.start_s == started) & before)
    waiting = (gpus_of == 0) & (run.start_s >= submit_s) & ran_first & (order != at)
    ahead = np.flatnonzero(waiting & before)
    overtaking = np.flatnonzero((jobs.submit_s >= submit_s) & ~before & (run.start_s < started) & (order != at))
    rows = np.flatnonzero(gpus_of > 0)
    rows = rows[np.argsort(run.end_s[rows], kind="stable")]
    freed = np.flatnonzero((np.abs(run.end_s - start_s) < 1e-6) & (order != at)) if start_s > submit_s else rows[:0]
    cluster = site.slurm_cluster
    gpus = site.gpus - sum(cuts_of(divided, cluster.gpu)[1] for divided in cluster.divided)
    free = gpus - int(gpus_of.sum())
    names = jobs.name
    return Why(
        text=_reason(run, at, free, len(ahead), len(rows), gpus, options),
        free_gpus=free,
        ahead=tuple(names[row] for row in ahead[np.argsort(run.start_s[ahead], kind="stable")].tolist()),
        overtaking=tuple(names[row] for row in overtaking.tolist()),
        holders=tuple(Holder(names[row], int(gpus_of[row]), _rounded(run.end_s[row])) for row in rows.tolist()),
        freed_by=tuple(names[row] for row in freed.tolist()),
    )


def _reason(run: Outcome, at: int, free: int, ahead: int, holders: int, most: int, options: Options) -> str:
    gpus = int(run.jobs.gpus[at])
    if run.state[at] == STATES.index("rejected"):
        return f"{run.policy} turns it away"
    if run.start_s[at] <= run.jobs.submit_s[at]:
        return "it does not wait: it starts when it is submitted"
    text = "1 job holds" if holders == 1 else f"{holders} jobs hold"
    idle = "1 GPU is" if free == 1 else f"{free:,} GPUs are"
    queued = f"; {ahead} wait{'s' * (ahead == 1)} ahead of it" if ahead else ""
    if free < gpus:
        return f"it asks {format_many(gpus, 'GPU')} and {free} of {most} are free, {text} the others{queued}"
    if ahead:
        return f"{idle} free and it asks {gpus}, but {ahead} wait{'s' * (ahead == 1)} ahead of it"
    if POLICIES[run.policy].compiled and not options.pool:
        return f"{idle} free, but not on nodes on which its gang of {gpus} has a place"
    if run.state[at] != STATES.index(COMPLETED) and math.isnan(run.start_s[at]):
        return f"{idle} free and it asks {gpus}, but {run.policy} never starts it"
    return f"{idle} free and it asks {gpus}: {run.policy} gives them at a later decision, or to others"


@dataclass(frozen=True, eq=False)
class WhenAnswer(Answer):
    """When a job starts and ends, by policy."""

    trace: str
    cluster: str
    when: tuple[When, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {
            "trace": self.trace,
            "cluster": self.cluster,
            "when": {when.policy: when.to_dict() for when in self.when},
        }


def answer_when(question: FleetWhen) -> WhenAnswer:
    """When one job starts and ends under each policy, and why it waits. Raises UserError."""
    question = as_changed(question)
    names, jobs, site, notes = as_asked(question)
    refuse_files(names)
    jobs, standing = as_it_stands(jobs, question.job)
    jobs, unfit = with_predictions(jobs, site)
    options = options_of(question)
    answers = tuple(
        when(jobs, site, name, options, question.job, draws=question.seeds, spread=question.spread) for name in names
    )
    return WhenAnswer(jobs.source, site.text, answers, (*notes, *standing, *unfit))
