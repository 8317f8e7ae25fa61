"""Limits of a job by itself: MaxTRES, MaxTRESPerNode and MinTRES. Beyond one, Slurm lets it wait until it is changed.

Of the QOS of its partition, its own QOS (with the flag OverPartQOS the other way round), its association and those
above, the first that sets a limit is the one that holds; of a node it is the mean over the job's nodes, a fraction left
off. Source: Slurm's page resource_limits and job_reason_codes; `slurm_box.py`'s Slurm 22.05 decides so.
"""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.errors import SpecError
from windtunnel.studies.fleet.clock.decision import Owner
from windtunnel.studies.fleet.clock.on_clock import owners_of
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.parts.part import parts_of
from windtunnel.studies.fleet.policies.slurm.cluster import Cluster, Limits
from windtunnel.studies.fleet.policies.slurm.rules import tres_of
from windtunnel.studies.fleet.site import Site

LIMITS = {"job_gpus": ("MaxTRES", "Max", "PerJob"), "node_gpus": ("MaxTRESPerNode", "Max", "PerNode")}
LIMITS["least_gpus"] = ("MinTRES", "Min", "")  # its name, and its parts in Slurm's reason


def never_allowed(jobs: Jobs, site: Site, cluster: Cluster) -> Iterator[tuple[int, str]]:
    """Jobs that limits never let start, with the limit and Slurm's reason."""
    rows = [row for limits in cluster.limits for row in (limits, *limits.of.values())]
    if not cluster.limits_hold or all(getattr(row, name) is None for row in rows for name in LIMITS):
        return
    known: dict[tuple[object, ...], str] = {}
    queues, node_counts = jobs.columns.get("queue", [""] * len(jobs)), jobs.further("nodes")
    parts = parts_of(jobs, site) if "part" in jobs.columns else [None] * len(jobs)
    for at, (owner, queue, part) in enumerate(zip(owners_of(jobs), queues, parts, strict=True)):
        if isinstance(part, str):
            continue
        count = int(jobs.gpus[at])
        spread = count if part is not None and not part.slices else 1 if part else -(-count // site.per_node)
        if node_counts[at] > 1e9:
            remedy = "give the number of its nodes, or leave it out"
            raise SpecError(f"nodes of {jobs.name[at]}", jobs.columns["nodes"][at], remedy, jobs.where(at))
        nodes = max(int(node_counts[at]) if node_counts[at] > 0 else spread, 1)
        key = (owner.qos, owner.account, owner.user, queue, part, count, nodes)
        if key not in known:
            known[key] = _why(_levels(cluster, owner, queue), tres_of(part, count, cluster), nodes)
        if known[key]:
            yield at, known[key]


def _levels(cluster: Cluster, owner: Owner, queue: str) -> list[tuple[str, Limits]]:
    """Whose limits a job meets, in Slurm's order."""
    levels = [(f"QOS {qos.name}", qos.limits) for qos in cluster.qualities(owner.qos, queue)]
    by_name = {(each.account, each.user): each for each in cluster.associations}
    own = by_name.get((owner.account, owner.user)) if owner.user else None
    if own is not None:
        levels.append((f"association {own.account} {own.user}", own.limits))
    account, seen = owner.account, set[str]()
    while (account, "") in by_name and account not in seen:
        seen.add(account)
        levels.append((f"association {account}", by_name[account, ""].limits))
        account = by_name[account, ""].parent
    return levels


def _why(levels: list[tuple[str, Limits]], counts: dict[str, int], nodes: int) -> str:
    """What the first limit says that a job breaks; empty where it keeps all."""
    for name, (column, most, per) in LIMITS.items():
        for kind, count in counts.items():
            asked = count // nodes if per == "PerNode" else count
            whose, limit = _first(levels, name, kind)
            if limit is None or (asked >= limit if most == "Min" else asked <= limit):
                continue
            what = kind if kind in ("gpu", "shard", "mps") else f"gpu:{kind}"
            reason = f"{'QOS' if whose.startswith('QOS') else 'Assoc'}{most}GRES{per}"
            each = " a node" if per == "PerNode" else ""
            return f"asks gres/{what}={asked}{each}, and {column} of {whose} is {limit}: Slurm lets it wait ({reason})"
    return ""


def _first(levels: list[tuple[str, Limits]], name: str, kind: str) -> tuple[str, int | None]:
    """Whose limit of a resource holds, and what it is."""
    for whose, limits in levels:
        limit = getattr(limits if kind == "gpu" else limits.of.get(kind, Limits()), name)
        if limit is not None:
            return whose, limit
    return "", None
