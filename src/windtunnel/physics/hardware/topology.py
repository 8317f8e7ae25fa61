"""The links of a cluster, one by one, and which of them lie between two GPUs.

    same scale-up domain   nvlink-out[a] (pair[a,b] in a mesh) nvlink-in[b]       links of a torus are not told apart
    same leaf switch       nic-out[a]                           nic-in[b]
    otherwise              nic-out[a]  up[leaf of a, n]  down[leaf of b, n]  nic-in[b]

Every link is one way. Leaf switches come from the cluster's fields: a pod is `pod_size` GPUs; in a rail-optimised
fabric each local index of a node has its own leaf in each pod, in a plain fat tree a pod has one. What leaves a leaf
upwards is the sum of its NICs over `oversubscription`. Above that the fabric is taken as non-blocking.

Without a seed traffic upwards is spread evenly over all uplinks of a leaf (packet spraying, adaptive routing), which
then are one wide link. With `ecmp_seed` each pair of GPUs is hashed to one of `uplinks` links, and pairs may collide
(RFC 2992).

Across rails NCCL goes first over NVLink to the GPU of its node that sits on the receiver's rail (PXN), and so do we,
where both are in one scale-up domain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from windtunnel.errors import SpecError
from windtunnel.physics.hardware.cluster import Cluster

NVLINK_OUT, NVLINK_IN, NIC_OUT, NIC_IN, PAIR, UP, DOWN = range(7)  # kinds of links
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))  # splitmix64

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Topology:
    """All links of a cluster. GPUs are numbered in rank order, node by node."""

    cluster: Cluster
    capacity_bytes_per_s: NDArray[np.float64]  # [links]
    first: tuple[int, ...]  # where each of these kinds begins, and the number of links
    leaf_of: Ints  # [gpus]
    uplinks: int  # of each leaf
    ecmp_seed: int | None

    @property
    def n_links(self) -> int:
        """Number of one-way links."""
        return self.first[-1]

    @property
    def n_leaves(self) -> int:
        """Number of leaf switches."""
        return (self.first[DOWN] - self.first[UP]) // self.uplinks


def topology_of(cluster: Cluster, *, ecmp_seed: int | None = None) -> Topology:
    """The links of `cluster`.

    Args:
        cluster: The fields read: `n_gpus`, `gpus_per_node`, `scale_up_domain`, `scale_up`, `scale_out`,
            `oversubscription`, `rail_optimised`, `gpus_per_pod`.
        ecmp_seed: Hash flows to single uplinks, by this seed, as many as give each the rate of a NIC; None = spread
            evenly.
    """
    gpu = np.arange(cluster.n_gpus)
    pod = gpu // cluster.pod_size
    rails = cluster.gpus_per_node if cluster.rail_optimised else 1
    leaf_of = pod * rails + gpu % cluster.gpus_per_node % rails
    on_leaf = np.bincount(leaf_of)
    full = int(on_leaf.max())
    uplinks = 1 if ecmp_seed is None else max(1, round(full / cluster.oversubscription))
    up, out = cluster.scale_up.bandwidth_bytes_per_s, cluster.scale_out.bandwidth_bytes_per_s
    peer = cluster.scale_up.peer_bandwidth_bytes_per_s
    n_pairs = 0 if peer is None or cluster.scale_up.torus else cluster.n_gpus * cluster.scale_up_domain
    leaf_link = np.repeat(on_leaf * out / cluster.oversubscription / uplinks, uplinks)
    leaf_link[leaf_link == 0.0] = out  # a leaf whose nodes this cluster lacks: no path crosses it
    parts = [
        *(np.full(cluster.n_gpus, rate) for rate in (up, up, out, out)),
        np.full(n_pairs, peer or 0.0),
        leaf_link,
        leaf_link,
    ]
    first = (0, *np.cumsum([len(part) for part in parts]).tolist())
    return Topology(cluster, np.concatenate(parts), first, leaf_of, uplinks, ecmp_seed)


def paths(topology: Topology, source: ArrayLike, target: ArrayLike) -> tuple[Ints, NDArray[np.int32]]:
    """The links from each source GPU to its target, as CSR (pointer, link). Empty where both are the same GPU.

    Raises SpecError for a GPU that the cluster lacks.
    """
    a, b = np.asarray(source, np.int64), np.asarray(target, np.int64)
    assert a.shape == b.shape
    assert a.ndim == 1
    for name, gpus in (("source", a), ("target", b)):
        if len(gpus) and not (gpus.min() >= 0 and gpus.max() < topology.cluster.n_gpus):
            lost = gpus[(gpus < 0) | (gpus >= topology.cluster.n_gpus)][0].item()
            raise SpecError(name, lost, f"GPUs are numbered from 0 to {topology.cluster.n_gpus - 1}")
    cluster, first = topology.cluster, topology.first
    domain, node = cluster.scale_up_domain, cluster.gpus_per_node
    near = a // domain == b // domain
    sender = a
    if cluster.rail_optimised:
        proxy = a // node * node + b % node
        can = (proxy < cluster.n_gpus) & (proxy // domain == a // domain)
        sender = np.where(can & ~near, proxy, a)
    hop = np.where(near, b, sender)  # where NVLink leads to
    uses_nvlink = a != hop
    leaf_a, leaf_b = topology.leaf_of[sender], topology.leaf_of[b]
    climbs = ~near & (leaf_a != leaf_b)
    lane = _lane(topology, sender, b)
    columns = [
        np.where(uses_nvlink, first[NVLINK_OUT] + a, -1),
        np.where(uses_nvlink & (first[UP] > first[PAIR]), first[PAIR] + a * domain + hop % domain, -1),
        np.where(uses_nvlink, first[NVLINK_IN] + hop, -1),
        np.where(near, -1, first[NIC_OUT] + sender),
        np.where(climbs, first[UP] + leaf_a * topology.uplinks + lane, -1),
        np.where(climbs, first[DOWN] + leaf_b * topology.uplinks + lane, -1),
        np.where(near, -1, first[NIC_IN] + b),
    ]
    table = np.stack(columns, axis=1)
    used = table >= 0
    pointer = np.zeros(len(a) + 1, np.int64)
    np.cumsum(used.sum(axis=1), out=pointer[1:])
    return pointer, table[used].astype(np.int32)


def weakened(topology: Topology, left: Mapping[int, Floats]) -> Topology:
    """`topology` with what is `left` of the rate of some leaves' uplinks, both ways: float64[uplinks] of each leaf."""
    capacity = topology.capacity_bytes_per_s.copy()
    for leaf, shares in left.items():
        for way in (UP, DOWN):
            begin = topology.first[way] + leaf * topology.uplinks
            capacity[begin : begin + topology.uplinks] *= shares
    return replace(topology, capacity_bytes_per_s=capacity)


def _lane(topology: Topology, a: Ints, b: Ints) -> Ints:
    """The uplink of each pair, by a hash of both GPUs and the seed."""
    if topology.ecmp_seed is None:
        return np.zeros(len(a), np.int64)
    seed = np.uint64(topology.ecmp_seed % (1 << 64))
    z = (a.astype(np.uint64) << np.uint64(32)) ^ b.astype(np.uint64)
    for extra in (seed, np.uint64(0)):
        z = z * _MIX[0] + extra
        z = (z ^ (z >> np.uint64(30))) * _MIX[1]
        z = (z ^ (z >> np.uint64(27))) * _MIX[2]
        z = z ^ (z >> np.uint64(31))
    return (z % np.uint64(topology.uplinks)).astype(np.int64)
