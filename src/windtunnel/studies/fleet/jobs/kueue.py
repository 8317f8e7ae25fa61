"""Kueue's queues among Kubernetes objects: quotas of ClusterQueues, their Cohorts, and where LocalQueues lead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from windtunnel.studies.fleet.jobs.fair_queues import is_queue
from windtunnel.studies.fleet.jobs.kubernetes_parts import SLICES
from windtunnel.studies.fleet.jobs.objects import Object, is_whole_gpu, items_at, mapping_at, text_at
from windtunnel.studies.fleet.jobs.trace import Cohort, Flavor, Notes, Quota, Slices

ENDLESS = 10**9  # GPUs of a quota that is to have no end


def quotas_of_objects(objects: Sequence[Object], notes: Notes) -> tuple[Quota, ...]:
    """GPUs of each ClusterQueue: of all flavors, and of each where the file has several or says who may use them."""
    specs = _specs(objects)
    quotas = []
    for each in objects:
        if text_at(each, "kind") != "ClusterQueue":
            continue
        spec, name, rows = mapping_at(each, "spec"), text_at(each, "metadata", "name"), _gpu_quotas(each)
        for flavor in [flavor for flavor in dict(rows) if specs is not None and flavor not in specs]:
            notes.add(f"has the flavor {flavor}, whose ResourceFlavor the file does not have: nobody uses it", name)
        flavors, total = _flavors(rows, specs)
        fungible = mapping_at(spec, "flavorFungibility")
        quotas.append(
            Quota(
                name,
                total.nominal,
                text_at(spec, "cohort") or text_at(spec, "cohortName"),
                total.borrowing_limit,
                total.lending_limit,
                strict=text_at(spec, "queueingStrategy") == "StrictFIFO",
                within=text_at(spec, "preemption", "withinClusterQueue") or "Never",
                reclaim=text_at(spec, "preemption", "reclaimWithinCohort") or "Never",
                borrow_within=text_at(spec, "preemption", "borrowWithinCohort", "policy") or "Never",
                borrow_priority=_number(text_at(spec, "preemption", "borrowWithinCohort", "maxPriorityThreshold")),
                weight=_weight(text_at(spec, "fairSharing", "weight")),
                slices=_slices(each, name, notes),
                flavors=flavors,
                borrow_next=text_at(fungible, "whenCanBorrow") == "TryNextFlavor",
                preempt_next=text_at(fungible, "whenCanPreempt") in ("", "TryNextFlavor"),
                borrow_last=text_at(fungible, "preference") == "PreemptionOverBorrowing",
                checks=_checks(spec),
            )
        )
    return tuple(quotas)


def _checks(spec: Object) -> tuple[str, ...]:
    """Admission checks of all jobs of a queue; one of some flavors alone is a job's own, where its Workload has it."""
    listed = spec.get("admissionChecks")
    each = items_at(spec, "admissionChecksStrategy", "admissionChecks")
    of_all = [text_at(entry, "name") for entry in each if not entry.get("onFlavors")]
    return (*(str(name) for name in (listed if isinstance(listed, list) else ())), *of_all)


def cohorts_of_objects(objects: Sequence[Object]) -> tuple[Cohort, ...]:
    """Cohorts that have quotas, limits or parents of their own; those that queues only name need none."""
    specs = _specs(objects)
    return tuple(
        Cohort(
            text_at(entry, "metadata", "name"),
            text_at(entry, "spec", "parentName") or text_at(entry, "spec", "parent"),
            total.nominal,
            total.borrowing_limit,
            total.lending_limit,
            _weight(text_at(entry, "spec", "fairSharing", "weight")),
            _slices(entry),
            flavors,
        )
        for entry in objects
        if text_at(entry, "kind") == "Cohort"
        for flavors, total in (_flavors(_gpu_quotas(entry), specs),)
    )


def _specs(objects: Sequence[Object]) -> dict[str, Object] | None:
    """Specs of the flavors of GPUs; None where one flavor of which nothing is told stands for all GPUs."""
    holders = [each for each in objects if text_at(each, "kind") in ("ClusterQueue", "Cohort")]
    names = dict.fromkeys(flavor for each in holders for flavor, _ in _gpu_quotas(each))
    by_name = {
        text_at(each, "metadata", "name"): mapping_at(each, "spec")
        for each in objects
        if text_at(each, "kind") == "ResourceFlavor"
    }
    if len(names) < 2 and not any(by_name.get(name) for name in names):
        return None
    return {name: by_name.get(name, {}) for name in names if name in by_name or not by_name}


def _flavors(
    rows: Sequence[tuple[str, Object]], specs: Mapping[str, Object] | None
) -> tuple[dict[str, Flavor], Slices]:
    """Quotas of each flavor, in the order of the file, and of all."""
    known = [(name, row) for name, row in rows if specs is None or name in specs]
    flavors = {}
    for name in dict(known) if specs is not None else ():
        own = [row for of, row in known if of == name]
        total, resources = _total(own), tuple(text_at(row, "name") for row in own)
        flavors[name] = Flavor(
            total.nominal, total.borrowing_limit, total.lending_limit, (specs or {})[name], resources
        )
    return flavors, _total([row for _, row in known])


def _gpu_quotas(holder: Object) -> list[tuple[str, Object]]:
    """Quotas of whole GPUs of a ClusterQueue or a Cohort, each with its flavor."""
    return [(flavor, row) for flavor, row in _quotas(holder) if is_whole_gpu(text_at(row, "name"))]


def _slices(holder: Object, name: str = "", notes: Notes | None = None) -> dict[str, Slices]:
    """Slices of MIG of a ClusterQueue or a Cohort, by profile, all flavors together."""
    by_profile: dict[str, list[Object]] = {}
    for _, row in _quotas(holder):
        if (resource := text_at(row, "name")).startswith(SLICES):
            by_profile.setdefault(resource.removeprefix(SLICES), []).append(row)
    if notes is not None and any(len(rows) > 1 for rows in by_profile.values()):
        notes.add("has several flavors of one profile of MIG, which count together", name)
    return {profile: _total(rows) for profile, rows in by_profile.items()}


def _quotas(holder: Object) -> list[tuple[str, Object]]:
    return [
        (text_at(flavor, "name"), resource)
        for group in items_at(holder, "spec", "resourceGroups")
        for flavor in items_at(group, "flavors")
        for resource in items_at(flavor, "resources")
    ]


def _total(rows: Sequence[Object]) -> Slices:
    """What rows owe together, and the most that they borrow and lend: None where one has no limit."""
    nominal = sum(_amount(text_at(row, "nominalQuota")) for row in rows)
    return Slices(nominal, _limit(rows, "borrowingLimit"), _limit(rows, "lendingLimit"))


def _amount(text: str) -> int:
    """GPUs; more than any cluster has stands for no end of them. Kubernetes writes 1000 as 1k."""
    match = re.fullmatch(r"([0-9]{1,19})([kMGTPE]?)", text)
    return min(int(match[1]) * 1000 ** " kMGTPE".index(match[2] or " "), ENDLESS) if match else 0


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?\d+", text) else None


def _weight(text: str) -> float:
    """Of fair sharing: 1 where it is not said, and by thousandths as `500m`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", text)
    return 1.0 if match is None else float(match.group(1)) / (1000 if match.group(2) else 1)


def _limit(rows: Sequence[Object], key: str) -> int | None:
    limits = [_amount(text_at(row, key)) for row in rows if text_at(row, key)]
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
