"""Kubernetes objects as `kubectl get ... -o json` gives them: one job for each object that nobody else owns.

Owners (`ownerReferences`) are followed to the top: a Workload of Kueue, the Jobs of a JobSet and all pods are parts of
one job (`kubernetes_parts.py`), which takes its submission from the object at the top, its start from that object's
status, else from the Workload's admission, else from the first pod that was scheduled, and its priority and queue from
the Workload or the labels of Kueue. Pods of an owner that is not in the file are one job. A deadline
(`activeDeadlineSeconds`) is a limit and no run time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median

from windtunnel.studies.fleet.jobs.flavors import NONE, resources_of, why_not
from windtunnel.studies.fleet.jobs.kubernetes_parts import (
    CLAIMS,
    COMPLETED,
    FAILED,
    MEMORY,
    PENDING,
    RUNNING,
    RUNTIMES,
    Gpus,
    Part,
)
from windtunnel.studies.fleet.jobs.kueue import cluster_queues
from windtunnel.studies.fleet.jobs.objects import Object, count_at, items_at, mapping_at, text_at
from windtunnel.studies.fleet.jobs.trace import Notes, Quota

DURATION = "windtunnel/duration-s"  # an annotation of ours
NO_JOBS = (
    *("ClusterQueue", "LocalQueue", "Cohort", "ResourceFlavor", "WorkloadPriorityClass", "PriorityClass", "Topology"),
    *("Node", "Queue", "PodGroup", "ResourceClaim", CLAIMS, "AdmissionCheck", *RUNTIMES),
    *("ConfigMap", "CronJob", "Event", "Namespace", "PersistentVolumeClaim", "Secret", "Service", "ServiceAccount"),
)
SERVICES = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "LeaderWorkerSet", "RayService", "InferenceService")
TIMES = ("submit_s", "start_s", "end_s")


def jobs_of_objects(objects: Sequence[Object], notes: Notes, quotas: Sequence[Quota] = ()) -> list[dict[str, object]]:
    """A row for each job, times in seconds since the first submission. `quotas`: queues whose flavors it may use."""
    parts: dict[str, list[Part]] = {}
    templates = {Part(each).label: each for each in objects if text_at(each, "kind") in (CLAIMS, *RUNTIMES)}
    uids = {text_at(each, "metadata", "uid"): Part(each) for each in objects}
    for each in objects:
        part = Part(each, templates)
        if part.kind in NO_JOBS:
            continue
        top = part.top(uids)
        if part.created is None and not top:
            notes.add("has no creationTimestamp: left out", part.name)
            continue
        parts.setdefault(top or part.key, []).append(part)
    pairs = [(row, group) for key, group in parts.items() if (row := _row(key, group, notes)) is not None]
    rows = [row for row, _ in pairs]
    first = min((time for row in rows if isinstance(time := row["submit_s"], float)), default=0.0)
    behind, by_name = cluster_queues(objects), {quota.name: quota for quota in quotas}
    for row, group in pairs:
        queue = str(row["queue"])
        name = row["cluster_queue"] = behind.get(f"{row['user']}/{queue}") or behind.get(queue, "")
        if (name or queue) in by_name:
            row["flavors"] = _flavors(str(row["job"]), by_name[name or queue], group, notes)
        row.update({key: time - first for key in TIMES if isinstance(time := row[key], float)})
    _take_usual_checks(rows, by_name, notes)
    return rows


def _take_usual_checks(rows: Sequence[dict[str, object]], queues: Mapping[str, Quota], notes: Notes) -> None:
    """Where a job's checks are not told to have ended, they take as long as others' of its queue in the median."""
    lasted: dict[str, list[float]] = {}
    for row in rows:
        if isinstance(seconds := row["checks_s"], float):
            lasted.setdefault(str(row["cluster_queue"]), []).append(seconds)
    for row in rows:
        name = str(row["cluster_queue"])
        if row["checks_s"] is not None or name not in queues or not queues[name].checks:
            continue
        if name in lasted:
            row["checks_s"] = median(lasted[name])
        else:
            text = f"waits for admission checks ({', '.join(queues[name].checks)}) of its queue, and no job tells how"
            notes.add(f"{text} long: no time, unless checks_s of a policy file says it", str(row["job"]))


def _row(key: str, group: list[Part], notes: Notes) -> dict[str, object] | None:
    """The job that these objects are; None where it is none."""
    top = next((part for part in group if part.key == key), None)
    workload = next((part for part in group if part.kind == "Workload"), None)
    pods = [part for part in group if part.kind == "Pod"]
    head = top or workload or group[0]
    owner = None if top else head.owner()
    space = text_at(head.item, "metadata", "namespace")
    name = f"{space}/{text_at(owner, 'name')}".lstrip("/") if owner is not None else head.name
    if head.kind in SERVICES or (owner is not None and text_at(owner, "kind") in SERVICES):
        notes.add(f"is a service ({text_at(owner, 'kind') or head.kind}) and no job: left out", name)
        return None
    sources = [*([top] if top and top.kind != "Pod" else []), *([workload] if workload else [])]
    if not any(pod for part in group for _, pod in part.pods()) and head.kind != "TrainJob":
        notes.add(f"is a {head.kind}, which has no pods: left out", name)
        return None
    gpus = next((number for part in sources if (number := part.gpus(notes, name))), Gpus())
    gpus = gpus or sum((part.gpus(notes, name) for part in group if part.kind not in ("Pod", "Workload")), Gpus())
    gpus = gpus or sum((part.gpus(notes, name) for part in pods), Gpus())
    if len(gpus) > 1:
        notes.add("asks for parts of several kinds, or beside whole GPUs: counted as whole GPUs", name)
    if not gpus and all(part.state() != RUNNING for part in group):
        notes.add(f"is a {head.kind} that asks for no GPU as far as the file says", name)
    upper = [part for part in (top, workload) if part is not None]
    state_parts = upper or pods
    state = next((word for part in state_parts if (word := part.state())), "")
    start = _first(part.start() for part in upper)
    if start is None:
        start = min((time for part in pods if (time := part.start()) is not None), default=None)
    end = _first(part.end() for part in upper)
    if end is None and state in (COMPLETED, FAILED):
        end = max((time for part in pods if (time := part.end()) is not None), default=None)
    _evictions(workload, name, notes)
    if text_at(head.item, "spec", "ttlSecondsAfterFinished"):
        notes.add("is deleted a while after its end: such a file holds those that are left", name)
    limit = text_at(head.item, "spec", "activeDeadlineSeconds") or text_at(
        head.item, "spec", "runPolicy", "activeDeadlineSeconds"
    )
    lasted: object = text_at(head.item, "metadata", "annotations", DURATION) or None
    if lasted is None and start is not None and end is not None:
        lasted = end - start
    if lasted is None and not state and limit:
        notes.add("has no status: its time limit stands for its run time", name)
        lasted = limit
    if state == RUNNING:
        notes.add("still runs: for how long is not told", name)
    topology, pod_gpus = _topology(sources or pods, name, notes)
    if head.word((MEMORY,)):
        notes.add(f"asks for memory of a GPU by an annotation ({MEMORY}), which does not count", name)
    said_by = workload.item if workload else {}
    return {
        "job": name or key,
        "submit_s": next((part.created for part in (top, workload, *group) if part and part.created is not None), None),
        "start_s": start,
        "end_s": end if state in (COMPLETED, FAILED) else None,
        "duration_s": lasted,
        "gpus": gpus.total(),
        "part": next(iter(gpus)) if len(gpus) == 1 else "",
        "user": space,
        "ended": {FAILED: "failed", RUNNING: "unfinished", PENDING: "unfinished"}.get(state, ""),
        "limit_s": limit or None,
        "queue": text_at(said_by, "spec", "queueName") or head.queue(),
        "priority": text_at(said_by, "spec", "priority") or head.priority(),
        "log_state": state,
        "topology": topology,
        "pod_gpus": pod_gpus,
        "checks_s": _checks_s(workload, name, notes),
    }


def _checks_s(workload: Part | None, name: str, notes: Notes) -> float | None:
    """From its quota to its admission, where Kueue's checks lie between; None: it has none, or they are not over."""
    checks = items_at(mapping_at(workload.item, "status"), "admissionChecks") if workload else []
    if workload is None or not checks:
        return None
    reserved, admitted = (workload.conditions.get(word) for word in ("QuotaReserved", "Admitted"))
    if reserved is not None and admitted is not None:
        return max(admitted - reserved, 0.0)
    open_checks = [f"{text_at(each, 'name')} {text_at(each, 'state')}" for each in checks]
    late = [words for words in open_checks if not words.endswith(" Ready")]
    if reserved is not None and late:
        notes.add(f"has its quota and waits for admission checks: {', '.join(late)}", name)
    return None


