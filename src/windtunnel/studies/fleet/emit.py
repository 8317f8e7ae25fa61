"""A cluster's scheduler as configuration: Slurm's own files, or Kueue's ClusterQueues, that read back as the same.

slurm   slurm.conf, qos.txt and assoc.txt (as `sacctmgr -P show` prints them), load.sh that makes these, site.yaml
kueue   queues.yaml: ClusterQueues of their flavors, with the ResourceFlavors; of one flavor of nvidia.com/gpu where the
        trace tells none apart
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain, repeat
from shlex import quote

from windtunnel.errors import SpecError
from windtunnel.studies.fleet.jobs.fair_queues import on_cluster
from windtunnel.studies.fleet.jobs.kubernetes_parts import SLICES
from windtunnel.studies.fleet.jobs.trace import Cohort, Jobs, Quota, Slices
from windtunnel.studies.fleet.parts.profile import cuts_of
from windtunnel.studies.fleet.policies.slurm.cluster import PREEMPT_OFF, Association, Cluster, Limits, Partition, Qos
from windtunnel.studies.fleet.policies.slurm.files import FLAGS, PARAMETERS
from windtunnel.studies.fleet.site import Site

GPU = "nvidia.com/gpu"
WEIGHTS = {"size": "JobSize", "association": "Assoc", "qos": "QOS"}
QOS = (
    "Name|Priority|GraceTime|Preempt|PreemptMode|GrpTRES|GrpJobs|MaxTRES|MaxTRESPerNode|MinTRES|MaxTRESPU|MaxJobsPU"
    "|MaxTRESPA|MaxJobsPA|Flags"
)
ASSOC = "Account|ParentName|User|Share|Priority|GrpTRES|GrpJobs|MaxTRES|MaxTRESPerNode|MaxJobs"


def emitted(kind: str, jobs: Jobs, site: Site) -> dict[str, str]:
    """Files by name. Raises SpecError where there is nothing of that kind."""
    if kind == "kueue":
        if not jobs.quotas:
            raise SpecError("--emit", kind, f"{jobs.source} has no ClusterQueues to write")
        jobs = on_cluster(jobs, site.gpus)
        return {"queues.yaml": queues_text(jobs.quotas, jobs.cohorts)}
    return slurm_files(site.slurm_cluster, site)


def queues_text(quotas: Sequence[Quota], cohorts: Sequence[Cohort]) -> str:
    """ResourceFlavors, Cohorts and ClusterQueues, a document each; JSON is YAML."""
    by_name = chain(*(each.flavors.items() for each in cohorts), *(each.flavors.items() for each in quotas))
    flavors = ({**_head("ResourceFlavor", name), "spec": each.spec} for name, each in dict(by_name).items())
    objects = [*flavors, *map(_cohort, cohorts), *map(_queue, quotas)]
    return "".join(f"---\n{json.dumps(each, indent=1)}\n" for each in objects)


def _head(kind: str, name: str) -> dict[str, object]:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": name}}


def _groups(holder: Quota | Cohort) -> list[dict[str, object]]:
    """A group for each resource of GPUs, with its flavors; slices of MIG are in one of their own then."""
    slices = [_resource(f"{SLICES}{profile}", each) for profile, each in holder.slices.items()]
    if not holder.flavors:
        return [_group({"default-flavor": [_resource(GPU, holder), *slices]})]
    groups: dict[str, dict[str, list[dict[str, object]]]] = {}
    for name, flavor in holder.flavors.items():
        resource = next(iter(flavor.resources), GPU)
        groups.setdefault(resource, {})[name] = [_resource(resource, flavor)]
    return [*map(_group, groups.values()), *([_group({"default-flavor": slices})] if slices else [])]


def _group(flavors: Mapping[str, list[dict[str, object]]]) -> dict[str, object]:
    covered = [row["name"] for row in next(iter(flavors.values()))]
    rows = [{"name": name, "resources": resources} for name, resources in flavors.items()]
    return {"coveredResources": covered, "flavors": rows}


def _resource(name: str, owed: Quota | Cohort | Slices) -> dict[str, object]:
    limits = {"borrowingLimit": owed.borrowing_limit, "lendingLimit": owed.lending_limit}
    said = {key: value for key, value in limits.items() if value is not None}
    return {"name": name, "nominalQuota": owed.nominal, **said}


def _cohort(cohort: Cohort) -> dict[str, object]:
    spec: dict[str, object] = {"resourceGroups": _groups(cohort), "fairSharing": {"weight": f"{cohort.weight:g}"}}
    if cohort.parent:
        spec["parentName"] = cohort.parent
    return {**_head("Cohort", cohort.name), "spec": spec}


def _queue(quota: Quota) -> dict[str, object]:
    borrow: dict[str, object] = {"policy": quota.borrow_within}
    if quota.borrow_priority is not None:
        borrow["maxPriorityThreshold"] = int(quota.borrow_priority)
    spec: dict[str, object] = {
        "namespaceSelector": {},
        "queueingStrategy": "StrictFIFO" if quota.strict else "BestEffortFIFO",
        "resourceGroups": _groups(quota),
        "preemption": {
            "withinClusterQueue": quota.within,
            "reclaimWithinCohort": quota.reclaim,
            "borrowWithinCohort": borrow,
        },
        "fairSharing": {"weight": f"{quota.weight:g}"},
    }
    if quota.cohort:
        spec["cohortName"] = quota.cohort
    if quota.flavors:
        search = {True: "TryNextFlavor", False: "MayStopSearch"}
        fungible = {"whenCanBorrow": search[quota.borrow_next], "whenCanPreempt": search[quota.preempt_next]}
        spec["flavorFungibility"] = fungible | ({"preference": "PreemptionOverBorrowing"} if quota.borrow_last else {})
    return {**_head("ClusterQueue", quota.name), "spec": spec}


def slurm_files(cluster: Cluster, site: Site) -> dict[str, str]:
    """Slurm's files of a cluster; without partitions one of all nodes."""
    nodes, per_node = cluster.nodes or site.nodes, cluster.per_node or site.per_node
    names = cluster.names or tuple(f"n{at + 1}" for at in range(nodes))
    partitions = list(cluster.partitions.values()) or [Partition("all", (1 << nodes) - 1)]
    lines = [
        *_nodes(cluster, names, per_node),
        f"GresTypes=gpu{',shard' if cluster.shares else ''}",
        "SelectType=select/cons_tres",
        "SchedulerType=sched/backfill",
        f"PriorityType=priority/{'multifactor' if cluster.multifactor else 'basic'}",
        f"PriorityMaxAge={_span(cluster.most_age_s)}",
        f"PriorityDecayHalfLife={_span(cluster.half_life_s)}",
        f"PriorityCalcPeriod={_span(cluster.calculated_every_s)}",
        f"PriorityFavorSmall={'YES' if cluster.favours_small else 'NO'}",
        *_weights(cluster),
        f"AccountingStorageEnforce={'limits,qos' if cluster.limits_hold else 'none'}",
        f"PreemptType=preempt/{ {'qos': 'qos', 'partition': 'partition_prio'}.get(cluster.preempts_by, 'none') }",
        f"PreemptMode={cluster.preempt}",
        *([f"PreemptExemptTime={_span(cluster.exempt_s)}"] if cluster.exempt_s else []),
        *_parameters(cluster),
        *(_partition(partition, names, cluster.default_partition) for partition in partitions if partition.nodes),
    ]
    files = {"slurm.conf": "\n".join(lines) + "\n"}
    if cluster.qos:
        files["qos.txt"] = "\n".join([QOS, *map(_qos, cluster.qos.values())]) + "\n"
    if cluster.associations:
        files["assoc.txt"] = "\n".join([ASSOC, *map(_association, cluster.associations)]) + "\n"
    if cluster.qos or cluster.associations:
        files["load.sh"] = "\n".join(["#!/bin/sh", "set -e", *_commands(cluster)]) + "\n"
    site_files = [name for name in files if name != "load.sh"]
    gpu = f"gpu: {cluster.gpu}\n" if cluster.divided else ""
    return {**files, "site.yaml": f"{gpu}slurm: [{', '.join(site_files)}]\n"}


