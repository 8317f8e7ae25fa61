"""How long one collective takes alone: measured NCCL tables inside a node, NCCL's structure, fitted, elsewhere.

    table     all ranks in one NVLink domain, a system that aiconfigurator-core timed, a group no larger than it timed:
              log-log interpolation in bytes, log interpolation in ranks. A link whose rate or latency differs from the
              timed one scales every point of the table by what the formula says of the two links.
    measured  a calibrated cluster (`hardware.calibration`) that timed this collective on as many ranks: straight
              lines in bytes, a line fitted through all sizes beyond them.
    formula   `nccl.chosen`: the algorithm and protocol that NCCL would run; inside a node, across nodes, on any GPU.
              `torus.cost` on a torus: rings and lines along its axes.

Bytes follow nccl-tests: all-reduce, broadcast, reduce: the buffer; all-gather: the gathered output; reduce-scatter: the
full input; all-to-all and expert-parallel dispatch and combine: everything one rank sends, its own part included;
send-receive: the message.

Time counts from the arrival of the last member. Constants, their source and their error: docs/physics/collectives.md.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from windtunnel.errors import SpecError
from windtunnel.physics.cost.communication import nccl, nccl_tables, torus
from windtunnel.physics.cost.price import FREE, Price, Source
from windtunnel.physics.hardware.cluster import Cluster

if TYPE_CHECKING:
    from windtunnel.physics.cost.communication.measured_curve import MeasuredCurve
    from windtunnel.physics.hardware.calibration import Calibration, Points

KINDS = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv", "barrier"),
    *("ep_dispatch", "ep_combine"),
)
ALGORITHMS = ("ring", "tree", "nvls", "nvls_tree", "pat", "direct", "deep_ep", torus.ALGORITHM)
SMALL_BYTES = 1 << 20  # below it latency rules, which differs more between machines
BETWEEN_BAND = 0.19  # log half-width per factor e from the nearest timed size: every other size hidden, all systems
WITHOUT_LATENCY_BYTES = float(1 << 50)  # a message this long tells the ratio of two bandwidths


@dataclass(frozen=True, slots=True)
class Group:
    """Who takes part in a collective, as far as its time depends on it."""

    size: int  # ranks
    per_domain: int  # members inside one scale-up domain; the last domain may hold fewer
    nics_shared_by: int = 1  # how many GPUs' flows of concurrent identical groups share one NIC
    span: int = 0  # GPUs from the first member to the last; 0 = as few as `size` and `per_domain` allow
    in_domains: int = 0  # domains that the worst of such groups lies in; 0 = as few as `per_domain` allows
    fewest: int = 0  # of its members in one of them; 0 = evenly

    def __post_init__(self) -> None:
        for name in ("size", "per_domain", "nics_shared_by"):
            if getattr(self, name) < 1:
                raise SpecError(name, getattr(self, name), "must be a whole number of at least 1")
        if self.per_domain > self.size:
            raise SpecError("per_domain", self.per_domain, f"cannot exceed the group's size ({self.size})")

    @property
    def domains(self) -> int:
        """Scale-up domains that the group spans."""
        return self.in_domains or -(-self.size // self.per_domain)


def group_of(size: int, stride: int, cluster: Cluster) -> Group:
    """The ranks r, r + stride, ..., `size` of them, where they lie when ranks follow GPUs: the worst of such groups.

    Groups of a kind fill the cluster block by block. Where blocks and domains do not nest, some group lies across a
    border that others do not touch; all of them wait for it.
    """
    if stride < 1:
        raise SpecError("stride", stride, "must be a whole number of at least 1")
    return _laid(size, stride, cluster.used_per_domain, cluster.n_gpus)


@lru_cache(maxsize=4096)
def _laid(size: int, stride: int, domain: int, n_gpus: int) -> Group:
    per_domain, span = max(1, min(size, -(-domain // stride))), (size - 1) * stride + 1
    block = size * stride
    if block <= 1 or n_gpus <= domain or domain % block == 0 or (block % domain == 0 and domain % stride == 0):
        return Group(size, per_domain, 1, span)
    worst = Group(size, per_domain, 1, span)
    period = math.lcm(block, domain) // block
    for number in range(min(period, n_gpus // block)):
        for offset in range(min(stride, domain)):
            places = Counter((number * block + offset + member * stride) // domain for member in range(size))
            if (len(places), -min(places.values())) > (worst.domains, -(worst.fewest or size)):
                worst = Group(size, max(places.values()), 1, span, len(places), min(places.values()))
    return worst


def tier(group: Group) -> Literal["scale_up", "scale_out"]:
    """The tier of links that the group's slowest traffic crosses."""
    return "scale_up" if group.domains == 1 else "scale_out"


