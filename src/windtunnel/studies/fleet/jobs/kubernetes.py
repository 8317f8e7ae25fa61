"""Kubernetes objects as `kubectl get ... -o json` gives them: one job for each object that nobody else owns.

Owners (`ownerReferences`) are followed to the top: a Workload of Kueue, the Jobs of a JobSet and all pods are parts of
one job, which takes its submission from the object at the top, its start from that object's status, else from the
Workload's admission, else from the first pod that was scheduled, and its priority and queue from the Workload or the
labels of Kueue. Pods of an owner that is not in the file are one job.

GPUs of a pod: the larger of the sum of its containers and of each init container alone; init containers that stay
(restartPolicy Always) count beside both. A deadline (`activeDeadlineSeconds`) is a limit and no run time.
Sources: Kubernetes API v1 and batch/v1, Kueue v1beta1 and v1beta2, Kubeflow v1 and trainer, JobSet v1alpha2, Ray v1,
MPIJob v2beta1, LeaderWorkerSet v1, Volcano v1alpha1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from windtunnel.studies.fleet.jobs.trace import Cohort, Notes, Quota

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "habana.ai/gaudi", "google.com/tpu", "aws.amazon.com/neuron")
SHARES = "nvidia.com/gpu.shared"  # a GPU in turns with others, or a share of one by MPS, under the name of its own
SLICES = ("nvidia.com/mig-", "gpu.intel.com/")  # parts of a GPU, or GPUs by their driver
QUEUE, PRIORITY, GROUP = (f"kueue.x-k8s.io/{key}" for key in ("queue-name", "priority-class", "pod-group-name"))
TOPOLOGY = {  # annotations of a pod's template
    f"kueue.x-k8s.io/podset-{word}-topology": word for word in ("required", "preferred", "unconstrained")
} | {"kueue.x-k8s.io/podset-slice-required-topology": "slice"}
DURATION = "windtunnel/duration-s"  # an annotation of ours
NO_JOBS = (
    *("ClusterQueue", "LocalQueue", "Cohort", "ResourceFlavor", "WorkloadPriorityClass", "PriorityClass", "Topology"),
    *("Node", "Queue", "PodGroup", "ResourceClaim", "ResourceClaimTemplate", "AdmissionCheck"),
    *("ConfigMap", "CronJob", "Event", "Namespace", "PersistentVolumeClaim", "Secret", "Service", "ServiceAccount"),
)
SERVICES = ("Deployment", "StatefulSet", "ReplicaSet", "DaemonSet", "LeaderWorkerSet", "RayService", "InferenceService")
COMPLETED, FAILED, RUNNING, PENDING = "COMPLETED", "FAILED", "RUNNING", "PENDING"
STATES = {  # conditions that are true, phases and Ray's words
    **dict.fromkeys(("complete", "completed", "succeeded", "finished", "successcriteriamet"), COMPLETED),
    **dict.fromkeys(("failed", "failuretarget", "stopped", "terminated", "aborted"), FAILED),
    **dict.fromkeys(("running", "admitted", "podsready", "ready", "restarting"), RUNNING),
    **dict.fromkeys(("pending", "suspended", "created", "inqueue"), PENDING),
}
ORDER = (FAILED, COMPLETED, RUNNING, PENDING)  # of several conditions the first tells
TIMES = ("submit_s", "start_s", "end_s")
Object = Mapping[str, object]
Pods = list[tuple[int, Object]]  # so many, and their spec


def jobs_of_objects(objects: Sequence[Object], notes: Notes) -> list[dict[str, object]]:
    """A row for each job, times in seconds since the first submission."""
    parts: dict[str, list[Part]] = {}
    uids = {_text(each, "metadata", "uid"): Part(each) for each in objects}
    for each in objects:
        part = Part(each)
        if part.kind in NO_JOBS:
            continue
        top = part.top(uids)
        if part.created is None and not top:
            notes.add("has no creationTimestamp: left out", part.name)
            continue
        parts.setdefault(top or part.key, []).append(part)
    rows = [row for key, group in parts.items() if (row := _row(key, group, notes)) is not None]
    first = min((time for row in rows if isinstance(time := row["submit_s"], float)), default=0.0)
    behind = _cluster_queues(objects)
    for row in rows:
        row["cluster_queue"] = behind.get(f"{row['user']}/{row['queue']}", "")
        row.update({key: time - first for key in TIMES if isinstance(time := row[key], float)})
    return rows


@dataclass(frozen=True)
class Part:
    """One object of the file."""

    item: Object

    @property
    def kind(self) -> str:
        """Its kind."""
        return _text(self.item, "kind")

    @property
    def name(self) -> str:
        """Namespace and name."""
        name, space = _text(self.item, "metadata", "name"), _text(self.item, "metadata", "namespace")
        return f"{space}/{name}" if space else name

    @property
    def key(self) -> str:
        """What tells it apart; a group of pods has one."""
        group = _text(self.item, "metadata", "labels", GROUP)
        space = _text(self.item, "metadata", "namespace")
        return f"group {space}/{group}" if group else _text(self.item, "metadata", "uid") or f"{self.kind} {self.name}"

    @property
    def created(self) -> float | None:
        """Seconds since 1970."""
        return _time(self.item, "metadata", "creationTimestamp")

    @property
    def conditions(self) -> dict[str, float | None]:
        """Conditions that hold, and since when."""
        return {
            _text(each, "type"): _time(each, "lastTransitionTime")
            for each in _items(self.item, "status", "conditions")
            if _text(each, "status") == "True"
        }

    def owner(self) -> Object | None:
        """The reference to its owner: the controller, else the first."""
        owners = _items(self.item, "metadata", "ownerReferences")
        return next((each for each in owners if each.get("controller") is True), owners[0] if owners else None)

    def top(self, uids: Mapping[str, Part]) -> str:
        """The key of the object at the top of its owners, in the file or not; empty for itself."""
        part, seen = self, set[str]()
        while (owner := part.owner()) is not None:
            uid = _text(owner, "uid") or f"{_text(owner, 'kind')} {_text(owner, 'name')}"
            if uid in seen or uid not in uids:
                return uid
            seen.add(uid)
            part = uids[uid]
        return "" if part is self else part.key

    def state(self) -> str:
        """What became of it; empty where it has no status."""
        status = _mapping(self.item, "status")
        words = [*self.conditions, _text(status, "phase"), _text(status, "state", "phase"), _text(status, "jobStatus")]
        words += [_text(status, "terminalState"), _text(status, "jobDeploymentStatus")]
        if self.kind == "Pod":
            words = [_text(status, "phase")]  # its conditions are of containers
        if self.kind == "Workload" and "Finished" in self.conditions:
            reason = next(_text(c, "reason") for c in _items(status, "conditions") if _text(c, "type") == "Finished")
            words = ["Failed" if "fail" in reason.lower() else "Finished"]
        known = {STATES[word.lower()] for word in words if word.lower() in STATES}
        if known:
            return next(state for state in ORDER if state in known)
        return (RUNNING if self.start() is not None else PENDING) if status else ""

    def start(self) -> float | None:
        """When it started to run."""
        status, conditions = _mapping(self.item, "status"), self.conditions
        if self.kind == "Pod":
            return conditions.get("PodScheduled")
        if self.kind == "Workload":
            return conditions.get("Admitted")
        if _text(status, "state", "lastTransitionTime") and _text(status, "runningDuration"):  # Volcano
            changed, ran = _time(status, "state", "lastTransitionTime"), _go_seconds(_text(status, "runningDuration"))
            return None if changed is None or ran is None else changed - ran
        return _time(status, "startTime") or conditions.get("StartupPolicyCompleted")

    def end(self) -> float | None:
        """When it ended."""
        status = _mapping(self.item, "status")
        if self.kind == "Pod":
            ends = [_time(each, "state", "terminated", "finishedAt") for each in _items(status, "containerStatuses")]
            return max((end for end in ends if end is not None), default=None) if None not in ends else None
        said = _time(status, "completionTime") or _time(status, "endTime")
        if said is None and _text(status, "state", "phase").lower() in STATES and self.state() in (COMPLETED, FAILED):
            said = _time(status, "state", "lastTransitionTime")
        over = (time for word, time in self.conditions.items() if STATES.get(word.lower()) in (COMPLETED, FAILED))
        return said if said is not None else next(over, None)

    def pods(self) -> Pods:
        """Its pods at one time."""
        spec = _mapping(self.item, "spec")
        if self.kind == "Pod":
            return [(1, spec)]
        if self.kind == "Workload":
            return [(_count(each, "count"), _mapping(each, "template", "spec")) for each in _items(spec, "podSets")]
        if self.kind == "JobSet":
            return [
                (
                    _count(each, "replicas") * _count(each, "template", "spec", "parallelism"),
                    _mapping(each, "template", "spec", "template", "spec"),
                )
                for each in _items(spec, "replicatedJobs")
            ]
        if self.kind in ("RayJob", "RayCluster"):
            cluster = _mapping(spec, "rayClusterSpec") or spec
            workers = _items(cluster, "workerGroupSpecs")
            each = [(_count(w, "replicas") * _count(w, "numOfHosts"), _mapping(w, "template", "spec")) for w in workers]
            return [(1, _mapping(cluster, "headGroupSpec", "template", "spec")), *each]
        if self.kind == "TrainJob":
            trainer = _mapping(spec, "trainer")
            return [(_count(trainer, "numNodes"), {"containers": [{"resources": trainer.get("resourcesPerNode")}]})]
        if self.kind == "LeaderWorkerSet":
            template = _mapping(spec, "leaderWorkerTemplate")
            worker = _mapping(template, "workerTemplate", "spec")
            leader = _mapping(template, "leaderTemplate", "spec") or worker
            sets = _count(spec, "replicas")
            return [(sets, leader), (sets * max(_count(template, "size") - 1, 0), worker)]
        roles = next((value for key, value in spec.items() if str(key).endswith("ReplicaSpecs")), None)
        if isinstance(roles, Mapping):  # of Kubeflow
            return [(_count(role, "replicas"), _mapping(role, "template", "spec")) for role in roles.values()]
        if _items(spec, "tasks"):  # of Volcano
            return [(_count(task, "replicas"), _mapping(task, "template", "spec")) for task in _items(spec, "tasks")]
        return [(_count(spec, "parallelism"), _mapping(spec, "template", "spec"))]

    def topologies(self) -> list[str]:
        """What its pods ask of the topology, as `required LEVEL`; of slices `slice LEVEL`."""
        spec, found = _mapping(self.item, "spec"), []
        if self.kind == "Workload":
            for each in _items(spec, "podSets"):
                asked = _mapping(each, "topologyRequest")
                found += [f"{word} {_text(asked, word)}" for word in ("required", "preferred") if _text(asked, word)]
                found += ["unconstrained"] if asked.get("unconstrained") is True else []
                found += ["slice"] if _text(asked, "podSetSliceRequiredTopology") else []
            return found
        template = self.item if self.kind == "Pod" else _mapping(spec, "template")
        for key, value in _mapping(template, "metadata", "annotations").items():
            word = TOPOLOGY.get(str(key))
            if word:
                found.append(word if word == "unconstrained" else f"{word} {value}")
        return found


def quotas_of_objects(objects: Sequence[Object], notes: Notes) -> tuple[Quota, ...]:
    """GPUs of each ClusterQueue, all kinds together, and of each LocalQueue by the ClusterQueue behind it."""
    quotas = []
    for each in objects:
        if _text(each, "kind") != "ClusterQueue":
            continue
        spec, name, rows = _mapping(each, "spec"), _text(each, "metadata", "name"), _gpu_quotas(each)
        if len(rows) > 1:
            notes.add("has several flavors of GPU, which count together", name)
        quotas.append(
            Quota(
                name,
                sum(_count(row, "nominalQuota", default=0) for row in rows),
                _text(spec, "cohort") or _text(spec, "cohortName"),
                _limit(rows, "borrowingLimit"),
                _limit(rows, "lendingLimit"),
                _text(spec, "queueingStrategy") == "StrictFIFO",
                _text(spec, "preemption", "withinClusterQueue") or "Never",
                _text(spec, "preemption", "reclaimWithinCohort") or "Never",
                _text(spec, "preemption", "borrowWithinCohort", "policy") or "Never",
                _number(_text(spec, "preemption", "borrowWithinCohort", "maxPriorityThreshold")),
                _weight(_text(spec, "fairSharing", "weight")),
            )
        )
    return tuple(quotas)


def cohorts_of_objects(objects: Sequence[Object]) -> tuple[Cohort, ...]:
    """Cohorts that have quotas, limits or parents of their own; those that queues only name need none."""
    return tuple(
        Cohort(
            _text(each, "metadata", "name"),
            _text(each, "spec", "parentName") or _text(each, "spec", "parent"),
            sum(_count(row, "nominalQuota", default=0) for row in rows),
            _limit(rows, "borrowingLimit"),
            _limit(rows, "lendingLimit"),
            _weight(_text(each, "spec", "fairSharing", "weight")),
        )
        for each, rows in ((each, _gpu_quotas(each)) for each in objects if _text(each, "kind") == "Cohort")
    )


def _gpu_quotas(holder: Object) -> list[Object]:
    """Quotas of GPUs of a ClusterQueue or a Cohort, of each flavor."""
    return [
        resource
        for group in _items(holder, "spec", "resourceGroups")
        for flavor in _items(group, "flavors")
        for resource in _items(flavor, "resources")
        if _text(resource, "name") in GPU_RESOURCES
    ]


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"-?\d+", text) else None


def _weight(text: str) -> float:
    """Of fair sharing: 1 where it is not said, and by thousandths as `500m`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(m?)", text)
    return 1.0 if found is None else float(found.group(1)) / (1000 if found.group(2) else 1)


