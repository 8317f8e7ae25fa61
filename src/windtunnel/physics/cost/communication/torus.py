"""How long one collective takes on a torus: every axis a ring or a line, all of them at work at once.

    all-gather, reduce-scatter   hops * latency + (k - 1) / k * S / B        all-reduce: twice that
    all-to-all                   hops * latency + max over axes of S * crossing / link
    send-receive                 hops * latency + S / link, shared with the pairs between sender and receiver

k members in a slice; B the links that bring data to the worst member: two on an axis that is a ring for them, one at
the end of a line. `crossing` is what the busiest link of an axis carries of each byte that a member sends to all: n / 8
on a ring of n, which is its bisection, n / 4 on a line. Between slices each chip sends its own shard over its NIC
before or after (hierarchical); a program of XLA or Neuron has no launch for each of them.

Structure: "How to Scale Your Model" (chapter Sharded Matrices). Google's published all-reduce and bisection bandwidth
of a v5e pod follow from it (51.2 and 1.6 TB/s at 50 GB/s a link). The efficiency is that of generic links, between the
two that were measured: docs/physics/collectives.md.
"""

from __future__ import annotations

from windtunnel.physics.cost.communication.nccl import SERVICE_BYTES, Cost, Fabric, Shape
from windtunnel.physics.hardware.cluster import Link
from windtunnel.physics.hardware.torus import extents, slice_of, steps_between

ALGORITHM = "torus"
DIRECT = ("all_to_all", "ep_dispatch", "ep_combine")


def cost(kind: str, bytes_total: float, shape: Shape, stride: int, chips: int, link: Link, fabric: Fabric) -> Cost:
    """The time of a group in slices of `chips` chips, its members `stride` apart, `shape.k` of them in each slice."""
    axes, hop_s = slice_of(link, chips), link.latency_s
    if kind == "barrier":
        kind, bytes_total = "all_reduce", SERVICE_BYTES
    n, k, m = shape[:3]
    longer = fabric.protocols[-1].seconds_per_byte * link.bandwidth_bytes_per_s  # than at the data sheet's rate
    step_s = fabric.protocols[-1].ring_step_s + fabric.nic_latency_s if m > 1 else 0.0
    if kind == "send_recv":
        steps = steps_between(axes, stride) if m == 1 else ()
        hops, intra = sum(steps), max((of / axis.bytes_per_s for of, axis in zip(steps, axes, strict=False)), default=0)
        wire = bytes_total * fabric.nic_seconds_per_byte * shape.nic_share if m > 1 else 0.0
        return _cost(hops * hop_s + step_s, max(bytes_total * intra * longer, wire))
    lie = extents(axes, max(1, round(k)), stride)
    hops = sum(extent.hops for extent in lie)
    if kind in DIRECT:
        inside = bytes_total * k / n * max(extent.crossing / extent.bytes_per_s for extent in lie) * longer
        outside = bytes_total * (n - k) / n * fabric.nic_seconds_per_byte * max(shape.nic_share, shape.direct_uplink)
        return _cost(hops * hop_s + step_s, max(inside, outside))
    rounds = 2.0 if kind == "all_reduce" else 1.0
    whole = kind in ("broadcast", "reduce")
    bandwidth = sum(extent.links * extent.bytes_per_s for extent in lie)
    inside = bytes_total * rounds * (1.0 if whole else (k - 1) / k) * longer / bandwidth if k > 1 else 0.0
    share = max(shape.nic_share, shape.ring_uplink) * fabric.nic_seconds_per_byte
    outside = bytes_total / k * rounds * (1.0 if whole else (m - 1) / m) * share if m > 1 else 0.0
    return _cost(rounds * (hops * hop_s + (m - 1) * step_s), inside + outside)


def _cost(latency: float, bandwidth: float) -> Cost:
    return Cost(ALGORITHM, "simple", latency, bandwidth, latency + bandwidth)
