"""Quotas of Kueue: of ClusterQueues, of the LocalQueues before them and of Cohorts (v1beta1, v1beta2)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from windtunnel.studies.fleet.jobs.kubernetes_fields import GPU_RESOURCES, Object, count, items, mapping, text
from windtunnel.studies.fleet.jobs.trace import Cohort, Notes, Quota


def quotas_of_objects(objects: Sequence[Object], notes: Notes) -> tuple[Quota, ...]:
    """GPUs of each ClusterQueue, all kinds together, and of each LocalQueue by the ClusterQueue behind it."""
    quotas = []
    for each in objects:
        if text(each, "kind") != "ClusterQueue":
            continue
        spec, name, rows = mapping(each, "spec"), text(each, "metadata", "name"), _gpu_quotas(each)
        if len(rows) > 1:
            notes.add("has several flavors of GPU, which count together", name)
        quotas.append(
            Quota(
                name,
                sum(count(row, "nominalQuota", default=0) for row in rows),
                text(spec, "cohort") or text(spec, "cohortName"),
                _limit(rows, "borrowingLimit"),
                _limit(rows, "lendingLimit"),
                text(spec, "queueingStrategy") == "StrictFIFO",
                text(spec, "preemption", "withinClusterQueue") or "Never",
                text(spec, "preemption", "reclaimWithinCohort") or "Never",
                text(spec, "preemption", "borrowWithinCohort", "policy") or "Never",
                _number(text(spec, "preemption", "borrowWithinCohort", "maxPriorityThreshold")),
                _weight(text(spec, "fairSharing", "weight")),
            )
        )
    return tuple(quotas)


def cohorts_of_objects(objects: Sequence[Object]) -> tuple[Cohort, ...]:
    """Cohorts that have quotas, limits or parents of their own; those that queues only name need none."""
    return tuple(
        Cohort(
            text(each, "metadata", "name"),
            text(each, "spec", "parentName") or text(each, "spec", "parent"),
            sum(count(row, "nominalQuota", default=0) for row in rows),
            _limit(rows, "borrowingLimit"),
            _limit(rows, "lendingLimit"),
            _weight(text(each, "spec", "fairSharing", "weight")),
        )
        for each, rows in ((each, _gpu_quotas(each)) for each in objects if text(each, "kind") == "Cohort")
    )


def _gpu_quotas(holder: Object) -> list[Object]:
    """Quotas of GPUs of a ClusterQueue or a Cohort, of each flavor."""
    return [
        resource
        for group in items(holder, "spec", "resourceGroups")
        for flavor in items(group, "flavors")
        for resource in items(flavor, "resources")
        if text(resource, "name") in GPU_RESOURCES
    ]


def _number(words: str) -> float | None:
    return float(words) if re.fullmatch(r"-?\d+", words) else None


def _weight(words: str) -> float:
    """Of fair sharing: 1 where it is not said, and by thousandths as `500m`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", words)
    return 1.0 if found is None else float(found.group(1)) / (1000 if found.group(2) else 1)


def _limit(rows: Sequence[Object], key: str) -> int | None:
    said = [count(row, key, default=0) for row in rows if text(row, key)]
    return sum(said) if len(said) == len(rows) and rows else None


def cluster_queues(objects: Sequence[Object]) -> dict[str, str]:
    """The ClusterQueue behind each local queue, as LocalQueues and admitted Workloads say it."""
    behind = {}
    for each in objects:
        space = text(each, "metadata", "namespace")
        if text(each, "kind") == "LocalQueue":
            behind[f"{space}/{text(each, 'metadata', 'name')}"] = text(each, "spec", "clusterQueue")
        elif text(each, "kind") == "Workload" and text(each, "status", "admission", "clusterQueue"):
            behind[f"{space}/{text(each, 'spec', 'queueName')}"] = text(each, "status", "admission", "clusterQueue")
    return behind
