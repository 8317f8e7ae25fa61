"""One trace on one site under one policy, in one clock: `simulate`.

    exact        events when they happen; queues compiled (`policies/queues.py`), others by `exact/clock.py`
    adaptdl      AdaptDL's simulator: 60 s ticks, whole seconds, 30 s restarts (tiresias, optimus, pollux)
    elasticflow  ElasticFlow's simulator: slots, ends rounded up, overheads (edf, tiresias, gandiva, elasticflow)

Jobs that cannot run are left out first, counted and named: none is dropped silently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from windtunnel.errors import SpecError, UserError
from windtunnel.studies.fleet.decision import Policy
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.outcome import (
    CANCELLED,
    COMPLETED,
    DROPPED,
    FAILED,
    IMPOSSIBLE,
    REJECTED,
    STATES,
    UNFINISHED,
    Outcome,
)
from windtunnel.studies.fleet.policies import queues
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.tables import Speeds, Tables

HYBRID = ("hybrid-cost", "hybrid-time", "hybrid-locality", "hybrid-privacy", "starburst", "spot")
OVERSUBSCRIBED = ("requested", "rose", "rose-qos")
SERVICE_SHARE = 0.5  # of a machine, requested by the service on it: `oversubscribe/machines.py`
LYRA = ("lyra-none", "lyra-loan", "lyra-elastic", "lyra")
CLOCKS = ("exact", "adaptdl", "elasticflow")
ADAPTDL = ("tiresias", "optimus", "pollux")
ELASTICFLOW = ("edf", "tiresias", "gandiva", "elasticflow", "elasticflow-paper", "elasticflow-artifact")
SIZING = ("pollux", "optimus", "edf", "elasticflow", "elasticflow-paper", "elasticflow-artifact")  # choose the GPUs
TRACED = ("tiresias", "gittins", "srtf", "themis", "themis-auction")  # in the exact clock: run traced durations
UNSTARTED = "was cancelled before it started"
NS = 1e9


@dataclass(frozen=True)
class Options:
    """What a run may be told beyond trace, site and policy."""

    clock: str = "exact"
    tables: Tables | None = None
    seed: int = 0
    slot_s: float | None = None
    pool: bool = False  # GPUs are a count, not on nodes
    until_s: float | None = None
    restart_s: float | None = None
    speeds: Speeds | None = None  # of jobs where `tables` is None: the training predictor
    loans: Any = None  # `loans.run.Loans`, for lyra
    changes: Any = None  # `capacity.changes.Changes`: nodes that come and go
    decider: Policy | None = None  # in place of the named policy's own


def policies_of(clock: str) -> tuple[str, ...]:
    """Names that a clock knows."""
    if clock == "adaptdl":
        return ADAPTDL
    if clock == "elasticflow":
        return ELASTICFLOW
    own = ("current", "edf", "elasticflow", "gandiva", *LYRA, *HYBRID, *OVERSUBSCRIBED)
    return (*changing(), *own)


def changing() -> tuple[str, ...]:
    """Names of policies that run where nodes come and go."""
    from windtunnel.studies.fleet.exact.policies import DIVIDED, NAMES, TYPED

    return (*queues.NAMES, *NAMES, *DIVIDED, *TYPED)


def simulate(jobs: Jobs, site: Site, policy: Any, options: Options) -> Outcome:
    """What becomes of each job under a policy: its name, or one of the user's own (`policies/own.py`).

    Raises UserError for what cannot be asked.
    """
    from windtunnel.studies.fleet.policies.own import PLAIN, own_of

    if not isinstance(policy, str):
        own = own_of(policy)
        decider = own.made(site, options.seed)
        if decider is not None and options.clock != "exact":
            raise SpecError("--clock", options.clock, f"leave it out: {own.name} is asked in the exact clock")
        return replace(simulate(jobs, site, own.like, replace(options, decider=decider)), policy=own.name)
    if options.clock not in CLOCKS:
        raise SpecError("--clock", options.clock, f"give one of {', '.join(CLOCKS)}")
    policy = PLAIN.get(policy, policy)
    if policy not in policies_of(options.clock):
        known = ", ".join(policies_of(options.clock))
        raise SpecError("--policy", policy, f"in the clock {options.clock} give one of {known}")
    if site.kinds and policy not in ("gavel", "sia"):
        raise SpecError("--cluster", site.text, f"{policy} knows one kind of GPU; gavel and sia choose between kinds")
    if options.changes is not None and (options.clock != "exact" or policy not in changing()):
        raise SpecError(
            "--policy", policy, f"with nodes that fail give, in the clock exact, one of {', '.join(changing())}"
        )
    _heeded(policy, options)
    keep, why = _possible(jobs, site, policy, options)
    kept = jobs.take(keep) if len(keep) < len(jobs) else jobs
    blank = _blank(jobs, policy, options.clock, keep, why)
    if not len(keep):
        return blank
    return _as_it_ended(_put(blank, keep, _run(kept, site, policy, options)))


def _heeded(policy: str, options: Options) -> None:
    """Raises SpecError for what this policy would leave out in silence."""
    slots = options.clock == "elasticflow" or policy in ("edf", "elasticflow", "gandiva")
    if options.slot_s is not None:
        if not slots:
            raise SpecError("--slot", options.slot_s, f"leave it out: {policy} has no slots here")
        if not 0 < options.slot_s < math.inf:
            raise SpecError("--slot", options.slot_s, "give seconds above 0")
    none = slots or options.clock == "adaptdl" or policy in ("current", *HYBRID, *OVERSUBSCRIBED)
    if options.restart_s is not None and none:
        remedy = f"leave it out: {policy} in the clock {options.clock} has its own, or none"
        raise SpecError("--restart", options.restart_s, remedy)


def _run(kept: Jobs, site: Site, policy: str, options: Options) -> Outcome:
    """The run of jobs that can run."""
    if options.clock == "adaptdl":
        part = _adaptdl(kept, site, policy, options)
    elif options.clock == "elasticflow" or policy in ("edf", "elasticflow", "gandiva"):
        part = _elasticflow(kept, site, policy, options)
    elif policy in queues.NAMES and options.changes is None:
        part = _queue(kept, site, policy, options)
    elif policy == "current":
        part = _current(kept, options)
    elif policy in LYRA:
        from windtunnel.studies.fleet.loans.run import run_lyra

        part = run_lyra(kept, site, policy, options)
    elif policy in OVERSUBSCRIBED:
        from windtunnel.studies.fleet.oversubscribe.run import run_oversubscribed

        part = run_oversubscribed(kept, site, policy, options)
    elif policy in HYBRID:
        from windtunnel.studies.fleet.hybrid.run import run_hybrid

        part = run_hybrid(kept, site, policy, options)
    else:
        from windtunnel.studies.fleet.exact.run import run_exact

        part = run_exact(kept, site, policy, options)
    return part


def _as_it_ended(outcome: Outcome) -> Outcome:
    """Jobs that the trace says failed, were cancelled or were not done yet were so at the end of their run."""
    ended = outcome.jobs.columns.get("ended")
    for at, text in enumerate(ended or ()):
        if text in (FAILED, CANCELLED, UNFINISHED) and outcome.state[at] == STATES.index(COMPLETED):
            outcome.state[at] = STATES.index(text)
    return outcome


def _possible(jobs: Jobs, site: Site, policy: str, options: Options) -> tuple[Any, dict[int, str]]:
    """Rows that can run, and why the others cannot."""
    why: dict[int, str] = {}
    if policy in ("gavel", "sia"):
        from windtunnel.studies.fleet.typed.run import fits_nowhere

        why = fits_nowhere(jobs, site, policy, options)
    if policy in (*SIZING, "sia"):
        if options.tables is None and options.speeds is not None and policy != "sia":
            why = _too_large(jobs, site, options.speeds)
        return np.array([at for at in range(len(jobs)) if at not in why], np.int64), why
    never = np.isnan(jobs.start_s) & ~(jobs.duration_s > 0)
    for at in np.flatnonzero(never & (np.array(jobs.columns.get("ended", [""] * len(jobs))) == CANCELLED)):
        why[int(at)] = UNSTARTED
    nodes = jobs.gpus if options.pool else -(-jobs.gpus // site.per_node)
    large = (jobs.gpus > site.gpus) if options.pool else (nodes > site.nodes)
    for at in np.flatnonzero(large):
        why.setdefault(int(at), f"asks {int(jobs.gpus[at])} GPUs of {site.gpus}")
    if policy in OVERSUBSCRIBED:
        for at in np.flatnonzero(jobs.gpus > site.per_node * (1 - SERVICE_SHARE)):
            why[int(at)] = f"asks {int(jobs.gpus[at])} GPUs, more than services leave of a node of {site.per_node}"
    for at in np.flatnonzero(jobs.gpus < 1):
        why.setdefault(int(at), "asks no GPU")
    if options.clock == "exact" and (policy in queues.NAMES) and np.isnan(jobs.duration_s).all() and options.tables:
        pass  # durations come from the tables
    elif options.clock == "exact" and (
        policy in (*queues.NAMES, "current", *LYRA, *HYBRID, *OVERSUBSCRIBED) or _some_say(jobs, policy, options)
    ):
        for at in np.flatnonzero(np.isnan(jobs.duration_s)):
            why.setdefault(int(at), "does not say how long it runs")
    if policy == "current":
        for at in np.flatnonzero(np.isnan(jobs.start_s)):
            why.setdefault(int(at), "does not say when it started")
    keep = np.array([at for at in range(len(jobs)) if at not in why], np.int64) if why else np.arange(len(jobs))
    return keep, why


def _too_large(jobs: Jobs, site: Site, speeds: Speeds) -> dict[int, str]:
    """Jobs that fit in memory on no number of GPUs that the site has, and why."""
    why = {}
    for at in range(len(jobs)):
        if not speeds(jobs, at, site.gpu, site.per_node, site.gpus):
            why[at] = f"asks for a model that fits in memory on no number of GPUs up to {site.gpus}"
    return why


def _some_say(jobs: Jobs, policy: str, options: Options) -> bool:
    """Whether a policy runs traced durations, and some jobs say theirs: the others are then left out, by name."""
    return options.tables is None and policy in TRACED and not bool(np.isnan(jobs.duration_s).all())


def _blank(jobs: Jobs, policy: str, clock: str, keep: Any, why: dict[int, str]) -> Outcome:
    state = np.full(len(jobs), STATES.index(DROPPED), np.int8)
    state[keep] = STATES.index(UNFINISHED)
    for at, text in why.items():
        if text == UNSTARTED:
            state[at] = STATES.index(CANCELLED)
        elif text.startswith("asks ") and text != "asks no GPU":
            state[at] = STATES.index(IMPOSSIBLE)
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
        why=why,
    )


def _put(blank: Outcome, keep: Any, part: Outcome) -> Outcome:
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

        duration = alone_s(jobs, site, options)
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


def _current(jobs: Jobs, options: Options) -> Outcome:
    """What happened, by the trace's own account."""
    end = jobs.start_s + jobs.duration_s
    state = np.zeros(len(jobs), np.int8)
    return Outcome(
        jobs, "current", "exact", jobs.start_s, end, np.zeros(len(jobs), np.int64), jobs.duration_s * jobs.gpus, state
    )


def _adaptdl(jobs: Jobs, site: Site, policy: str, options: Options) -> Outcome:
    from windtunnel.studies.fleet.adaptdl.clock import Running, run
    from windtunnel.studies.fleet.adaptdl.jobs import policy_of, works

    if options.tables is None:
        raise UserError("the clock adaptdl runs on measured steps: give --tables DIR with the pollux_*.csv")
    work = works(jobs, site, policy, options.tables)
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
