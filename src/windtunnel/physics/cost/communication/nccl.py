"""How long a collective takes by NCCL's structure: algorithm x protocol, each `latency + bytes / bandwidth`.

    ring       base + intra_hops * hop + net_hops * step + (steps + x) / n * S * max(1 / B, 1 / NIC)
    tree       base + 2 [(k - 1) hop + log2(M) step]     + S * max(2 / B, c / NIC)
    nvls       base + fill                               + (n + 1) / n * S / B          (the switch reduces)
    nvls_tree  base + fill + 2 log2(M) step              + S * max((k + 1) / k / B, c / NIC)
    pat        base + log2(M) step                       + (n - 1) / n * S / (0.75 NIC) (one rank per domain)
    direct     base + per_peer * (n - 1)                 + max(intra / B, inter / NIC)  (all-to-all, send-receive)

n ranks in M domains of k; S bytes; `steps` is 2 (n - 1) for all-reduce and n - 1 for all-gather and reduce-scatter; x
is the part of a local copy or reduction that the ring does not hide. NIC is the bandwidth of the k NICs of a domain. c
is how often the message leaves a node: once between two nodes, twice in a double binary tree of more.

`fill` is the time to get the first chunk through the switch; it grows with a domain beyond 16 ranks. Out of such a
domain an NVLS tree drives few of the NICs (`tree_nics`), and each further rack takes `tree_rack_us` more.
A step over the network costs what the software needs,
plus the link's latency, plus `bulk`: on some networks (EFA) a step of a large message has to wait for a whole chunk.
Neither is ever longer than the wire time of the message itself.

Source of the structure: NCCL 2.30 `src/graph/tuning.cc` (Apache-2.0), where it chooses and does not predict. The
constants here are fitted to measurements: calibration/collectives.yaml, docs/physics/collectives.md.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from windtunnel.physics.cost.calibration import read_calibration

NVLS_TREE_FROM_BYTES = 4 << 20  # from here NCCL runs it across SHARP domains, even where a tree would be quicker,
NVLS_TREE_WIDTH = 4.0  # and from so many times that always
RACKS_MOST = 32  # across which a tree's time was seen to grow with their number: 20
FITTED_RANKS = 16  # of a scale-up domain
SAME_NVLINK = {"blackwell-ultra": "blackwell"}
ON_THE_WIRE = {"ll": 2.0, "ll128": 128 / 120, "simple": 1.0}  # bytes sent per byte of message: LL adds flags
PAT_BANDWIDTH = 0.75  # of the ring's, NCCL tuning.cc
SERVICE_BYTES = 8.0  # what a barrier moves: an all-reduce of one word


class Protocol(NamedTuple):
    """One of LL, LL128, Simple inside a scale-up domain, and the software part of a network step under it."""

    name: str
    base_s: float
    hop_s: float
    seconds_per_byte: float  # 1 / (link bandwidth * efficiency)
    ring_step_s: float
    tree_step_s: float


class Links(NamedTuple):
    """What of a cluster the formulas need; rates in bytes per second per GPU and direction."""

    generation: str
    up_protocol: str
    up_bandwidth: float
    up_latency_s: float
    up_peer_bandwidth: float
    net_protocol: str
    net_bandwidth: float
    net_latency_s: float
    nvlink_sharp: bool


class Fabric(NamedTuple):
    """A cluster as the formulas see it: constants and link rates multiplied out once. Rates are seconds per byte."""

    protocols: tuple[Protocol, ...]
    extra_steps: float
    nvls: Protocol | None
    nvls_fill_s: float
    direct: tuple[Protocol, ...]  # hop_s is per peer
    direct_extra: float
    ep_base_s: float
    ep_seconds_per_byte: float
    peers_for_full_rate: float  # in a mesh a group of n can use n - 1 of the links
    nic_seconds_per_byte: float
    nic_ep_seconds_per_byte: float
    nic_latency_s: float
    bulk_s: float
    bulk_nvls_s: float
    tree_of_two: float  # how often a message leaves each of two nodes in a tree
    nvls_tree_most: float  # scale-up domains across which NVLS trees run, at most
    measured_up: bool  # False: no measurement of this generation on this link class
    measured_net: bool
    nvls_wide: float = 1.0  # how much longer the switches of a domain of more than `FITTED_RANKS` take
    nvls_tree_nics: float = math.inf  # that an NVLS tree drives out of such a domain, at most
    nvls_tree_rack_s: float = 0.0  # more for each further one of them
    nvls_tree_from: float = NVLS_TREE_FROM_BYTES  # between two domains
    nvls_tree_slower: float = 1.0  # how much longer the switches take in one
    ll_seconds_per_byte: tuple[float, float] = (0.0, 0.0)  # of LL at the least: between two nodes, between more


class Shape(NamedTuple):
    """Who takes part: `n` ranks, `k` per domain on average, `m` domains, and what the network divides by."""

    n: int
    k: float
    m: int
    nic_share: float  # 1 = every rank drives its own NIC at full rate; 2 = half
    ring_uplink: float = 0.0  # share as above that the oversubscribed tier leaves to a ring or tree; 0 = not crossed
    direct_uplink: float = 0.0  # the same for all-to-all traffic


class Cost(NamedTuple):
    """One candidate: what it is, and the two parts of its time."""

    algorithm: str
    protocol: str
    latency_s: float
    bandwidth_s: float
    seconds: float


def calibration() -> dict[str, Any]:
    """The fitted constants, as in calibration/collectives.yaml."""
    return read_calibration("collectives.yaml")


def fabric_of(constants: dict[str, Any], links: Links) -> Fabric:
    """Multiply the constants of this generation and these link classes with the links' rates.

    A generation or link class that was never measured takes the generic constants and says so.
    """
    ups, nets = constants["scale_up"], constants["networks"]
    generation = SAME_NVLINK.get(links.generation, links.generation)
    measured_up = links.up_protocol == "nvlink" and generation in ups
    up = ups[generation] if measured_up else ups["generic"]
    by_generation = nets.get(links.net_protocol, nets["generic"])
    net = {**by_generation["default"], **by_generation.get(generation, {})}
    slower = links.up_latency_s - up["reference_latency_us"] * 1e-6

    def protocol(name: str, spec: dict[str, float], tree_step: str | None = None) -> Protocol:
        # the fitted hop includes the reference link's latency; software keeps at least half of it
        hop = spec["hop_us"] * 1e-6
        hop = max(hop / 2, hop + slower)
        per_byte = 1 / (links.up_bandwidth * spec["efficiency"])
        ring_step, tree_step_us = net["ring_step_us"][name], net["tree_step_us"][tree_step or name]
        return Protocol(name, spec["base_us"] * 1e-6, hop, per_byte, ring_step * 1e-6, tree_step_us * 1e-6)

    nvls = up.get("nvls")
    between_two, between_more = up["ll_between_gb_per_s"]
    return Fabric(
        protocols=tuple(protocol(name, spec) for name, spec in up["protocols"].items()),
        extra_steps=up["extra_steps"],
        nvls_fill_s=nvls["fill_us"] * 1e-6 if nvls else 0.0,
        nvls_wide=nvls["efficiency"] / nvls.get("wide_efficiency", nvls["efficiency"]) if nvls else 1.0,
        nvls_tree_nics=nvls.get("tree_nics", math.inf) if nvls else math.inf,
        nvls_tree_rack_s=nvls.get("tree_rack_us", 0.0) * 1e-6 if nvls else 0.0,
        nvls=protocol("simple", {"hop_us": 0.0, **nvls}, "nvls") if nvls and links.nvlink_sharp else None,
        direct=tuple(protocol(name, spec) for name, spec in up["direct"].items() if name != "extra_steps"),
        direct_extra=up["direct"]["extra_steps"],
        ep_base_s=constants["expert_parallel"]["base_us"] * 1e-6,
        ep_seconds_per_byte=1 / (links.up_bandwidth * constants["expert_parallel"]["efficiency"]),
        peers_for_full_rate=links.up_bandwidth / links.up_peer_bandwidth,
        nic_seconds_per_byte=1 / (links.net_bandwidth * net["efficiency"]),
        nic_ep_seconds_per_byte=1 / (links.net_bandwidth * net["expert_parallel_efficiency"]),
        nic_latency_s=links.net_latency_s,
        bulk_s=net["bulk_us"] * 1e-6,
        bulk_nvls_s=net["bulk_nvls_us"] * 1e-6,
        tree_of_two=net.get("tree_of_two", 1.0),
        nvls_tree_most=net.get("nvls_tree_most", math.inf),
        nvls_tree_from=nvls.get("tree_from_bytes", NVLS_TREE_FROM_BYTES) if nvls else NVLS_TREE_FROM_BYTES,
        nvls_tree_slower=nvls["efficiency"] / nvls.get("tree_efficiency", nvls["efficiency"]) if nvls else 1.0,
        ll_seconds_per_byte=(1e-9 / between_two, 1e-9 / between_more),
        measured_up=measured_up,
        measured_net=not net.get("guess", False),
    )


def candidates(kind: str, bytes_total: float, shape: Shape, fabric: Fabric) -> list[Cost]:
    """Every algorithm x protocol that could run this collective, unsorted. `shape.n` is at least 2."""
    if kind in ("all_to_all", "send_recv"):
        return _direct(kind, bytes_total, shape, fabric)
    if kind in ("ep_dispatch", "ep_combine"):
        return [_expert_parallel(bytes_total, shape, fabric)]
    if kind == "barrier":
        kind, bytes_total = "all_reduce", SERVICE_BYTES
    costs = _rings(kind, bytes_total, shape, fabric)
    if kind == "all_reduce":
        if shape.m > 1:
            costs += _trees(bytes_total, shape, fabric)
        if fabric.nvls and shape.k > 2 and (shape.m == 1 or shape.m <= fabric.nvls_tree_most):
            costs.append(_nvls(bytes_total, shape, fabric, fabric.nvls))
    elif shape.m > 1 and shape.k == 1 and kind in ("all_gather", "reduce_scatter"):
        costs.append(_pat(bytes_total, shape, fabric))
    return costs


def chosen(kind: str, bytes_total: float, shape: Shape, fabric: Fabric) -> Cost:
    """The candidate that NCCL would run: the fastest, but for large all-reduces across SHARP domains the NVLS tree."""
    costs = candidates(kind, bytes_total, shape, fabric)
    last = best = costs[-1]
    for cost in costs:
        if cost.seconds < best.seconds:
            best = cost
    start = fabric.nvls_tree_from if shape.m == 2 else NVLS_TREE_FROM_BYTES
    if last.algorithm != "nvls_tree" or kind == "barrier" or bytes_total <= start:
        return best
    # Where it changes over differs from job to job: between the two it is as likely as the size is near its own.
    share = min(1.0, math.log(bytes_total / start) / math.log(NVLS_TREE_WIDTH))
    slower = (last.seconds / best.seconds) ** (share - 1.0)
    return _cost(last.algorithm, last.protocol, last.latency_s * slower, last.bandwidth_s * slower)


def _rings(kind: str, bytes_total: float, shape: Shape, fabric: Fabric) -> list[Cost]:
    n, k, m = shape[:3]
    share = max(shape.nic_share, shape.ring_uplink)
    rounds = 2 if kind == "all_reduce" else 1
    steps, net_steps = rounds * (n - 1), rounds * (m - 1)
    # broadcast and reduce pipeline the whole message past every rank; the others move n-th parts
    whole = kind in ("broadcast", "reduce")
    passes = 1.0 if whole else steps / n
    up_passes = 1.0 if whole else (steps + fabric.extra_steps) / n
    mesh = _mesh(k, fabric)
    wire = bytes_total * passes * fabric.nic_seconds_per_byte * share / k if m > 1 else 0.0
    bulk = min(fabric.bulk_s, bytes_total * fabric.nic_seconds_per_byte / k) if m > 1 else 0.0
    rings = []
    for protocol in fabric.protocols:
        step = protocol.ring_step_s + fabric.nic_latency_s + bulk
        latency = protocol.base_s + (steps - net_steps) * protocol.hop_s + net_steps * step
        intra = bytes_total * up_passes * protocol.seconds_per_byte * mesh if k > 1 else 0.0
        between = _between(protocol, wire, bytes_total * passes, m, fabric)
        rings.append(_cost("ring", protocol.name, latency, max(intra, between)))
    return rings


def _trees(bytes_total: float, shape: Shape, fabric: Fabric) -> list[Cost]:
    k, m, share = shape.k, shape.m, max(shape.nic_share, shape.ring_uplink)
    crossings = fabric.tree_of_two if m == 2 else _crossings(m)
    wire = bytes_total * crossings * fabric.nic_seconds_per_byte * share / k
    bulk = min(fabric.bulk_s, bytes_total * fabric.nic_seconds_per_byte / k)
    mesh = _mesh(k, fabric)
    trees = []
    for protocol in fabric.protocols:
        step = protocol.tree_step_s + fabric.nic_latency_s + bulk
        latency = protocol.base_s + 2 * ((k - 1) * protocol.hop_s + math.log2(m) * step)
        intra = 2 * bytes_total * protocol.seconds_per_byte * mesh if k > 1 else 0.0
        between = _between(protocol, wire, 2 * bytes_total, m, fabric)
        trees.append(_cost("tree", protocol.name, latency, max(intra, between)))
    return trees


def _nvls(bytes_total: float, shape: Shape, fabric: Fabric, nvls: Protocol) -> Cost:
    k, m, share = shape.k, shape.m, max(shape.nic_share, shape.ring_uplink)
    wide = k > FITTED_RANKS
    intra = (k + 1) / k * bytes_total * nvls.seconds_per_byte * (fabric.nvls_wide if wide else 1.0)
    base = nvls.base_s + min(fabric.nvls_fill_s * max(1.0, k / FITTED_RANKS), intra)
    if m == 1:
        return _cost("nvls", nvls.name, base, intra)
    intra *= fabric.nvls_tree_slower
    nics = min(k, fabric.nvls_tree_nics) if wide else k
    wire = bytes_total * _crossings(m) * fabric.nic_seconds_per_byte * share / nics
    bulk = min(fabric.bulk_nvls_s, bytes_total * fabric.nic_seconds_per_byte / k)
    if wide:
        base += min(fabric.nvls_tree_rack_s, wire) * min(m - 1.0, RACKS_MOST)
    latency = base + 2 * math.log2(m) * (nvls.tree_step_s + fabric.nic_latency_s + bulk)
    return _cost("nvls_tree", nvls.name, latency, max(intra, wire))


def _pat(bytes_total: float, shape: Shape, fabric: Fabric) -> Cost:
    n, k, m = shape[:3]
    share = max(shape.nic_share, shape.ring_uplink)
    simple = fabric.protocols[-1]
    wire = bytes_total * (n - 1) / n * fabric.nic_seconds_per_byte * share / k / PAT_BANDWIDTH
    bulk = min(fabric.bulk_s, bytes_total * fabric.nic_seconds_per_byte / k)
    latency = simple.base_s + math.log2(m) * (simple.tree_step_s + fabric.nic_latency_s + bulk)
    return _cost("pat", simple.name, latency, wire)


def _direct(kind: str, bytes_total: float, shape: Shape, fabric: Fabric) -> list[Cost]:
    n, k, m = shape[:3]
    share = max(shape.nic_share, shape.direct_uplink)
    if kind == "send_recv":
        to_domain, to_network = (bytes_total, 0.0) if m == 1 else (0.0, bytes_total)
        peers, mesh = 1.0, fabric.peers_for_full_rate
    else:
        # the rank's own part is a local copy, of which `direct_extra` is not hidden
        to_domain = bytes_total * (k - 1 + (fabric.direct_extra if k > 1 else 0.0)) / n
        to_network = bytes_total * (n - k) / n
        peers, mesh = n - 1.0, _mesh(k, fabric)
    wire = to_network * fabric.nic_seconds_per_byte * share
    costs = []
    for protocol in fabric.direct:
        latency = protocol.base_s + peers * protocol.hop_s
        if m > 1:
            latency += protocol.ring_step_s + fabric.nic_latency_s
        intra = to_domain * protocol.seconds_per_byte * mesh
        costs.append(_cost("direct", protocol.name, latency, max(intra, wire * ON_THE_WIRE[protocol.name])))
    return costs


def _expert_parallel(bytes_total: float, shape: Shape, fabric: Fabric) -> Cost:
    """DeepEP's low-latency kernels: every token straight to its experts' ranks, NVLink and NIC at once."""
    n, k = shape[:2]
    share = max(shape.nic_share, shape.direct_uplink)
    intra = bytes_total * (k - 1) / n * fabric.ep_seconds_per_byte * _mesh(k, fabric)
    wire = bytes_total * (n - k) / n * fabric.nic_ep_seconds_per_byte * share
    return _cost("deep_ep", "low_latency", fabric.ep_base_s, max(intra, wire))


def _between(protocol: Protocol, wire: float, moved: float, m: int, fabric: Fabric) -> float:
    """Seconds between nodes: the wire's with what the protocol adds to it, and LL's own rate where that is less."""
    seconds = wire * ON_THE_WIRE[protocol.name]
    if m == 1 or protocol.name != "ll":
        return seconds
    return max(seconds, moved * fabric.ll_seconds_per_byte[m > 2])


def _crossings(m: int) -> float:
    """How many times the message leaves a node in NCCL's double binary tree, per node."""
    return 1.0 if m == 2 else 2.0


def _mesh(k: float, fabric: Fabric) -> float:
    """How much slower than all links together a group of `k` in a point-to-point mesh is; 1 behind a switch."""
    return max(1.0, fabric.peers_for_full_rate / max(k - 1, 1.0))


def _cost(algorithm: str, protocol: str, latency: float, bandwidth: float) -> Cost:
    return Cost(algorithm, protocol, latency, bandwidth, latency + bandwidth)
