"""One Kubernetes object: its owner, its pods, the GPUs that they ask for, and what its status tells.

GPUs of a pod, by the part of a GPU that each is: the larger of the sum of its containers and of each init container
alone; init containers that stay (restartPolicy Always) count beside both, and so do devices that it claims by a
ResourceClaimTemplate of the file. A TrainJob takes what it does not say from its runtime, if the file holds that. A
Job has no more pods at a time than it has completions.
Sources: Kubernetes API v1 and batch/v1, Kueue v1beta1 and v1beta2, Kubeflow v1 and trainer, JobSet v1alpha2, Ray v1,
MPIJob v2beta1, LeaderWorkerSet v1, Volcano v1alpha1, AppWrapper v1beta2, resource.k8s.io v1; queues and fractions of
KAI-Scheduler and YuniKorn by their labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from windtunnel.studies.fleet.jobs.objects import (
    Object,
    count_at,
    is_whole_gpu,
    items_at,
    mapping_at,
    text_at,
    time_at,
)
from windtunnel.studies.fleet.jobs.trace import Notes

SHARES = "nvidia.com/gpu.shared"  # a GPU in turns with others, or a share of one by MPS, under the name of its own
SLICES = "nvidia.com/mig-"  # parts of a GPU
PRIORITY, GROUP = (f"kueue.x-k8s.io/{key}" for key in ("priority-class", "pod-group-name"))
QUEUES = (  # labels or annotations
    *("kueue.x-k8s.io/queue-name", "kai.scheduler/queue", "runai/queue", "scheduling.volcano.sh/queue-name"),
    *("yunikorn.apache.org/queue", "queue"),
)
DEVICE_CLASS = "deviceclass.resource.kubernetes.io/"  # a resource's name that asks for a device of a class
FRACTION, DEVICES, MEMORY = "gpu-fraction", "gpu-fraction-num-devices", "gpu-memory"  # annotations of KAI-Scheduler
RUNTIMES, CLAIMS = ("TrainingRuntime", "ClusterTrainingRuntime"), "ResourceClaimTemplate"
TOPOLOGY = {  # annotations of a pod's template
    f"kueue.x-k8s.io/podset-{word}-topology": word for word in ("required", "preferred", "unconstrained")
} | {"kueue.x-k8s.io/podset-slice-required-topology": "slice"}
TRAINER = "trainer.kubeflow.org/trainjob-ancestor-step"
MARKS = ("labels", "annotations")
COMPLETED, FAILED, RUNNING, PENDING = "COMPLETED", "FAILED", "RUNNING", "PENDING"
STATES = {  # conditions that are true, phases and Ray's words
    **dict.fromkeys(("complete", "completed", "succeeded", "finished", "successcriteriamet"), COMPLETED),
    **dict.fromkeys(("failed", "failuretarget", "stopped", "terminated", "aborted"), FAILED),
    **dict.fromkeys(("running", "admitted", "podsready", "ready", "restarting"), RUNNING),
    **dict.fromkeys(("pending", "suspended", "created", "inqueue"), PENDING),
}
ORDER = (FAILED, COMPLETED, RUNNING, PENDING)  # of several conditions the first tells
Pods = list[tuple[int, Object]]  # so many, and their spec, or the template that has it
Gpus = Counter[str]  # by the part of a GPU that each is; empty: whole ones


@dataclass(frozen=True)
class Part:
    """One object of the file."""

    item: Object
    templates: Mapping[str, Object] = field(default_factory=dict)  # of claims and of runtimes, by their labels

    @property
    def kind(self) -> str:
        """Its kind."""
        return text_at(self.item, "kind")

    @property
    def name(self) -> str:
        """Namespace and name."""
        name, space = text_at(self.item, "metadata", "name"), text_at(self.item, "metadata", "namespace")
        return f"{space}/{name}" if space else name

    @property
    def label(self) -> str:
        """Its kind, namespace and name."""
        return f"{self.kind} {self.name}"

    @property
    def key(self) -> str:
        """What tells it apart; a group of pods has one."""
        group = text_at(self.item, "metadata", "labels", GROUP)
        space = text_at(self.item, "metadata", "namespace")
        return f"group {space}/{group}" if group else text_at(self.item, "metadata", "uid") or self.label

    @property
    def created(self) -> float | None:
        """Seconds since 1970."""
        return time_at(self.item, "metadata", "creationTimestamp")

    @property
    def conditions(self) -> dict[str, float | None]:
        """Conditions that hold, and since when."""
        return {
            text_at(entry, "type"): time_at(entry, "lastTransitionTime")
            for entry in items_at(self.item, "status", "conditions")
            if text_at(entry, "status") == "True"
        }

    def owner(self) -> Object | None:
        """The reference to its owner: the controller, else the first."""
        owners = items_at(self.item, "metadata", "ownerReferences")
        return next((owner for owner in owners if owner.get("controller") is True), owners[0] if owners else None)

    def top(self, uids: Mapping[str, Part]) -> str:
        """The key of the object at the top of its owners, in the file or not; empty for itself."""
        part, seen = self, set[str]()
        while (owner := part.owner()) is not None:
            uid = text_at(owner, "uid") or f"{text_at(owner, 'kind')} {text_at(owner, 'name')}"
            if uid in seen or uid not in uids:
                return uid
            seen.add(uid)
            part = uids[uid]
        return "" if part is self else part.key

    def state(self) -> str:
        """What became of it; empty where it has no status."""
        status = mapping_at(self.item, "status")
        words = [
            *self.conditions,
            text_at(status, "phase"),
            text_at(status, "state", "phase"),
            text_at(status, "jobStatus"),
        ]
        words += [text_at(status, "terminalState"), text_at(status, "jobDeploymentStatus")]
        if self.kind == "Pod":
            words = [text_at(status, "phase")]  # its conditions are of containers
        if self.kind == "Workload" and "Finished" in self.conditions:
            reason = next(
                text_at(c, "reason") for c in items_at(status, "conditions") if text_at(c, "type") == "Finished"
            )
            words = ["Failed" if "fail" in reason.lower() else "Finished"]
        states = {STATES[word.lower()] for word in words if word.lower() in STATES}
        if states:
            return next(state for state in ORDER if state in states)
        return (RUNNING if self.start() is not None else PENDING) if status else ""

    def start(self) -> float | None:
        """When it started to run."""
        status, conditions = mapping_at(self.item, "status"), self.conditions
        if self.kind == "Pod":
            return conditions.get("PodScheduled") or time_at(status, "startTime")  # lists are cut to fields at times
        if self.kind == "Workload":
            return conditions.get("Admitted")
        if text_at(status, "state", "lastTransitionTime") and text_at(status, "runningDuration"):  # Volcano
            changed, ran = (
                time_at(status, "state", "lastTransitionTime"),
                _go_seconds(text_at(status, "runningDuration")),
            )
            return None if changed is None or ran is None else changed - ran
        return time_at(status, "startTime") or conditions.get("StartupPolicyCompleted")

    def end(self) -> float | None:
        """When it ended."""
        status = mapping_at(self.item, "status")
        if self.kind == "Pod":
            ends = [
                time_at(entry, "state", "terminated", "finishedAt") for entry in items_at(status, "containerStatuses")
            ]
            return max((end for end in ends if end is not None), default=None) if None not in ends else None
        end_s = time_at(status, "completionTime") or time_at(status, "endTime")
        if (
            end_s is None
            and text_at(status, "state", "phase").lower() in STATES
            and self.state() in (COMPLETED, FAILED)
        ):
            end_s = time_at(status, "state", "lastTransitionTime")
        over = (time for word, time in self.conditions.items() if STATES.get(word.lower()) in (COMPLETED, FAILED))
        return end_s if end_s is not None else next(over, None)

    def pods(self) -> Pods:
        """The specs of its pods at one time."""
        return [(number, mapping_at(template, "spec")) for number, template in self.pod_templates()]

    def pod_templates(self) -> Pods:
        """The templates of its pods at one time, each with `metadata` and `spec`."""
        spec = mapping_at(self.item, "spec")
        if self.kind == "Pod":
            return [(1, self.item)]
        if self.kind == "Workload":
            return [(count_at(entry, "count"), mapping_at(entry, "template")) for entry in items_at(spec, "podSets")]
        if self.kind == "JobSet":
            return [
                (count_at(entry, "replicas") * number, pod)
                for entry in items_at(spec, "replicatedJobs")
                for number, pod in _pods_of_job(mapping_at(entry, "template", "spec"))
            ]
        if self.kind == "AppWrapper":
            inner = [replace(self, item=mapping_at(entry, "template")) for entry in items_at(spec, "components")]
            return [pods for part in inner for pods in part.pod_templates()]
        if self.kind in ("RayJob", "RayCluster"):
            cluster = mapping_at(spec, "rayClusterSpec") or spec
            workers = items_at(cluster, "workerGroupSpecs")
            each = [(count_at(w, "replicas") * count_at(w, "numOfHosts"), mapping_at(w, "template")) for w in workers]
            return [(1, mapping_at(cluster, "headGroupSpec", "template")), *each]
        if self.kind == "TrainJob":
            runtime = self._runtime()
            trainer = mapping_at(spec, "trainer")
            nodes = count_at(trainer, "numNodes", default=count_at(runtime, "mlPolicy", "numNodes"))
            steps = items_at(runtime, "template", "spec", "replicatedJobs")
            own = [
                mapping_at(step, "template", "spec", "template")
                for step in steps
                if text_at(step, "template", "metadata", "labels", TRAINER) == "trainer"
            ]
            if resources := mapping_at(trainer, "resourcesPerNode"):  # in place of the runtime's, which keeps the rest
                containers = [{"resources": resources}]
                own = [{**pod, "spec": {**mapping_at(pod, "spec"), "containers": containers}} for pod in own or [{}]]
            return [(nodes, pod) for pod in own]
        if self.kind == "LeaderWorkerSet":
            template = mapping_at(spec, "leaderWorkerTemplate")
            worker = mapping_at(template, "workerTemplate")
            leader = mapping_at(template, "leaderTemplate") or worker
            sets = count_at(spec, "replicas")
            return [(sets, leader), (sets * max(count_at(template, "size") - 1, 0), worker)]
        roles = next((value for key, value in spec.items() if str(key).endswith("ReplicaSpecs")), None)
        if isinstance(roles, Mapping):  # of Kubeflow
            return [(count_at(role, "replicas"), mapping_at(role, "template")) for role in roles.values()]
        if items_at(spec, "tasks"):  # of Volcano
            return [(count_at(task, "replicas"), mapping_at(task, "template")) for task in items_at(spec, "tasks")]
        return _pods_of_job(spec)

    def _runtime(self) -> Object:
        """The spec of the runtime that a TrainJob names, empty where the file does not hold it."""
        name = text_at(self.item, "spec", "runtimeRef", "name")
        space = text_at(self.item, "metadata", "namespace")
        near = (f"{RUNTIMES[0]} {space}/{name}" if space else f"{RUNTIMES[0]} {name}", f"{RUNTIMES[1]} {name}")
        return next((mapping_at(self.templates[label], "spec") for label in near if label in self.templates), {})

    def gpus(self, notes: Notes, name: str = "") -> Gpus:
        """GPUs of its pods at one time."""
        total = Gpus()
        for number, template in self.pod_templates():
            each = self._gpus_of_pod(mapping_at(template, "spec"), name or self.name, notes)
            fraction, devices = (_word((key,), self.item, template) for key in (FRACTION, DEVICES))
            if fraction and number:
                each = Gpus(
                    {fraction: each.total() or (int(devices) if devices.isdecimal() and len(devices) < 10 else 1)}
                )
            total.update({part: number * count for part, count in each.items()})
        return +total

    def gpus_of_largest_pod(self) -> int:
        """GPUs of its largest pod."""
        return max((self._gpus_of_pod(pod, self.name, Notes()).total() for _, pod in self.pods()), default=0)

    def _gpus_of_pod(self, pod: Object, name: str, notes: Notes) -> Gpus:
        inits = items_at(pod, "initContainers")
        stay = [init for init in inits if text_at(init, "restartPolicy") == "Always"]
        plain = sum((_gpus_of_container(entry) for entry in items_at(pod, "containers")), Gpus())
        for init in inits:
            plain = plain if init in stay else plain | _gpus_of_container(init)
        claimed = sum(self._gpus_of_claim(entry, name, notes) for entry in items_at(pod, "resourceClaims"))
        return sum((_gpus_of_container(entry) for entry in stay), plain) + Gpus({"": claimed})

    def _gpus_of_claim(self, claim: Object, name: str, notes: Notes) -> int:
        """GPUs that one claim of a pod gets, by the template that it names."""
        space, template = text_at(self.item, "metadata", "namespace"), text_at(claim, "resourceClaimTemplateName")
        claim_template = self.templates.get(f"{CLAIMS} {space}/{template}" if space else f"{CLAIMS} {template}")
        if claim_template is None:
            notes.add("claims devices (resourceClaims) by no template of the file: they do not count", name)
            return 0
        total = 0
        for request in items_at(claim_template, "spec", "spec", "devices", "requests"):
            demand = mapping_at(request, "exactly") or next(iter(items_at(request, "firstAvailable")), request)
            if text_at(demand, "allocationMode") == "All":
                notes.add("claims all devices of a node: they do not count", name)
            elif _is_gpu_class(text_at(demand, "deviceClassName")):
                total += count_at(demand, "count")
        return total

    def word(self, names: Sequence[str]) -> str:
        """The first of these labels or annotations that it has, else that a template of its pods has."""
        return _word(names, self.item, *(template for _, template in self.pod_templates()))

    def priority(self) -> str:
        """Its priority or its class, as Kueue looks for it: label, scheduling policy, own field, template of a pod."""
        own = text_at(self.item, "spec", "priority") or text_at(self.item, "spec", "priorityClassName")
        policy = text_at(self.item, "spec", "runPolicy", "schedulingPolicy", "priorityClass")
        inner = (text_at(pod, "priorityClassName") for _, pod in self.pods())
        return self.word((PRIORITY,)) or policy or own or next((word for word in inner if word), "")

    def queue(self) -> str:
        """The queue that it names."""
        spec = mapping_at(self.item, "spec")
        return text_at(spec, "queue") or text_at(spec, "runPolicy", "schedulingPolicy", "queue") or self.word(QUEUES)

    def topologies(self) -> list[str]:
        """What its pods ask of the topology, as `required LEVEL`; of slices `slice LEVEL`."""
        spec, topologies = mapping_at(self.item, "spec"), []
        if self.kind == "Workload":
            for entry in items_at(spec, "podSets"):
                demand = mapping_at(entry, "topologyRequest")
                topologies += [
                    f"{word} {text_at(demand, word)}" for word in ("required", "preferred") if text_at(demand, word)
                ]
                topologies += ["unconstrained"] if demand.get("unconstrained") is True else []
                topologies += ["slice"] if text_at(demand, "podSetSliceRequiredTopology") else []
            return topologies
        for _, template in self.pod_templates():
            for key, value in mapping_at(template, "metadata", "annotations").items():
                word = TOPOLOGY.get(str(key))
                if word:
                    topologies.append(word if word == "unconstrained" else f"{word} {value}")
        return topologies


def _word(names: Sequence[str], *holders: Object) -> str:
    """The first of these labels or annotations that a holder has in its metadata; the first name goes first."""
    places = [mapping_at(holder, "metadata", key) for holder in holders for key in MARKS]
    return next((word for name in names for place in places if (word := text_at(place, name))), "")


def _pods_of_job(spec: Object) -> Pods:
    """Pods at one time of a Job: no more than are still to complete, as Kueue counts them."""
    at_once = count_at(spec, "parallelism")
    return [(min(at_once, count_at(spec, "completions", default=at_once)), mapping_at(spec, "template"))]


def _is_gpu_class(name: str) -> bool:
    """Whether a DeviceClass is of whole accelerators: gpu.nvidia.com, gpu.amd.com, tpu.google.com."""
    return name.startswith(("gpu.", "tpu.", "neuron."))


def _gpus_of_container(container: Object) -> Gpus:
    resources = mapping_at(container, "resources")
    requests = {**mapping_at(resources, "requests"), **mapping_at(resources, "limits")}
    total = Gpus()
    for key in map(str, requests):
        of_class = key.startswith(DEVICE_CLASS) and _is_gpu_class(key.removeprefix(DEVICE_CLASS))
        if is_whole_gpu(key) or key.startswith(SLICES) or key == SHARES or of_class:
            part = "1 shares" if key == SHARES else key.removeprefix(SLICES) if key.startswith(SLICES) else ""
            total[part] += count_at(requests, key, default=0)
    return total


def _go_seconds(words: str) -> float | None:
    """Seconds of a duration as Go writes it: 1h2m3.5s."""
    remaining, total = words, 0.0
    for unit, seconds in (("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        number, mark, rest = remaining.partition(unit)
        if mark:
            try:
                total, remaining = total + float(number) * seconds, rest
            except ValueError:
                return None
    return None if remaining else total
