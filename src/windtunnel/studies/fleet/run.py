"""One trace on one site under one policy, in one clock: `simulate`.

    exact        events when they happen; queues compiled (`policies/queues.py`), others by `exact/clock.py`
    adaptdl      AdaptDL's simulator: 60 s ticks, whole seconds, 30 s restarts (tiresias, optimus, pollux)
    elasticflow  ElasticFlow's simulator: slots, ends rounded up, overheads (edf, tiresias, gandiva, elasticflow)

What a policy needs and heeds are its traits (`traits.py`). Jobs that cannot run are left out first, counted and named:
none is dropped silently.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError, UserError
from windtunnel.studies.fleet.decision import Policy
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import (
    CANCELLED,
    COMPLETED,
    FAILED,
    REJECTED,
    STATES,
    UNFINISHED,
    Dropped,
    Outcome,
    Reason,
)
from windtunnel.studies.fleet.policies import queues
from windtunnel.studies.fleet.policies.own import Own, own_of
from windtunnel.studies.fleet.policies.table import POLICIES, names_of, plain_name
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.tables import Speeds
from windtunnel.studies.fleet.traits import Traits

SERVICE_SHARE = 0.5  # of a machine, requested by the service on it: `oversubscribe/machines.py`
PUBLISHED = {
    "adaptdl": ("tiresias", "optimus", "pollux"),
    "elasticflow": ("edf", "tiresias", "gandiva", "elasticflow", "elasticflow-paper", "elasticflow-artifact"),
}
CLOCKS = ("exact", *PUBLISHED)
NS = 1e9
Rows = NDArray[np.int64]


def policies_of(clock: str) -> tuple[str, ...]:
    """Names that a clock knows."""
    return PUBLISHED[clock] if clock in PUBLISHED else names_of()


def simulate(jobs: Jobs, site: Site, policy: str | Policy | Own, options: Options) -> Outcome:
    """What becomes of each job under a policy: its name, or one of the user's own (`policies/own.py`).

    Raises UserError for what cannot be asked.
    """
    if not isinstance(policy, str):
        own = own_of(policy)
        decider = own.made(site, options)
        if decider is not None and options.clock != "exact":
            raise SpecError("--clock", options.clock, f"leave it out: {own.name} is asked in the exact clock")
        return replace(simulate(jobs, site, own.like, replace(options, decider=decider)), policy=own.name)
    if options.clock not in CLOCKS:
        raise SpecError("--clock", options.clock, f"give one of {', '.join(CLOCKS)}")
    policy = plain_name(policy)
    if policy not in policies_of(options.clock):
        known = ", ".join(policies_of(options.clock))
        raise SpecError("--policy", policy, f"in the clock {options.clock} give one of {known}")
    traits = POLICIES[policy if policy in POLICIES else "elasticflow"]
    if site.kinds and not traits.kinds:
        able = " and ".join(names_of(lambda each: each.kinds))
        raise SpecError("--cluster", site.text, f"{policy} knows one kind of GPU; {able} choose between kinds")
    if options.changes is not None and (options.clock != "exact" or "failing" not in traits.capacity):
        able = ", ".join(names_of(lambda each: "failing" in each.capacity))
        raise SpecError("--policy", policy, f"with nodes that fail give, in the clock exact, one of {able}")
    _heeded(policy, traits, options)
    dropped = _dropped(jobs, site, traits, options)
    gone = {each.job for each in dropped}
    keep = np.array([at for at in range(len(jobs)) if at not in gone], np.int64)
    kept = jobs.take(keep) if len(keep) < len(jobs) else jobs
    blank = _blank(jobs, policy, options.clock, dropped)
    if not len(keep):
        return blank
    return _as_it_ended(_put(blank, keep, _run(kept, site, policy, traits, options)))


def _heeded(policy: str, traits: Traits, options: Options) -> None:
    """Raises SpecError for what this policy would leave out in silence."""
    if options.slot_s is not None:
        if options.clock != "elasticflow" and not traits.slots:
            raise SpecError("--slot", options.slot_s, f"leave it out: {policy} has no slots here")
        if not 0 < options.slot_s < math.inf:
            raise SpecError("--slot", options.slot_s, "give seconds above 0")
    if options.restart_s is not None and (options.clock != "exact" or not traits.restarts):
        remedy = f"leave it out: {policy} in the clock {options.clock} has its own, or none"
        raise SpecError("--restart", options.restart_s, remedy)


def _run(kept: Jobs, site: Site, policy: str, traits: Traits, options: Options) -> Outcome:
    """The run of jobs that can run."""
    if options.clock == "adaptdl":
        return _adaptdl(kept, site, policy, options)
    if options.clock == "elasticflow":
        return _elasticflow(kept, site, policy, options)
    if traits.compiled and options.changes is None:
        return _queue(kept, site, policy, options)
    if traits.loop == "log":
        return _current(kept, policy)
    if traits.loop == "loans":
        from windtunnel.studies.fleet.loans.run import run_lyra

        return run_lyra(kept, site, policy, options)
    if traits.loop == "machines":
        from windtunnel.studies.fleet.oversubscribe.run import run_oversubscribed

        return run_oversubscribed(kept, site, policy, options)
    if traits.loop == "clouds":
        from windtunnel.studies.fleet.hybrid.run import run_hybrid

        return run_hybrid(kept, site, policy, options)
    from windtunnel.studies.fleet.exact.run import run_exact

    return run_exact(kept, site, traits, options)


def _as_it_ended(outcome: Outcome) -> Outcome:
    """Jobs that the trace says failed, were cancelled or were not done yet were so at the end of their run."""
    ended = outcome.jobs.columns.get("ended")
    for at, text in enumerate(ended or ()):
        if text in (FAILED, CANCELLED, UNFINISHED) and outcome.state[at] == STATES.index(COMPLETED):
            outcome.state[at] = STATES.index(text)
    return outcome


def _dropped(jobs: Jobs, site: Site, traits: Traits, options: Options) -> tuple[Dropped, ...]:
    """Jobs that cannot run, each with the first reason, and in the order in which reasons are looked for."""
    found: dict[int, Dropped] = {}

    def drop(rows: Rows | list[int], reason: Reason, words: str) -> None:
        for at in rows:
            found.setdefault(int(at), Dropped(int(at), reason, words.format(gpus=int(jobs.gpus[at]))))

    if "shared" in traits.capacity:
        most, words = site.per_node * (1 - SERVICE_SHARE), f"more than services leave of a node of {site.per_node}"
        drop(np.flatnonzero(jobs.gpus > most), Reason.TOO_LARGE, "asks {gpus} GPUs, " + words)
    if not traits.sizes:
        never = np.isnan(jobs.start_s) & ~(jobs.duration_s > 0)
        ended = np.array(jobs.columns.get("ended", [""] * len(jobs)))
        drop(np.flatnonzero(never & (ended == CANCELLED)), Reason.NEVER_STARTED, "was cancelled before it started")
    if traits.kinds:
        from windtunnel.studies.fleet.typed.run import fits_nowhere

        for at, words in fits_nowhere(jobs, site, traits, options):
            drop([at], Reason.TOO_LARGE, words)
    if traits.sizes:
        if options.tables is None and options.speeds is not None and not traits.kinds:
            words = f"asks for a model that fits in memory on no number of GPUs up to {site.gpus}"
            drop(_fits_on_none(jobs, site, options.speeds), Reason.TOO_LARGE, words)
        return tuple(found.values())
    nodes = jobs.gpus if options.pool else -(-jobs.gpus // site.per_node)
    large = np.flatnonzero(nodes > (site.gpus if options.pool else site.nodes))
    drop(large, Reason.TOO_LARGE, f"asks {{gpus}} GPUs of {site.gpus}")
    drop(np.flatnonzero(jobs.gpus < 1), Reason.SAYS_TOO_LITTLE, "asks no GPU")
    if options.clock == "exact" and "duration" in traits.needs:
        unsaid = np.isnan(jobs.duration_s)
        if not _measured(traits, options, bool(unsaid.all())):
            drop(np.flatnonzero(unsaid), Reason.SAYS_TOO_LITTLE, "does not say how long it runs")
    if "start" in traits.needs:
        drop(np.flatnonzero(np.isnan(jobs.start_s)), Reason.SAYS_TOO_LITTLE, "does not say when it started")
    return tuple(found.values())


def _measured(traits: Traits, options: Options, none_says: bool) -> bool:
    """Whether durations that the trace leaves out are looked for elsewhere; then what is missing is one message."""
    if traits.measured == "each":
        return options.tables is not None or none_says
    return traits.measured == "whole" and options.tables is not None and none_says


def _fits_on_none(jobs: Jobs, site: Site, speeds: Speeds) -> list[int]:
    """Jobs that fit in memory on no number of GPUs that the site has."""
    return [at for at in range(len(jobs)) if not speeds(jobs, at, site.gpu, site.per_node, site.gpus)]


def _blank(jobs: Jobs, policy: str, clock: str, dropped: tuple[Dropped, ...]) -> Outcome:
    state = np.full(len(jobs), STATES.index(UNFINISHED), np.int8)
    for each in dropped:
        state[each.job] = STATES.index(each.reason.value)
    never = np.full(len(jobs), np.nan)
    return Outcome(
        jobs,
        policy,
        clock,
        never.copy(),
        never.copy(),
        np.zeros(len(jobs), np.int64),
        np.zeros(len(jobs)),
        state,
        node=np.full(len(jobs), -1, np.int64),
        dropped=dropped,
    )


def _put(blank: Outcome, keep: Rows, part: Outcome) -> Outcome:
    """The part's outcome in the rows kept."""
    scored = None
    if part.scored_on_time is not None:
        scored = np.zeros(len(blank.jobs), bool)
        scored[keep] = part.scored_on_time
    for name in ("start_s", "end_s", "restarts", "gpu_seconds", "state"):
        getattr(blank, name)[keep] = getattr(part, name)
    if part.node is not None and blank.node is not None:
        blank.node[keep] = part.node
    return replace(blank, scored_on_time=scored, extra=part.extra)