def _limit(rows: Sequence[Object], key: str) -> int | None:
    said = [_count(row, key, default=0) for row in rows if _text(row, key)]
    return sum(said) if len(said) == len(rows) and rows else None


def _cluster_queues(objects: Sequence[Object]) -> dict[str, str]:
    """The ClusterQueue behind each local queue, as LocalQueues and admitted Workloads say it."""
    behind = {}
    for each in objects:
        space = _text(each, "metadata", "namespace")
        if _text(each, "kind") == "LocalQueue":
            behind[f"{space}/{_text(each, 'metadata', 'name')}"] = _text(each, "spec", "clusterQueue")
        elif _text(each, "kind") == "Workload" and _text(each, "status", "admission", "clusterQueue"):
            behind[f"{space}/{_text(each, 'spec', 'queueName')}"] = _text(each, "status", "admission", "clusterQueue")
    return behind


def _row(key: str, group: list[Part], notes: Notes) -> dict[str, object] | None:
    """The job that these objects are; None where it is none."""
    top = next((part for part in group if part.key == key), None)
    workload = next((part for part in group if part.kind == "Workload"), None)
    pods = [part for part in group if part.kind == "Pod"]
    head = top or workload or group[0]
    owner = None if top else head.owner()
    space = _text(head.item, "metadata", "namespace")
    name = f"{space}/{_text(owner, 'name')}".lstrip("/") if owner is not None else head.name
    if head.kind in SERVICES or (owner is not None and _text(owner, "kind") in SERVICES):
        notes.add(f"is a service ({_text(owner, 'kind') or head.kind}) and no job: left out", name)
        return None
    sources = [*([top] if top and top.kind != "Pod" else []), *([workload] if workload else [])]
    gpus = next((said for part in sources if (said := _gpus_of(part.pods(), name, notes))), 0)
    gpus = gpus or sum(_gpus_of(part.pods(), name, notes) for part in group if part.kind not in ("Pod", "Workload"))
    gpus = gpus or sum(_gpus_of(part.pods(), name, notes) for part in pods)
    if not gpus and all(part.state() != RUNNING for part in group):
        notes.add(f"is a {head.kind} that asks for no GPU that is told", name)
    upper = [part for part in (top, workload) if part is not None]
    told = upper or pods
    state = next((word for part in told if (word := part.state())), "")
    start = _first(part.start() for part in upper)
    if start is None:
        start = min((time for part in pods if (time := part.start()) is not None), default=None)
    end = _first(part.end() for part in upper)
    if end is None and state in (COMPLETED, FAILED):
        end = max((time for part in pods if (time := part.end()) is not None), default=None)
    _evictions(workload, name, notes)
    if _text(head.item, "spec", "ttlSecondsAfterFinished"):
        notes.add("is deleted a while after its end: such a file holds those that are left", name)
    limit = _text(head.item, "spec", "activeDeadlineSeconds") or _text(
        head.item, "spec", "runPolicy", "activeDeadlineSeconds"
    )
    lasted: object = _text(head.item, "metadata", "annotations", DURATION) or None
    if lasted is None and start is not None and end is not None:
        lasted = end - start
    if lasted is None and not state and limit:
        notes.add("has no status: its time limit stands for its run time", name)
        lasted = limit
    if state == RUNNING:
        notes.add("still runs: for how long is not told", name)
    topology, pod_gpus = _topology(sources or pods, name, notes)
    labels = _mapping(head.item, "metadata", "labels")
    said_by = workload.item if workload else {}
    return {
        "job": name or key,
        "submit_s": next((part.created for part in (top, workload, *group) if part and part.created is not None), None),
        "start_s": start,
        "end_s": end if state in (COMPLETED, FAILED) else None,
        "duration_s": lasted,
        "gpus": gpus,
        "user": space,
        "ended": {FAILED: "failed", RUNNING: "unfinished", PENDING: "unfinished"}.get(state, ""),
        "limit_s": limit or None,
        "queue": _text(said_by, "spec", "queueName") or _text(labels, QUEUE) or _text(head.item, "spec", "queue"),
        "priority": _text(said_by, "spec", "priority")
        or _text(labels, PRIORITY)
        or _text(head.item, "spec", "priority")
        or _text(head.item, "spec", "priorityClassName"),
        "log_state": state,
        "topology": topology,
        "pod_gpus": pod_gpus,
    }