def collective(kind: str, bytes_total: float, group: Group, cluster: Cluster, *, algorithm: str | None = None) -> Price:
    """Seconds of one collective alone, from the arrival of its last member.

    Args:
        kind: One of `KINDS`.
        bytes_total: Message size by the convention in the module's docstring; a barrier ignores it.
        group: Who takes part.
        cluster: The links between them.
        algorithm: One of `ALGORITHMS` to force it, as NCCL_ALGO does; None = the fastest.

    Raises:
        SpecError: an unknown kind or algorithm, an algorithm that cannot run this collective here, bytes below zero.
    """
    return _priced(kind, float(bytes_total), group, cluster, algorithm).price


def pull(bytes_total: float, group: Group, cluster: Cluster) -> Price:
    """Every member's copy engine reads so many bytes of another member's memory, all of them at once.

    Latency as of NCCL's smallest message: a signal that they are there. Rate of the links to one peer, less what NCCL's
    large messages lose of it, which is what packets take. Across nodes as a message.
    """
    if group.size == 1 or bytes_total <= 0.0:
        return FREE
    if tier(group) == "scale_out":
        return collective("send_recv", bytes_total, group, cluster)
    fabric = fabric_of(cluster)
    signal = min(protocol.base_s + protocol.hop_s for protocol in fabric.protocols)
    per_byte = min(protocol.seconds_per_byte for protocol in fabric.protocols) * fabric.peers_for_full_rate
    seconds = signal + bytes_total * per_byte
    low, high = _spread(fabric, group, bytes_total)
    return Price(seconds, seconds * low, seconds * high, Source.ROOFLINE)


def latency_and_bandwidth(
    kind: str, bytes_total: float, group: Group, cluster: Cluster
) -> tuple[str, str, float, float]:
    """(algorithm, protocol, seconds of latency, seconds of bandwidth): how the price of a collective comes about.

    The split is the formula's; where a measured table sets the time, it is scaled to that.
    """
    return _priced(kind, float(bytes_total), group, cluster, None).split


def nic_share(kind: str, bytes_total: float, group: Group, cluster: Cluster) -> float:
    """Share of a GPU's NIC that a collective takes while alone: 0 inside a node, less than 1 while small."""
    if tier(group) != "scale_out" or not bytes_total:
        return 0.0
    _, _, latency_s, bandwidth_s = latency_and_bandwidth(kind, bytes_total, group, cluster)
    whole = latency_s + bandwidth_s
    return bandwidth_s / whole if whole > 0.0 else 0.0


class _Priced(NamedTuple):
    price: Price
    split: tuple[str, str, float, float]


@lru_cache(maxsize=1 << 16)
def _priced(kind: str, bytes_total: float, group: Group, cluster: Cluster, algorithm: str | None) -> _Priced:
    _check(kind, bytes_total, algorithm)
    if group.size == 1 or (bytes_total == 0 and kind != "barrier"):
        return _Priced(FREE, ("none", "none", 0.0, 0.0))
    fabric = fabric_of(cluster)
    best = _fastest(kind, bytes_total, group, cluster, algorithm)
    timed = None if algorithm else _calibrated(kind, bytes_total, group, cluster)
    timed = timed or (None if algorithm else _from_table(kind, bytes_total, group, cluster))
    seconds, source, spread = timed or (
        best.seconds,
        Source.FITTED if _is_fitted(fabric, group) else Source.ROOFLINE,
        _spread(fabric, group, bytes_total),
    )
    low, high = spread
    scale = seconds / best.seconds if best.seconds > 0.0 else 1.0
    split = (best.algorithm, best.protocol, best.latency_s * scale, best.bandwidth_s * scale)
    return _Priced(Price(seconds, seconds * low, seconds * high, source), split)