def _queue(jobs: Jobs, site: Site, policy: str, options: Options) -> Outcome:
    duration = jobs.duration_s
    if np.isnan(duration).all():
        from windtunnel.studies.fleet.exact.run import alone_s

        assert options.tables is not None, "jobs without durations were left out"
        duration = alone_s(jobs, site, options.tables)
    duration = duration + (options.restart_s or 0.0)  # each job starts once
    submit_ns = np.rint(jobs.submit_s * NS).astype(np.int64)
    duration_ns = np.rint(duration * NS).astype(np.int64)
    start, placed = queues.run_queue(
        policy, submit_ns, duration_ns, jobs.gpus, nodes=site.nodes, per_node=site.per_node, pool=options.pool
    )
    over = np.flatnonzero(start + duration_ns < submit_ns)  # 2**63 ns were passed
    if len(over):
        raise UserError(
            f"{jobs.where(int(over[0]))}: the run passes 292 years before this job ends: check the durations"
        )
    return Outcome(
        jobs,
        policy,
        "exact",
        start / NS,
        (start + duration_ns) / NS,
        np.zeros(len(jobs), np.int64),
        duration * jobs.gpus,
        np.zeros(len(jobs), np.int8),
        node=placed.max(axis=1),
    )


def _current(jobs: Jobs, policy: str) -> Outcome:
    """What happened, by the trace's own account."""
    end = jobs.start_s + jobs.duration_s
    state = np.zeros(len(jobs), np.int8)
    return Outcome(
        jobs, policy, "exact", jobs.start_s, end, np.zeros(len(jobs), np.int64), jobs.duration_s * jobs.gpus, state
    )


