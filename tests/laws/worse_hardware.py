"""Clusters that are worse than another in one respect."""

from __future__ import annotations

from dataclasses import replace

from windtunnel.physics.hardware import Cluster, cluster_with


def _slower_link(cluster: Cluster, tier: str, by: float) -> Cluster:
    link = getattr(cluster, tier)
    peer = link.peer_bandwidth_bytes_per_s
    changed = replace(
        link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / by, peer_bandwidth_bytes_per_s=peer and peer / by
    )
    return cluster_with(cluster, **{tier: changed})


def _later_link(cluster: Cluster, tier: str, by: float) -> Cluster:
    link = getattr(cluster, tier)
    return cluster_with(cluster, **{tier: replace(link, latency_s=link.latency_s * by + 1e-7)})


def _slower_compute(cluster: Cluster, by: float) -> Cluster:
    gpu, scale = cluster.gpu, cluster.gpu.kernel_scale
    rates = {dtype: rate / by for dtype, rate in gpu.flops_per_s.items()}
    slower = replace(gpu, flops_per_s=rates, kernel_scale=scale._replace(compute=scale.compute / by))
    return cluster_with(cluster, gpu=slower)


def _slower_memory(cluster: Cluster, by: float) -> Cluster:
    gpu, scale = cluster.gpu, cluster.gpu.kernel_scale
    bandwidth = gpu.memory_bandwidth_bytes_per_s / by
    slower = replace(gpu, memory_bandwidth_bytes_per_s=bandwidth, kernel_scale=scale._replace(memory=scale.memory / by))
    return cluster_with(cluster, gpu=slower)


WORSE = {
    "compute": _slower_compute,
    "memory": _slower_memory,
    "scale-up bandwidth": lambda cluster, by: _slower_link(cluster, "scale_up", by),
    "scale-out bandwidth": lambda cluster, by: _slower_link(cluster, "scale_out", by),
    "scale-up latency": lambda cluster, by: _later_link(cluster, "scale_up", by),
    "scale-out latency": lambda cluster, by: _later_link(cluster, "scale_out", by),
    "host": lambda cluster, by: cluster_with(
        cluster, host=replace(cluster.host, cpu_speed=cluster.host.cpu_speed / by)
    ),
    "oversubscription": lambda cluster, by: cluster_with(cluster, oversubscription=by),
}