def formula(kind: str, bytes_total: float, group: Group, cluster: Cluster, algorithm: str | None = None) -> float:
    """Seconds by the formula alone, measured tables ignored: what a GPU without tables gets."""
    _check(kind, bytes_total, algorithm)
    if group.size == 1 or (bytes_total == 0 and kind != "barrier"):
        return 0.0
    return _fastest(kind, bytes_total, group, cluster, algorithm).seconds


@lru_cache(maxsize=256)
def fabric_of(cluster: Cluster) -> nccl.Fabric:
    """The cluster's links with the fitted constants, as the formulas take them."""
    return nccl.fabric_of(nccl.calibration(), links_of(cluster))


def links_of(cluster: Cluster) -> nccl.Links:
    """What of a cluster the formulas need."""
    up, out = cluster.scale_up, cluster.scale_out
    return nccl.Links(
        generation=cluster.gpu.generation,
        up_protocol=up.protocol,
        up_bandwidth=up.bandwidth_bytes_per_s,
        up_latency_s=up.latency_s,
        up_peer_bandwidth=up.to_one_peer_bytes_per_s,
        net_protocol=out.protocol,
        net_bandwidth=out.bandwidth_bytes_per_s,
        net_latency_s=out.latency_s,
        nvlink_sharp=cluster.nvlink_sharp,
    )


def _check(kind: str, bytes_total: float, algorithm: str | None) -> None:
    if kind not in KINDS:
        raise SpecError("collective", kind, f"unknown; use one of {', '.join(KINDS)}")
    if not (math.isfinite(bytes_total) and bytes_total >= 0):
        raise SpecError("bytes_total", bytes_total, "must be zero or more")
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise SpecError("algorithm", algorithm, f"unknown; use one of {', '.join(ALGORITHMS)}, or none")


def _fastest(kind: str, bytes_total: float, group: Group, cluster: Cluster, algorithm: str | None) -> nccl.Cost:
    shape, fabric, link = _shape(group, cluster), fabric_of(cluster), cluster.scale_up
    if link.torus is not None:
        if algorithm not in (None, torus.ALGORITHM):
            raise SpecError("algorithm", algorithm, f"cannot run on a torus; use {torus.ALGORITHM}")
        stride = (group.span - 1) // (group.size - 1) if group.span else 1
        chips = min(cluster.n_gpus, cluster.used_per_domain)
        return torus.cost(kind, bytes_total, shape, max(1, stride), chips, link, fabric)
    if algorithm is None:
        return nccl.chosen(kind, bytes_total, shape, fabric)
    costs = nccl.candidates(kind, bytes_total, shape, fabric)
    able = sorted({cost.algorithm for cost in costs})
    if algorithm not in able:
        raise SpecError("algorithm", algorithm, f"cannot run {kind} on this group; use one of {', '.join(able)}")
    return min((cost for cost in costs if cost.algorithm == algorithm), key=lambda cost: cost.seconds)


@lru_cache(maxsize=4096)
def _shape(group: Group, cluster: Cluster) -> nccl.Shape:
    domains = group.domains
    members = float(group.fewest) or group.size / domains
    ring, direct = _uplink_shares(group, members, cluster)
    return nccl.Shape(group.size, members, domains, group.nics_shared_by, ring, direct)