def _adaptdl(jobs: Jobs, site: Site, policy: str, options: Options) -> Outcome:
    from windtunnel.studies.fleet.adaptdl.clock import Running, run
    from windtunnel.studies.fleet.adaptdl.jobs import policy_of, works

    if options.tables is None:
        raise UserError("the clock adaptdl runs on measured steps: give --tables DIR with the pollux_*.csv")
    work = works(jobs, site, options.tables, learns=policy == "pollux")
    nodes = [site.per_node] * site.nodes
    if policy == "pollux":
        from windtunnel.studies.fleet.adaptdl.chosen import run as run_pollux

        found = run_pollux(work, jobs.submit_s, nodes, options.until_s)
        table = tuple(found[name] for name in ("start_s", "end_s", "restarts", "gpu_seconds"))
    else:
        running = [
            Running(index, float(jobs.submit_s[index]), int(jobs.gpus[index]), work[index])
            for index in range(len(jobs))
        ]
        run(running, nodes, policy_of(policy), until_s=options.until_s)
        never = math.nan
        times = ((job.start_s, job.end_s) for job in running)
        start_s, end_s = np.array([[never if at is None else at for at in pair] for pair in times]).T
        table = start_s, end_s, np.array([job.restarts for job in running]), np.array([j.gpu_seconds for j in running])
    start_s, end_s, restarts, gpu_seconds = table
    state = np.where(np.isnan(end_s), STATES.index(UNFINISHED), STATES.index(COMPLETED)).astype(np.int8)
    return Outcome(jobs, policy, "adaptdl", start_s, end_s, np.maximum(restarts, 0), gpu_seconds, state)


def _elasticflow(jobs: Jobs, site: Site, policy: str, options: Options) -> Outcome:
    from windtunnel.studies.fleet.elasticflow import edf, elasticflow, gandiva, tiresias
    from windtunnel.studies.fleet.elasticflow.jobs import ef_jobs, slot_of

    exact = options.clock == "exact"
    slot_s = options.slot_s or (1 if exact else slot_of(site.gpu))
    made = ef_jobs(jobs, site, options.tables, options.speeds, policy)
    if policy == "edf":
        edf.run(made, site.gpus, slot_s)
    elif policy == "tiresias":
        tiresias.run(made, site.gpus, slot_s)
    elif policy == "gandiva":
        gandiva.run(made, site.nodes, site.per_node, slot_s)
    else:
        together = policy == "elasticflow-artifact" or (policy == "elasticflow" and not exact)
        elasticflow.run(made, site.nodes, site.per_node, slot_s, together=together, overheads=not exact)
    done = [job.state == "completed" for job in made]
    index = {"completed": COMPLETED, "rejected": REJECTED}
    scored = np.array([ok and not job.scored_late for ok, job in zip(done, made, strict=True)])
    if not policy.startswith("elasticflow"):
        scored = np.array([ok and job.end_s <= job.deadline_s for ok, job in zip(done, made, strict=True)])
    return Outcome(
        jobs,
        policy,
        options.clock,
        np.array([job.start_s if math.isfinite(job.start_s) else math.nan for job in made]),
        np.array([job.end_s if ok else math.nan for ok, job in zip(done, made, strict=True)], float),
        np.array([job.restarts for job in made], np.int64),
        np.array([job.gpu_seconds for job in made], float),
        np.array([STATES.index(index.get(job.state, UNFINISHED)) for job in made], np.int8),
        scored_on_time=scored,
    )