def _topology(parts: Sequence[Part], name: str, notes: Notes) -> tuple[str, int | None]:
    """What is asked of Kueue's topology, and GPUs of each pod; empty and None where nothing is."""
    said = [words for part in parts for words in part.topologies()]
    if any(words.startswith("slice") for words in said):
        notes.add("asks for slices in the topology: not modelled, its other words stand", name)
    asked = [words for words in said if not words.startswith("slice")]
    if not asked:
        return "", None
    if len(set(asked)) > 1:
        notes.add("asks for unlike places of its pods: the first stands for all", name)
    sizes = {gpus for part in parts for _, spec in part.pods() if (gpus := _gpus_of_pod(spec, name, Notes()))}
    return asked[0], max(sizes, default=0) or None


def _evictions(workload: Part | None, name: str, notes: Notes) -> None:
    status = _mapping(workload.item, "status") if workload else {}
    if _items(status, "schedulingStats", "evictions") or _count(status, "requeueState", "count", default=0):
        notes.add("was evicted: only its last start is told", name)


def _first(times: Iterable[float | None]) -> float | None:
    return next((time for time in times if time is not None), None)


def _gpus_of(pods: Pods, name: str, notes: Notes) -> int:
    return sum(count * _gpus_of_pod(spec, name, notes) for count, spec in pods)


