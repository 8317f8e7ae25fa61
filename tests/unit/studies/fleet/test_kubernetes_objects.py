"""Kubernetes objects of schedulers and APIs beside Kueue's: devices, runtimes, wrappers, queues and priorities."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.studies.fleet.jobs.read import read_jobs

HEAD = 'metadata: {name: j, creationTimestamp: "2026-05-01T00:00:00Z"'
EIGHT = 'containers: [{resources: {limits: {nvidia.com/gpu: "8"}}}]'
TEMPLATE = """
kind: ResourceClaimTemplate
metadata: {name: four}
spec: {spec: {devices: {requests: [{name: g, exactly: {deviceClassName: gpu.nvidia.com, count: 4}},
                                   {name: n, exactly: {deviceClassName: rdma.example.com, count: 9}}]}}}
---
"""
RUNTIME = f"""
kind: ClusterTrainingRuntime
metadata: {{name: tune}}
spec:
  mlPolicy: {{numNodes: 3}}
  template: {{spec: {{replicatedJobs: [
    {{name: model, template: {{spec: {{template: {{spec: {{{EIGHT}}}}}}}}}}},
    {{name: node, template: {{metadata: {{labels: {{trainer.kubeflow.org/trainjob-ancestor-step: trainer}}}},
                             spec: {{template: {{spec: {{{EIGHT}}}}}}}}}}}]}}}}
---
"""
ASCEND = "huawei.com/Ascend910"
INTEL = 'gpu.intel.com/millicores: "500", gpu.intel.com/memory.max: "9", gpu.intel.com/xe'  # parts are no GPUs
CLAIM = "containers: [], resourceClaims: [{name: g, resourceClaimTemplateName: four}]"


@pytest.mark.parametrize(
    ("objects", "gpus"),
    [
        (f"kind: Job\n{HEAD}}}\nspec: {{parallelism: 5, completions: 2, template: {{spec: {{{EIGHT}}}}}}}", 16),
        (f"kind: Job\n{HEAD}}}\nspec: {{parallelism: 2, completions: 9, template: {{spec: {{{EIGHT}}}}}}}", 16),
        (f"{TEMPLATE}kind: Job\n{HEAD}}}\nspec: {{parallelism: 3, template: {{spec: {{{CLAIM}}}}}}}", 12),
        (
            f"kind: Pod\n{HEAD}}}\nspec: {{containers: [{{resources: {{requests: "
            "{deviceclass.resource.kubernetes.io/gpu.nvidia.com: 2, deviceclass.resource.kubernetes.io/nic.x: 7}}}]}",
            2,
        ),
        (f"{RUNTIME}kind: TrainJob\n{HEAD}}}\nspec: {{runtimeRef: {{name: tune}}}}", 24),
        (f"{RUNTIME}kind: TrainJob\n{HEAD}}}\nspec: {{runtimeRef: {{name: tune}}, trainer: {{numNodes: 5}}}}", 40),
        (
            f"kind: AppWrapper\n{HEAD}}}\nspec: {{components: [{{template: {{kind: PyTorchJob, spec: "
            f"{{pytorchReplicaSpecs: {{Worker: {{replicas: 2, template: {{spec: {{{EIGHT}}}}}}}}}}}}}}}]}}",
            16,
        ),
        (f"kind: Job\n{HEAD}}}\nspec: {{template: {{spec: {{{EIGHT.replace('nvidia.com', 'metax-tech.com')}}}}}}}", 8),
        (f"kind: Job\n{HEAD}}}\nspec: {{template: {{spec: {{{EIGHT.replace('nvidia.com/gpu', ASCEND)}}}}}}}", 8),
        (f"kind: Job\n{HEAD}}}\nspec: {{template: {{spec: {{{EIGHT.replace('nvidia.com/gpu', INTEL)}}}}}}}", 8),
    ],
)
def test_gpus_of_objects(tmp_path: Path, objects: str, gpus: int) -> None:
    """GPUs at one time, worked by hand: claims by the template, runtimes by their trainer, no more pods than ends."""
    (tmp_path / "o.yaml").write_text(objects)
    assert read_jobs(tmp_path / "o.yaml").gpus.tolist() == [gpus]


@pytest.mark.parametrize(
    ("objects", "queue", "priority"),
    [
        (f"kind: Pod\n{HEAD}, labels: {{kai.scheduler/queue: q}}}}\nspec: {{priorityClassName: p, {EIGHT}}}", "q", "p"),
        (f"kind: Pod\n{HEAD}, annotations: {{yunikorn.apache.org/queue: q}}}}\nspec: {{{EIGHT}}}", "q", ""),
        (
            f"kind: Job\n{HEAD}}}\nspec: {{template: {{metadata: {{labels: {{queue: q}}}}, "
            f"spec: {{priorityClassName: p, {EIGHT}}}}}}}",
            *("q", "p"),
        ),
        (
            f"kind: PyTorchJob\n{HEAD}}}\nspec: {{runPolicy: {{schedulingPolicy: {{queue: q, priorityClass: p}}}}, "
            f"pytorchReplicaSpecs: {{Worker: {{template: {{spec: {{priorityClassName: other, {EIGHT}}}}}}}}}}}",
            *("q", "p"),
        ),
    ],
)
def test_queue_and_priority(tmp_path: Path, objects: str, queue: str, priority: str) -> None:
    """The words of KAI-Scheduler, YuniKorn and Kubeflow; a scheduling policy goes before the class of a pod."""
    (tmp_path / "o.yaml").write_text(objects)
    jobs = read_jobs(tmp_path / "o.yaml")
    assert jobs.columns.get("queue", [""]) == [queue]
    assert jobs.columns.get("priority", [""]) == [priority]


def test_objects_that_are_no_jobs_have_no_row(tmp_path: Path) -> None:
    """A role among jobs is named as left out; a claim by no template and a GPU's memory are named, and do not count."""
    (tmp_path / "o.yaml").write_text(
        f"kind: ClusterRole\n{HEAD}}}\n---\nkind: Pod\n{HEAD}, uid: u, annotations: {{gpu-memory: '2000'}}}}\n"
        f"spec: {{{CLAIM.replace('[]', '[{resources: {limits: {nvidia.com/gpu: 1}}}]')}}}"
    )
    jobs = read_jobs(tmp_path / "o.yaml")
    assert jobs.gpus.tolist() == [1]
    assert {unread.reason.split(",")[0].split(" by ")[0] for unread in jobs.not_understood} == {
        "is a ClusterRole",
        "claims devices (resourceClaims)",
        "asks for memory of a GPU",
    }