def _nodes(cluster: Cluster, names: Sequence[str], per_node: int) -> Iterator[str]:
    """Nodes with what they have, those that are cut alike together."""
    like: dict[str, list[str]] = {}
    uncut: Mapping[str, int] = {}
    columns = ((cluster.divided, uncut), (cluster.sizes, per_node), (cluster.types, ""), (cluster.cpus, 1))
    each = [chain(column, repeat(otherwise)) for column, otherwise in (*columns, (cluster.heavy, 1))]
    for name, divided, size, kind, cpus, weight in zip(names, *each, strict=False):
        whole = size - cuts_of(divided, cluster.gpu)[1]
        words = [f"gpu:{kind}:{whole}" if kind else f"gpu:{whole}"] if whole and "+" not in kind else []
        words += [f"gpu:{each.removeprefix(':')}" for each in kind.split("+") if "+" in kind]  # some may have no type
        words += [f"gpu:{profile}:{count}" for profile, count in divided.items()]
        words += [f"shard:{cluster.shares * whole}"] if cluster.shares else []
        settings = f"CPUs={cpus} Gres={','.join(words)}{f' Weight={weight}' if cluster.heavy else ''}"
        like.setdefault(settings, []).append(name)
    for settings, alike in like.items():
        yield f"NodeName={','.join(alike)} {settings} State=UNKNOWN"


def _weights(cluster: Cluster) -> Iterator[str]:
    for each in fields(cluster.weights):
        value = getattr(cluster.weights, each.name)
        if value and each.name == "gpus":
            yield f"PriorityWeightTRES=gres/gpu={value:g}"
        elif value:
            yield f"PriorityWeight{WEIGHTS.get(each.name, each.name.capitalize())}={value:.0f}"


