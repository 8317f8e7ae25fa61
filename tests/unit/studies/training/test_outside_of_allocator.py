"""What a device holds outside of its allocator: a context, as measured where it was, and the communicators' buffers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from windtunnel.physics.cost.device_memory import MIB, memory_document, outside_of_allocator
from windtunnel.physics.hardware import Cluster, cluster_with, parse_cluster
from windtunnel.physics.hardware.calibration import Calibration
from windtunnel.studies.training import predict

PLAN = {"global_batch": 8, "seq_len": 512, "framework": "pytorch"}


def measured(kind: str = "cuda", **memory: float) -> Cluster:
    return cluster_with(parse_cluster("h100-sxm:8"), calibration=Calibration("a GPU", kind, memory=memory))


def test_a_measured_context_takes_the_place_of_the_usual_one() -> None:
    usual = outside_of_allocator(parse_cluster("h100-sxm:8"), 2)
    document = memory_document()
    assert usual == (document["context_mib"] + 2 * document["communicator_mib"]) * MIB
    small, large = (outside_of_allocator(measured(context_bytes=size * MIB), 2) for size in (300, 1500))
    assert large - small == 1200 * MIB
    assert small == usual - (document["context_mib"] - 300) * MIB
    assert outside_of_allocator(measured(workspace_bytes=5.0), 2) == usual  # a file without a context


def test_each_communicator_adds_its_buffers_and_a_cpu_holds_nothing() -> None:
    cluster = measured(context_bytes=300 * MIB)
    one, two = (outside_of_allocator(cluster, count) for count in (1, 2))
    assert two - one == memory_document()["communicator_mib"] * MIB
    cpu = replace(cluster.gpu, generation="cpu")
    assert outside_of_allocator(cluster_with(cluster, gpu=cpu), 4) == 0


def test_a_plan_on_a_calibrated_device_is_told_its_own_context() -> None:
    found = [predict("gpt2", measured(context_bytes=size * MIB), PLAN).peak_memory.device_bytes for size in (300, 1500)]
    assert found[1] - found[0] == pytest.approx(1200 * MIB)