def test_what_stands_on_a_template_of_pods_is_read_of_every_kind(tmp_path: Path) -> None:
    """KAI's fraction on the workers of a RayCluster alone (2 of .5), Kueue's topology on those of a PyTorchJob."""
    (tmp_path / "o.yaml").write_text(
        f"kind: RayCluster\n{HEAD}}}\nspec: {{headGroupSpec: {{template: {{spec: {{containers: []}}}}}}, "
        "workerGroupSpecs: [{replicas: 2, template: {metadata: {annotations: {gpu-fraction: '0.5'}}, "
        "spec: {containers: []}}}]}\n---\n"
        f"kind: PyTorchJob\n{HEAD.replace('name: ', 'name: other-')}}}\nspec: {{pytorchReplicaSpecs: {{Worker: "
        "{replicas: 2, template: {metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: rack}}, "
        f"spec: {{{EIGHT}}}}}}}}}}}\n"
    )
    jobs = read_jobs(tmp_path / "o.yaml")
    assert jobs.gpus.tolist() == [2, 16]
    assert list(jobs.columns["part"]) == ["0.5", ""]
    assert list(jobs.columns["topology"]) == ["", "required rack"]


def test_resources_of_a_train_job_take_the_place_of_its_runtimes_and_leave_the_rest(tmp_path: Path) -> None:
    """Three nodes of the runtime, with 4 GPUs each where the job says so; the runtime's topology holds for both."""
    marked = RUNTIME.replace(
        "spec: {template: {spec: {containers",
        "spec: {template: {metadata: {annotations: {kueue.x-k8s.io/podset-required-topology: rack}}, spec: {containers",
    )
    assert marked != RUNTIME
    four = "{resourcesPerNode: {limits: {nvidia.com/gpu: 4}}}"
    (tmp_path / "o.yaml").write_text(
        f"{marked}kind: TrainJob\n{HEAD}}}\nspec: {{runtimeRef: {{name: tune}}}}\n---\n"
        f"kind: TrainJob\n{HEAD.replace('name: ', 'name: own-')}}}\n"
        f"spec: {{runtimeRef: {{name: tune}}, trainer: {four}}}\n---\n"
        f"kind: TrainJob\n{HEAD.replace('name: ', 'name: alone-')}}}\n"
        f"spec: {{runtimeRef: {{name: gone}}, trainer: {four[:-1]}, numNodes: 2}}}}\n"
    )
    jobs = read_jobs(tmp_path / "o.yaml")
    assert jobs.gpus.tolist() == [24, 12, 8]
    assert list(jobs.columns["topology"]) == ["required rack", "required rack", ""]