def _parameters(cluster: Cluster) -> list[str]:
    parameters = {name: (key, unit) for key, (name, unit) in PARAMETERS.items()}
    flags = {name: key for key, name in FLAGS.items() if name}
    words = [
        flags[name] if name in flags else f"{parameters[name][0]}={value / parameters[name][1]:.0f}"
        for name, value in cluster.settings.items()
    ]
    words += ["preempt_youngest_first"] if cluster.youngest_first else []
    return [f"SchedulerParameters={','.join(words)}"] if words else []


def _partition(each: Partition, names: Sequence[str], default: str) -> str:
    words = [f"PartitionName={each.name}"]
    words.append(f"Nodes={','.join(name for at, name in enumerate(names) if each.nodes >> at & 1)}")
    words += ["Default=YES"] if each.name == default else []
    words += ["State=UP", f"PriorityTier={each.tier}", f"PriorityJobFactor={each.factor}"]
    words.append(f"MaxTime={'INFINITE' if each.most_s is None else _span(each.most_s)}")
    words += [f"DefaultTime={_span(each.limit_s)}"] if each.limit_s is not None else []
    words += [f"QOS={each.qos}"] if each.qos else []
    words += [f"PreemptMode={each.preempt}"] if each.preempt else []
    return " ".join(words)


def _qos(each: Qos) -> str:
    limits = each.limits
    row = (
        each.name,
        each.priority,
        _span(each.grace_s),
        ",".join(sorted(each.stops)),
        each.preempt,
        _tres(limits, "gpus"),
        limits.jobs,
        *(_tres(limits, name) for name in ("job_gpus", "node_gpus", "least_gpus", "user_gpus")),
        limits.user_jobs,
        _tres(limits, "account_gpus"),
        limits.account_jobs,
        "OverPartQOS" if each.first else "",
    )
    return _row(row)


def _association(association: Association) -> str:
    limits = association.limits
    row = (association.account, association.parent, association.user, association.share, association.priority)
    of_job = (_tres(limits, name) for name in ("job_gpus", "node_gpus"))
    return _row((*row, _tres(limits, "gpus"), limits.jobs, *of_job, limits.user_jobs))


def _row(values: Iterable[object]) -> str:
    return "|".join("" if value is None else str(value) for value in values)


def _commands(cluster: Cluster) -> Iterator[str]:
    """What makes sacctmgr's database say the same; -1 takes a limit away. Names are quoted: they come from files."""
    for qos in cluster.qos.values():
        yield f"sacctmgr -i add qos {quote(qos.name)} || true"
    for qos in cluster.qos.values():
        stops = ",".join(sorted(qos.stops))
        grace = f" gracetime={qos.grace_s:.0f}" if qos.grace_s else ""
        mode = f" preemptmode={quote(qos.preempt.lower())}" if qos.preempt and qos.preempt != PREEMPT_OFF else ""
        yield (
            f"sacctmgr -i modify qos {quote(qos.name)} set priority={qos.priority} preempt={quote(stops)}{grace}{mode}"
            f" {_limits(qos.limits, ('MaxTRESPerUser', 'MaxJobsPerUser'))}"
        )
    for each in cluster.associations:
        if each.account == "root":
            continue
        limits, account = _limits(each.limits, ("", "MaxJobs")), quote(each.account)
        if each.user:
            yield f"sacctmgr -i add user {quote(each.user)} account={account} || true"
            who = f"user {quote(each.user)} where account={account}"
        else:
            yield f"sacctmgr -i add account {account} parent={quote(each.parent or 'root')} || true"
            who = f"account {account}"
        yield f"sacctmgr -i modify {who} set fairshare={quote(str(each.share))} priority={each.priority} {limits}"


def _limits(limits: Limits, of_user: tuple[str, str]) -> str:
    tres = {"GrpTRES": "gpus", "MaxTRESPerJob": "job_gpus", "MaxTRESPerNode": "node_gpus"}
    jobs = {"GrpJobs": limits.jobs, of_user[1]: limits.user_jobs}
    if of_user[0]:
        tres |= {of_user[0]: "user_gpus", "MaxTRESPerAccount": "account_gpus", "MinTRESPerJob": "least_gpus"}
        jobs["MaxJobsPerAccount"] = limits.account_jobs
    words = {name: _tres(limits, field) or "gres/gpu=-1" for name, field in tres.items()}
    words |= {name: "-1" if count is None else str(count) for name, count in jobs.items()}
    return " ".join(f"{name}={value}" for name, value in words.items())


def _tres(limits: Limits, name: str) -> str:
    """A limit of GPUs and of their parts, as sacctmgr prints it."""
    of = {"gpu": limits, **limits.of}
    counts = {kind: getattr(each, name) for kind, each in of.items()}
    kinds = {kind: kind if kind in ("gpu", "shard", "mps") else f"gpu:{kind}" for kind in counts}
    return ",".join(f"gres/{kinds[kind]}={count}" for kind, count in counts.items() if count is not None)


def _span(seconds: float) -> str:
    """Days-hours:minutes:seconds."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-{hour:02}:{minute:02}:{second:02}"