def _uplink_shares(group: Group, members: float, cluster: Cluster) -> tuple[float, float]:
    """How many times longer than the NICs the oversubscribed tier takes, for rings and trees, and for all-to-all.

    A ring or a tree in rank order leaves a pod once for all the domains it has there: of d domains in a pod only a d-th
    of the flow meets the uplinks. Of all-to-all traffic every byte does that is addressed outside the pod.
    """
    over, pod = cluster.oversubscription, cluster.gpus_per_pod
    if group.domains == 1 or over == 1.0:
        return 0.0, 0.0
    if pod is None:
        return over, over
    span = group.span or (group.domains - 1) * cluster.scale_up_domain + 1
    if span <= pod:
        return 0.0, 0.0
    stride = (span - 1) / (group.size - 1)
    in_pod = min(max(members, pod / stride), group.size)
    return over * members / in_pod, over * (group.size - in_pod) / (group.size - members)


# ------------------------------------------------------------------------------------------------ measured tables


def _from_table(
    kind: str, bytes_total: float, group: Group, cluster: Cluster
) -> tuple[float, Source, tuple[float, float]] | None:
    system = cluster.gpu.kernel_tables
    if system is None or group.domains > 1:
        return None
    below, above = _timed_sizes(kind, group.size, system)
    if below == 0:
        return None
    curves = [_adjusted(kind, n, cluster) for n in (below, above)]
    if curves[0] is None or curves[1] is None:
        return None
    seconds, exact = on_curve(*curves[0], bytes_total)
    if above != below:
        weight = math.log(group.size / below) / math.log(above / below)
        seconds = seconds ** (1 - weight) * on_curve(*curves[1], bytes_total)[0] ** weight
    as_timed = _as_timed(cluster)
    source = (Source.MEASURED if exact and above == below else Source.INTERPOLATED) if as_timed else Source.FITTED
    bands = nccl.calibration()["bands"]["table"]
    low, high = bands["small" if bytes_total < SMALL_BYTES else "large"]
    extra = between_band(curves[0][0], bytes_total)
    return seconds, source, (math.exp(-math.hypot(math.log(low), extra)), math.exp(math.hypot(math.log(high), extra)))


def between_band(curve: nccl_tables.Curve, bytes_total: float) -> float:
    """Log half-width that a band gains between two timed sizes: nothing at either, more the further they are apart."""
    sizes = curve.bytes_total
    place = bisect_right(sizes, bytes_total)
    if place in (0, len(sizes)):
        return 0.0
    return BETWEEN_BAND * min(math.log(bytes_total / sizes[place - 1]), math.log(sizes[place] / bytes_total))


@lru_cache(maxsize=4096)
def _timed_sizes(kind: str, size: int, system: str) -> tuple[int, int]:
    """The numbers of GPUs just below and above `size` that were timed; (0, 0) where it is outside them."""
    timed = sorted(n for of, n in nccl_tables.load(system) if of == kind)
    if not timed or not timed[0] <= size <= timed[-1]:
        return (0, 0)
    place = bisect_right(timed, size)
    below = timed[place - 1]
    return below, below if below == size else timed[place]


def _as_timed(cluster: Cluster) -> bool:
    timed = nccl.calibration()["tables"].get(cluster.gpu.kernel_tables or "")
    if timed is None:
        return False
    up, rate = cluster.scale_up, timed["bandwidth_gb_per_s"] * 1e9
    return (
        up.to_one_peer_bytes_per_s == up.bandwidth_bytes_per_s
        and cluster.nvlink_sharp == timed["nvlink_sharp"]
        and math.isclose(up.bandwidth_bytes_per_s, rate, rel_tol=0.01)
        and math.isclose(up.latency_s, timed["latency_us"] * 1e-6, rel_tol=0.01)
    )


