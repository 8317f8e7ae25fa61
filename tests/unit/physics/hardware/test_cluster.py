from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import SpecError
from windtunnel.physics.hardware import (
    Cluster,
    Host,
    Link,
    cluster_names,
    cluster_with,
    gpu_names,
    parse_cluster,
    with_settings,
)

H100 = parse_cluster("h100-sxm:64")


def test_counts() -> None:
    assert (H100.n_nodes, H100.gpus_in_domain) == (8, 8)
    part = parse_cluster("h100-sxm:4")
    assert (part.n_nodes, part.gpus_in_domain, part.gpus_per_node) == (1, 4, 8)
    assert H100.pod_size == 8
    assert cluster_with(H100, gpus_per_pod=32, oversubscription=2.0).pod_size == 32
    rack = parse_cluster("gb200:144")
    assert (rack.n_nodes, rack.gpus_in_domain) == (36, 72)


@given(st.integers(1, 4096), st.sampled_from([1, 2, 4, 8]))
def test_more_than_a_node_is_whole_nodes(n_gpus: int, per_node: int) -> None:
    fits = n_gpus <= per_node or n_gpus % per_node == 0
    if not fits:
        with pytest.raises(SpecError, match=r"^n_gpus = "):
            cluster_with(H100, n_gpus=n_gpus, gpus_per_node=per_node)
        return
    cluster = cluster_with(H100, n_gpus=n_gpus, gpus_per_node=per_node)
    assert (cluster.n_nodes - 1) * per_node < n_gpus <= cluster.n_nodes * per_node
    assert cluster.scale_up_domain == per_node


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n_gpus": 12}, "n_gpus"),
        ({"n_gpus": 0}, "n_gpus"),
        ({"n_gpus": 8.0}, "n_gpus"),
        ({"n_gpus": -8}, "n_gpus"),
        ({"n_gpus": True}, "n_gpus"),
        ({"scale_up_domain": 12}, "scale_up_domain"),
        ({"oversubscription": 0.5}, "oversubscription"),
        ({"oversubscription": float("nan")}, "oversubscription"),
        ({"gpus_per_pod": 12}, "gpus_per_pod"),
        ({"nodes": 12}, "nodes"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(change: dict[str, object], field: str) -> None:
    with pytest.raises(SpecError) as caught:
        cluster_with(H100, **change)
    assert caught.value.field == field


def test_a_changed_number_loses_its_source() -> None:
    assert "scale_out.bandwidth_bytes_per_s" in H100.sources
    faster = cluster_with(H100, scale_out=Link("ours", 100e9, 2e-6))
    assert not any(key.startswith("scale_out") for key in faster.sources)
    assert any(key.startswith("scale_up") for key in faster.sources)
    assert cluster_with(H100, n_gpus=128).sources == H100.sources


def test_links_and_hosts_that_cannot_be_are_refused() -> None:
    for wrong in (
        {"bandwidth_bytes_per_s": 0.0},
        {"latency_s": -1e-6},
        {"protocol": "carrier pigeon"},
        {"peer_bandwidth_bytes_per_s": 2e9},
    ):
        with pytest.raises(SpecError):
            Link(**{"name": "x", "bandwidth_bytes_per_s": 1e9, "latency_s": 1e-6, **wrong})  # type: ignore[arg-type]
    with pytest.raises(SpecError):
        Host(0.0, 1)
    assert Link("free", 1e9, 0.0).to_one_peer_bytes_per_s == 1e9
    assert Host(32e9, 1, 225e9).offload_bandwidth_bytes_per_s == 225e9
    assert Host(32e9, 1).offload_bandwidth_bytes_per_s == 32e9


@pytest.mark.parametrize("name", [*gpu_names(), *cluster_names()])
def test_what_to_dict_writes_reads_back_the_same(name: str) -> None:
    cluster: Cluster = parse_cluster(f"{name}:8")
    written = json.loads(json.dumps(cluster.to_dict()))
    again = parse_cluster(written)
    assert again == cluster
    assert again.to_dict() == cluster.to_dict()
    assert hash(again) == hash(cluster)
    assert pickle.loads(pickle.dumps(cluster)) == cluster


def test_settings_change_one_number_and_what_follows_from_it() -> None:
    machine = parse_cluster("h100-sxm:16")
    faster = with_settings(
        machine, {"gpu": {"flops": {"bf16": 2 * machine.gpu.peak_flops("bf16")}, "memory": "160 GB"}}
    )
    assert faster.gpu.kernel_scale.compute == pytest.approx(2.0)
    assert faster.gpu.usable_memory_bytes > machine.gpu.usable_memory_bytes
    assert faster.gpu.flops_per_s["fp8"] == machine.gpu.flops_per_s["fp8"]
    assert with_settings(machine, {}) == machine
    assert with_settings(machine, {"nic": "800 Gb/s"}).scale_out.latency_s == machine.scale_out.latency_s


def test_a_bandwidth_without_its_unit_is_an_error() -> None:
    with pytest.raises(SpecError, match="write the unit"):
        with_settings(parse_cluster("h100-sxm:16"), {"nic": 800})