def _gpus_of_pod(spec: Object, name: str, notes: Notes) -> int:
    inits = _items(spec, "initContainers")
    stay = [each for each in inits if _text(each, "restartPolicy") == "Always"]
    plain = sum(_gpus_of_container(each, name, notes) for each in _items(spec, "containers"))
    alone = max((_gpus_of_container(each, name, notes) for each in inits if each not in stay), default=0)
    if _items(spec, "resourceClaims"):
        notes.add("claims devices (resourceClaims), which do not count", name)
    return max(plain, alone) + sum(_gpus_of_container(each, name, notes) for each in stay)


def _gpus_of_container(container: Object, name: str, notes: Notes) -> int:
    resources = _mapping(container, "resources")
    asked = {**_mapping(resources, "requests"), **_mapping(resources, "limits")}
    total = 0
    for key in asked:
        if key in GPU_RESOURCES or str(key).startswith(SLICES):
            total += _count(asked, key, default=0)
            if str(key).startswith(SLICES[0]):
                notes.add("asks for MIG slices, which count as whole GPUs", name)
        elif key == SHARES:
            notes.add(f"asks for shares of GPUs ({SHARES}), which do not count", name)
    return total


def _at(value: object, *keys: str) -> object:
    """What stands under these keys; None where a level is no mapping or lacks it."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _mapping(value: object, *keys: str) -> Object:
    found = _at(value, *keys)
    return found if isinstance(found, Mapping) else {}


def _items(value: object, *keys: str) -> list[Object]:
    found = _at(value, *keys)
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _text(value: object, *keys: str) -> str:
    found = _at(value, *keys)
    return str(found) if isinstance(found, str | int | float) and not isinstance(found, bool) else ""


def _count(value: object, *keys: str, default: int = 1) -> int:
    found = _text(value, *keys)
    return int(found) if found.isdecimal() and len(found) < 10 else default


def _time(value: object, *keys: str) -> float | None:
    """Seconds since 1970."""
    found = _at(value, *keys)
    if isinstance(found, str):
        try:
            found = datetime.fromisoformat(found.replace("Z", "+00:00"))
        except ValueError:
            return None
    if not isinstance(found, datetime):
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _go_seconds(words: str) -> float | None:
    """Seconds of a duration as Go writes it: 1h2m3.5s."""
    left, total = words, 0.0
    for unit, seconds in (("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        number, mark, rest = left.partition(unit)
        if mark:
            try:
                total, left = total + float(number) * seconds, rest
            except ValueError:
                return None
    return None if left else total