@lru_cache(maxsize=512)
def _adjusted(kind: str, n: int, cluster: Cluster) -> tuple[nccl_tables.Curve, float] | None:
    """The measured curve as this cluster's scale-up link would give it, and seconds per byte beyond its end.

    None where the link is of another class than the timed one.
    """
    system = cluster.gpu.kernel_tables or ""
    timed = nccl.calibration()["tables"].get(system)
    curve = nccl_tables.load(system).get((kind, n))
    if timed is None or curve is None or cluster.scale_up.protocol != timed["protocol"]:
        return None
    per_byte = (curve.seconds[-1] - curve.seconds[-2]) / (curve.bytes_total[-1] - curve.bytes_total[-2])
    if _as_timed(cluster):
        return curve, per_byte
    here = fabric_of(cluster)
    rate = timed["bandwidth_gb_per_s"] * 1e9
    there = nccl.fabric_of(
        nccl.calibration(),
        links_of(cluster)._replace(
            up_bandwidth=rate,
            up_peer_bandwidth=rate,
            up_latency_s=timed["latency_us"] * 1e-6,
            nvlink_sharp=timed["nvlink_sharp"],
        ),
    )
    shape = nccl.Shape(n, n, 1, 1, 0.0)

    def ratio(size: float) -> float:
        return nccl.chosen(kind, size, shape, here).seconds / nccl.chosen(kind, size, shape, there).seconds

    seconds, so_far = [], 0.0
    for size, measured in zip(*curve, strict=True):
        so_far = max(so_far, measured * ratio(size))  # a larger message never takes less
        seconds.append(so_far)
    return nccl_tables.Curve(curve.bytes_total, tuple(seconds)), per_byte * ratio(WITHOUT_LATENCY_BYTES)


def on_curve(curve: nccl_tables.Curve, per_byte: float, bytes_total: float) -> tuple[float, bool]:
    """Seconds at `bytes_total`, and whether that very size was timed.

    Below the smallest timed message time is flat (latency); above the largest it goes on at the last two points' rate.
    """
    sizes, seconds = curve
    place = bisect_right(sizes, bytes_total)
    if place == 0:
        return seconds[0], False
    if sizes[place - 1] == bytes_total:
        return seconds[place - 1], True
    if place == len(sizes):
        return seconds[-1] + per_byte * (bytes_total - sizes[-1]), False
    weight = math.log(bytes_total / sizes[place - 1]) / math.log(sizes[place] / sizes[place - 1])
    low, high = seconds[place - 1], seconds[place]
    return low * (high / low) ** weight, False


# ------------------------------------------------------------------------------------------- measured on this device


def _calibrated(
    kind: str, bytes_total: float, group: Group, cluster: Cluster
) -> tuple[float, Source, tuple[float, float]] | None:
    if cluster.calibration is None:
        return None
    curve = _calibrated_curve(kind, group.size, cluster.calibration)
    if curve is None:
        return None
    seconds, distance, band = curve.at(bytes_total)
    source = Source.INTERPOLATED if distance == 0.0 else Source.FITTED
    exact = distance == 0.0 and bytes_total in curve.bytes_total
    return seconds, Source.MEASURED if exact else source, band


@lru_cache(maxsize=256)
def _calibrated_curve(kind: str, size: int, calibration: Calibration) -> MeasuredCurve | None:
    from windtunnel.physics.cost.communication.measured_curve import measured_curve

    points = calibrated_points(kind, size, calibration)
    return None if points is None else measured_curve(points)


def calibrated_points(kind: str, size: int, calibration: Calibration) -> Points | None:
    """What was timed of a collective, of the backend that the device's own software would take; None: it was not."""
    usual = "nccl" if calibration.kind == "cuda" else "gloo"
    backends = sorted(backend for of, backend, ranks in calibration.collectives if (of, ranks) == (kind, size))
    if not backends:
        return None
    return calibration.collectives[kind, usual if usual in backends else backends[0], size]


def _is_fitted(fabric: nccl.Fabric, group: Group) -> bool:
    return fabric.measured_up and (group.domains == 1 or fabric.measured_net)


def _spread(fabric: nccl.Fabric, group: Group, bytes_total: float) -> tuple[float, float]:
    bands = nccl.calibration()["bands"]
    name = ("scale_up" if group.domains == 1 else "scale_out") if _is_fitted(fabric, group) else "roofline"
    low, high = bands[name]["small" if bytes_total < SMALL_BYTES else "large"]
    return low, high
