"""One trace on one site under one policy: `simulate`.

Things happen when they happen, in nanoseconds: on the clock (`clock/`), or for queues on nodes that stay, compiled
(`policies/rigid/queues.py`). What a policy needs and heeds are its traits (`traits.py`). Jobs that cannot run are left
out first, counted and named: none is dropped silently.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError, UserError
from windtunnel.studies.fleet.clock.decision import Policy
from windtunnel.studies.fleet.clock.queue_policy import QueuePolicy
from windtunnel.studies.fleet.jobs.fair_queues import on_cluster
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.options import Options
from windtunnel.studies.fleet.outcome import CANCELLED, COMPLETED, FAILED, STATES, UNFINISHED, Dropped, Outcome, Reason
from windtunnel.studies.fleet.parts.part import in_units, parts_of, with_shares
from windtunnel.studies.fleet.parts.profile import UNITS, Part
from windtunnel.studies.fleet.policies.own import Own, own_of
from windtunnel.studies.fleet.policies.rigid import queues
from windtunnel.studies.fleet.policies.table import POLICIES, names_of, plain_name
from windtunnel.studies.fleet.site import Site
from windtunnel.studies.fleet.traits import Traits

SERVICE_SHARE = 0.5  # of a machine, requested by the service on it: `oversubscribe/machines.py`
NS = 1e9
Rows = NDArray[np.int64]


def simulate(jobs: Jobs, site: Site, policy: str | Policy | Own, options: Options) -> Outcome:
    """What becomes of each job under a policy: its name, or one of the user's own (`policies/own.py`).

    Raises UserError for what cannot be asked.
    """
    jobs = with_shares(on_cluster(jobs, site.gpus), site)
    if not isinstance(policy, str):
        own = own_of(policy)
        own.make_policy(site, options)  # what is wrong with its parameters is said first
        chosen = replace(options, decider=own.decider, make=own.make_policy)
        return replace(simulate(jobs, site, own.like, chosen), policy=own.name)
    policy = plain_name(policy)
    if policy not in POLICIES:
        more = "; Slurm's files are the cluster's (--cluster slurm.conf), Kueue's objects the trace's" * ("=" in policy)
        raise SpecError("--policy", policy, f"give one of {', '.join(names_of())}{more}")
    traits = POLICIES[policy]
    by_flavor = any(quota.flavors for quota in jobs.quotas) and ("quota" in traits.needs or traits.loop == "log")
    if site.kinds and not traits.kinds and not by_flavor:
        able = " and ".join(names_of(lambda each: each.kinds))
        raise SpecError("--cluster", site.text, f"{policy} knows one kind of GPU; {able} choose between kinds")
    if options.changes is not None and "failing" not in traits.capacity:
        able = ", ".join(names_of(lambda each: "failing" in each.capacity))
        raise SpecError("--policy", policy, f"with nodes that fail give one of {able}")
    if options.restart_s is not None and not traits.restarts and traits.loop != "log":  # a log has paid for its own
        raise SpecError("--restart", options.restart_s, f"leave it out: {policy} has its own, or none")
    if options.compatible and not traits.compatible:
        able = ", ".join(names_of(lambda each: each.compatible))
        raise SpecError("--placement", "compatible", f"{policy} places by counts, or by itself: give one of {able}")
    if site.slurm_cluster.divided and traits.loop != "log":
        if traits.name != "slurm":
            remedy = "GPUs in slices of MIG are known to slurm only: leave it out, or take the slices out of Gres"
            raise SpecError("--policy", policy, remedy, site.text)
        if options.pool or options.changes is not None:
            raise SpecError("--cluster", site.text, "its slices of MIG are for slurm on nodes that stay")
    knows_sizes = "quota" in traits.needs if site.labels else traits.name == "slurm"
    if site.sizes and traits.loop != "log" and (not knows_sizes or options.pool):
        knows, lines = ("kueue", "nodes") if site.labels else ("slurm", "the NodeName lines")
        remedy = f"nodes of unlike sizes are known to {knows} alone, and not as a pool: give --policy {knows}"
        raise SpecError("--policy", policy, f"{remedy}, or a file with {lines} of one size", site.text)
    dropped = _dropped(jobs, site, traits, options)
    dropped_rows = {each.job for each in dropped}
    keep = np.array([at for at in range(len(jobs)) if at not in dropped_rows], np.int64)
    runnable = jobs.take(keep) if len(keep) < len(jobs) else jobs
    blank = _blank(jobs, policy, dropped)
    if not len(keep):
        return blank
    if traits.loop != "log":  # nobody starts a job that depends on others before they are done
        runnable = replace(runnable, submit_s=np.fmax(runnable.submit_s, runnable.further("eligible_s")))
    counted, nodes = as_counted(runnable, site, traits)
    outcome = _run(counted, nodes, policy, traits, options)
    if nodes.unit > 1:
        outcome = replace(outcome, gpu_seconds=outcome.gpu_seconds / nodes.unit)
    return _as_it_ended(_put(blank, keep, outcome))


def as_counted(jobs: Jobs, site: Site, traits: Traits) -> tuple[Jobs, Site]:
    """Jobs and nodes as a policy counts them: in units where jobs ask for parts of GPUs, or nodes have slices."""
    always = traits.name == "slurm" and bool(site.slurm_cluster.divided)
    return in_units(jobs, site, always=always) if traits.parts else (jobs, site)


def _run(jobs: Jobs, site: Site, policy: str, traits: Traits, options: Options) -> Outcome:
    """The run of jobs that can run."""
    linked = bool(site.link) and "period_s" in jobs.columns
    if traits.compiled and options.changes is None and site.unit == 1 and not linked and not options.compatible:
        return _queue(jobs, site, policy, options)
    if traits.loop == "log":
        return _current(jobs, policy)
    if traits.loop == "loans":
        from windtunnel.studies.fleet.loans.run import run_lyra

        return run_lyra(jobs, site, policy, options)
    if traits.loop == "machines":
        from windtunnel.studies.fleet.oversubscribe.run import run_oversubscribed

        return run_oversubscribed(jobs, site, policy, options)
    if traits.loop == "clouds":
        from windtunnel.studies.fleet.hybrid.run import run_hybrid

        return run_hybrid(jobs, site, policy, options)
    from windtunnel.studies.fleet.clock.on_clock import run_exact

    return run_exact(jobs, site, traits, options)


def _as_it_ended(outcome: Outcome) -> Outcome:
    """Jobs that the trace says failed, were cancelled or were not done yet were so at the end of their run."""
    ended = outcome.jobs.columns.get("ended")
    for at, text in enumerate(ended or ()):
        if text in (FAILED, CANCELLED, UNFINISHED) and outcome.state[at] == STATES.index(COMPLETED):
            outcome.state[at] = STATES.index(text)
    return outcome


def _dropped(jobs: Jobs, site: Site, traits: Traits, options: Options) -> tuple[Dropped, ...]:
    """Jobs that cannot run, each with the first reason, and in the order in which reasons are looked for."""
    dropped: dict[int, Dropped] = {}

    def drop(rows: Rows | list[int], reason: Reason, words: str) -> None:
        for at in rows:
            dropped.setdefault(int(at), Dropped(int(at), reason, words.format(gpus=int(jobs.gpus[at]))))

    if "shared" in traits.capacity:
        most, words = site.per_node * (1 - SERVICE_SHARE), f"more than services leave of a node of {site.per_node}"
        drop(np.flatnonzero(jobs.gpus > most), Reason.TOO_LARGE, "asks {gpus} GPUs, " + words)
    parts: list[Part | str | None] = []
    if "share" in jobs.columns and traits.loop != "log":
        parts, why = parts_of(jobs, site), _why_no_parts(traits, options)
        for at, part in enumerate(parts):
            words = part if isinstance(part, str) else why if part is not None else ""
            drop([at] if words else [], Reason.SAYS_TOO_LITTLE, words.replace("{", "{{").replace("}", "}}"))
    if traits.name == "slurm":
        from windtunnel.studies.fleet.policies.slurm.alone import never_allowed

        for at, words in never_allowed(jobs, site, site.slurm_cluster):
            drop([at], Reason.TOO_LARGE, words.replace("{", "{{").replace("}", "}}"))
    if traits.name == "slurm" and not options.pool:
        from windtunnel.studies.fleet.policies.slurm.gres import never_fit
        from windtunnel.studies.fleet.policies.slurm.rules import Rules

        for at, words in never_fit(jobs, site, Rules(site.per_node, cluster=site.slurm_cluster)):
            drop([at], Reason.TOO_LARGE, words.replace("{", "{{").replace("}", "}}"))
    if not traits.sizes:
        never = np.isnan(jobs.start_s) & ~(jobs.duration_s > 0)
        ended = np.array(jobs.columns.get("ended", [""] * len(jobs)))
        drop(np.flatnonzero(never & (ended == CANCELLED)), Reason.NEVER_STARTED, "was cancelled before it started")
    if traits.kinds:
        from windtunnel.studies.fleet.kinds.run import fits_nowhere

        for at, words in fits_nowhere(jobs, site, traits, options):
            drop([at], Reason.TOO_LARGE, words)
    if traits.sizes:
        if options.tables is None and options.speeds is not None and not traits.kinds:
            words = f"asks for a model that fits in memory on no number of GPUs up to {site.gpus}"
            asked = [at for at in range(len(jobs)) if at not in dropped]
            fits = [bool(options.speeds(jobs, at, site.gpu, site.per_node, site.gpus)) for at in asked]
            drop([at for at, fit in zip(asked, fits, strict=True) if not fit], Reason.TOO_LARGE, words)
        return tuple(dropped.values())
    gpus = jobs.gpus
    if "share" in jobs.columns and traits.loop != "log":
        fill = [part.most if isinstance(part, Part) and part.slices else 1 for part in parts]
        gpus = -(-gpus // np.array(fill))  # that a job needs where it is alone: its shares lie on a GPU each
    nodes = gpus if options.pool else -(-gpus // site.per_node)
    large = np.flatnonzero(nodes > (site.gpus if options.pool else site.nodes))
    drop(large, Reason.TOO_LARGE, f"asks {{gpus}} GPUs of {site.gpus}")
    drop(np.flatnonzero(jobs.gpus < 1), Reason.SAYS_TOO_LITTLE, "asks no GPU")
    if "duration" in traits.needs:
        unsaid = np.isnan(jobs.duration_s)
        if not _measured(traits, options, bool(unsaid.all())):
            drop(np.flatnonzero(unsaid), Reason.SAYS_TOO_LITTLE, "does not say how long it runs")
    if "quota" in traits.needs:
        if not jobs.quotas:
            objects = "clusterqueues,localqueues" if traits.name == "kueue" else "queues"
            written = f"write it with `kubectl get {objects},workloads,jobs -A -o json`"
            raise UserError(f"{traits.name} needs the quotas of queues, and {jobs.source} has none: {written}")
        from windtunnel.studies.fleet.clock.on_clock import owners_of
        from windtunnel.studies.fleet.policies.kueue.policy import kueue_of

        counted, nodes_of = in_units(jobs, site)
        kueue = kueue_of(nodes_of, replace(options, quotas=counted.quotas, cohorts=counted.cohorts))
        queues, each_part = counted.quota_queues, parts or [None] * len(jobs)
        unknown = [at for at, queue in enumerate(queues) if queue and queue not in kueue.quotas]
        drop(unknown, Reason.SAYS_TOO_LITTLE, "is of a queue whose ClusterQueue the file does not tell")
        for at, words in kueue.never(zip(queues, counted.gpus.tolist(), owners_of(counted), each_part, strict=True)):
            drop([at], Reason.TOO_LARGE, words)
        if site.topology and not options.pool:
            from windtunnel.studies.fleet.policies.kueue.topology import Topology

            topology, owners = Topology.of(dict(site.topology)), owners_of(jobs)
            whole = np.where(jobs.gpus_asked < jobs.gpus, 0, jobs.gpus)  # parts go where they have room
            for at, words in topology.unfit(whole.tolist(), owners, site.nodes, site.per_node):
                drop([at], Reason.TOO_LARGE, words.replace("{", "{{").replace("}", "}}"))
    if "start" in traits.needs:
        drop(np.flatnonzero(np.isnan(jobs.start_s)), Reason.SAYS_TOO_LITTLE, "does not say when it started")
    return tuple(dropped.values())


def _why_no_parts(traits: Traits, options: Options) -> str:
    """What keeps a policy from jobs that ask for parts; nothing where it knows them."""
    decider = options.decider
    if traits.parts and (decider is None or (isinstance(decider, QueuePolicy) and getattr(decider, "unit", UNITS) > 1)):
        unsteady = traits.name == "slurm" and (options.pool or options.changes is not None)
        return "asks for parts of GPUs, which slurm knows on nodes that stay" if unsteady else ""
    return f"asks for parts of GPUs, and {traits.name} knows whole ones only"


def _measured(traits: Traits, options: Options, none_says: bool) -> bool:
    """Whether durations that the trace leaves out are looked for elsewhere; then what is missing is one message."""
    if traits.measured == "each":
        return options.tables is not None or none_says
    return traits.measured == "whole" and options.tables is not None and none_says


def _blank(jobs: Jobs, policy: str, dropped: tuple[Dropped, ...]) -> Outcome:
    state = np.full(len(jobs), STATES.index(UNFINISHED), np.int8)
    for each in dropped:
        state[each.job] = STATES.index(each.reason.value)
    never = np.full(len(jobs), np.nan)
    return Outcome(
        jobs,
        policy,
        "exact",
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
        from windtunnel.studies.fleet.clock.on_clock import alone_s

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
    """What happened, by the trace's own account; what it does not tell of ends, restarts and GPUs is one plain run."""
    end, restarts, gpu_seconds = (jobs.further(name) for name in ("end_s", "log_restarts", "log_gpu_seconds"))
    end = np.where(np.isnan(end), jobs.start_s + jobs.duration_s, end)
    return Outcome(
        jobs,
        policy,
        "exact",
        jobs.start_s,
        end,
        np.nan_to_num(restarts).astype(np.int64),
        np.where(np.isnan(gpu_seconds), jobs.duration_s * jobs.gpus_asked, gpu_seconds),
        np.where(np.isnan(end), STATES.index(UNFINISHED), STATES.index(COMPLETED)).astype(np.int8),
    )
