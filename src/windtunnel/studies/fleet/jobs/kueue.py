"""Kueue's queues among Kubernetes objects: quotas of ClusterQueues, their Cohorts, and where LocalQueues lead."""

from __future__ import annotations

import re
from collections.abc import Sequence

from windtunnel.studies.fleet.jobs.fair_queues import is_queue
from windtunnel.studies.fleet.jobs.kubernetes_parts import SLICES
from windtunnel.studies.fleet.jobs.objects import GPU_RESOURCES, Object, count_at, items_at, mapping_at, text_at
from windtunnel.studies.fleet.jobs.trace import Cohort, Notes, Quota, Slices


def quotas_of_objects(objects: Sequence[Object], notes: Notes) -> tuple[Quota, ...]:
    """GPUs of each ClusterQueue, all kinds together, and of each LocalQueue by the ClusterQueue behind it."""
    quotas = []
    for each in objects:
        if text_at(each, "kind") != "ClusterQueue":
            continue
        spec, name, rows = mapping_at(each, "spec"), text_at(each, "metadata", "name"), _gpu_quotas(each)
        if len(rows) > 1:
            notes.add("has several flavors of GPU, which count together", name)
        quotas.append(
            Quota(
                name,
                sum(count_at(row, "nominalQuota", default=0) for row in rows),
                text_at(spec, "cohort") or text_at(spec, "cohortName"),
                _limit(rows, "borrowingLimit"),
                _limit(rows, "lendingLimit"),
                text_at(spec, "queueingStrategy") == "StrictFIFO",
                text_at(spec, "preemption", "withinClusterQueue") or "Never",
                text_at(spec, "preemption", "reclaimWithinCohort") or "Never",
                text_at(spec, "preemption", "borrowWithinCohort", "policy") or "Never",
                _number(text_at(spec, "preemption", "borrowWithinCohort", "maxPriorityThreshold")),
                _weight(text_at(spec, "fairSharing", "weight")),
                _slices(each),
            )
        )
    return tuple(quotas)


def cohorts_of_objects(objects: Sequence[Object]) -> tuple[Cohort, ...]:
    """Cohorts that have quotas, limits or parents of their own; those that queues only name need none."""
    return tuple(
        Cohort(
            text_at(entry, "metadata", "name"),
            text_at(entry, "spec", "parentName") or text_at(entry, "spec", "parent"),
            sum(count_at(row, "nominalQuota", default=0) for row in rows),
            _limit(rows, "borrowingLimit"),
            _limit(rows, "lendingLimit"),
            _weight(text_at(entry, "spec", "fairSharing", "weight")),
            _slices(entry),
        )
        for entry, rows in ((each, _gpu_quotas(each)) for each in objects if text_at(each, "kind") == "Cohort")
    )


def _gpu_quotas(holder: Object) -> list[Object]:
    """Quotas of whole GPUs of a ClusterQueue or a Cohort, of each flavor."""
    return [resource for resource in _quotas(holder) if text_at(resource, "name") in GPU_RESOURCES]


def _slices(holder: Object) -> dict[str, Slices]:
    """Slices of MIG of a ClusterQueue or a Cohort, by profile, all flavors together."""
    by_profile: dict[str, list[Object]] = {}
    for row in _quotas(holder):
        if (name := text_at(row, "name")).startswith(SLICES):
            by_profile.setdefault(name.removeprefix(SLICES), []).append(row)
    return {
        profile: Slices(
            sum(count_at(row, "nominalQuota", default=0) for row in rows),
            _limit(rows, "borrowingLimit"),
            _limit(rows, "lendingLimit"),
        )
        for profile, rows in by_profile.items()
    }


def _quotas(holder: Object) -> list[Object]:
    return [
        resource
        for group in items_at(holder, "spec", "resourceGroups")
        for flavor in items_at(group, "flavors")
        for resource in items_at(flavor, "resources")
    ]


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?\d+", text) else None


def _weight(text: str) -> float:
    """Of fair sharing: 1 where it is not said, and by thousandths as `500m`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", text)
    return 1.0 if match is None else float(match.group(1)) / (1000 if match.group(2) else 1)


def _limit(rows: Sequence[Object], key: str) -> int | None:
    limits = [count_at(row, key, default=0) for row in rows if text_at(row, key)]
    return sum(limits) if len(limits) == len(rows) and rows else None


def cluster_queues(objects: Sequence[Object]) -> dict[str, str]:
    """The ClusterQueue behind each local queue, as LocalQueues and Workloads say it; a `Queue` is its own."""
    behind = {}
    for each in objects:
        space = text_at(each, "metadata", "namespace")
        if is_queue(each):  # of no namespace
            behind[text_at(each, "metadata", "name")] = text_at(each, "metadata", "name")
        elif text_at(each, "kind") == "LocalQueue":
            behind[f"{space}/{text_at(each, 'metadata', 'name')}"] = text_at(each, "spec", "clusterQueue")
        elif text_at(each, "kind") == "Workload" and text_at(each, "status", "admission", "clusterQueue"):
            behind[f"{space}/{text_at(each, 'spec', 'queueName')}"] = text_at(
                each, "status", "admission", "clusterQueue"
            )
    return behind