def _flavors(job: str, queue: Quota, group: Sequence[Part], notes: Notes) -> str:
    """Flavors of its queue that a job may use, by commas; empty: all."""
    parts = [part for part in group if part.kind == "Workload"] or group
    pods = [pod for part in parts for _, pod in part.pods() if resources_of(pod)]
    reasons = {name: why_not(flavor, pods) for name, flavor in queue.flavors.items()}
    if not any(reasons.values()):
        return ""
    if all(reasons.values()):
        words = ", ".join(f"{name} {why}" for name, why in reasons.items())
        notes.add(f"may use no flavor of {queue.name}: {words}", job)
    return ",".join(name for name, why in reasons.items() if not why) or NONE


def _topology(parts: Sequence[Part], name: str, notes: Notes) -> tuple[str, int | None]:
    """What is asked of Kueue's topology, and GPUs of each pod; empty and None where nothing is."""
    topologies = [words for part in parts for words in part.topologies()]
    if any(words.startswith("slice") for words in topologies):
        notes.add("asks for slices in the topology: not modelled, its other words stand", name)
    requests = [words for words in topologies if not words.startswith("slice")]
    if not requests:
        return "", None
    if len(set(requests)) > 1:
        notes.add("asks for unlike places of its pods: the first stands for all", name)
    return requests[0], max((part.gpus_of_largest_pod() for part in parts), default=0) or None


def _evictions(workload: Part | None, name: str, notes: Notes) -> None:
    status = mapping_at(workload.item, "status") if workload else {}
    if items_at(status, "schedulingStats", "evictions") or count_at(status, "requeueState", "count", default=0):
        notes.add("was evicted: only its last start is told", name)


def _first(times: Iterable[float | None]) -> float | None:
    return next((time for time in times if time is not None), None)
