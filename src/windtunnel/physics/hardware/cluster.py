"""A cluster: GPUs of one kind, joined by two tiers of links.

    GPU  --scale-up-->  the NVLink / xGMI domain  --scale-out-->  NICs, leaf switches  --(oversubscribed?)-->  spine

* `gpus_per_node` is what one host drives: it decides who shares a CPU and which ranks are launched together.
* `scale_up_domain` is what NVLink, xGMI or ICI joins: 8 for HGX, 72 for NVL72; the node where peers meet over PCIe; 1
  where there is no such thing. It decides who talks over `scale_up` and who over `scale_out`.
* Every bandwidth is per GPU and in one direction, as on the data sheet before protocol overhead. What a collective gets
  of it is calibrated in `cost`, by `Link.protocol`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from windtunnel.errors import SpecError
from windtunnel.physics.hardware.gpu import Gpu, check_unit, one_of, positive
from windtunnel.physics.hardware.torus import check_torus, shape_of

if TYPE_CHECKING:  # numpy stays out of what does not need it
    from windtunnel.physics.hardware.calibration import Calibration

PROTOCOLS = ("nvlink", "xgmi", "ici", "pcie", "infiniband", "roce", "efa", "tcpxo", "tcpx", "ethernet")


@dataclass(frozen=True, slots=True)
class Link:
    """One tier of links, as one GPU sees it."""

    name: str  # "NVLink 4", "InfiniBand NDR"
    bandwidth_bytes_per_s: float  # per GPU, one direction, to all peers together
    latency_s: float  # of one hop for a small message, between two GPUs' memories
    protocol: str = "infiniband"  # one of PROTOCOLS: the class by which `cost` calibrates efficiency
    peer_bandwidth_bytes_per_s: float | None = None  # to a single peer where that is less, as in an xGMI mesh
    torus: str | None = None  # "16x20x28": chips along each axis, a link to each neighbour; else a switch or a mesh
    cube: int | None = None  # optical switches close every axis of slices of whole cubes of so many chips each way
    slice: str | None = None  # "4x8x64": the slice of a job; None = the most compact one

    def __post_init__(self) -> None:
        check_unit("bandwidth_bytes_per_s", self.bandwidth_bytes_per_s, 1e6, "400 Gb/s")
        one_of("protocol", self.protocol, PROTOCOLS)
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise SpecError("latency_s", self.latency_s, "must be zero or more")
        peer = self.peer_bandwidth_bytes_per_s
        if peer is not None:
            positive("peer_bandwidth_bytes_per_s", peer)
            if peer > self.bandwidth_bytes_per_s:
                raise SpecError("peer_bandwidth_bytes_per_s", peer, "cannot exceed the bandwidth to all peers")
        check_torus(self)

    @property
    def to_one_peer_bytes_per_s(self) -> float:
        """Bandwidth of a single send: to one peer, one direction."""
        peer = self.peer_bandwidth_bytes_per_s
        return self.bandwidth_bytes_per_s if peer is None else peer

    def to_dict(self) -> dict[str, object]:
        """The resolved spec, ready for JSON."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}


@dataclass(frozen=True, slots=True)
class Host:
    """What a node's CPU side offers each GPU."""

    pcie_bandwidth_bytes_per_s: float  # per GPU, one direction
    memory_bytes: int  # host memory of one node
    c2c_bandwidth_bytes_per_s: float | None = None  # coherent CPU-GPU link per GPU, one direction (Grace); else None
    cpu_speed: float = 1.0  # single-thread speed, 1.0 = Xeon Platinum 8480C (Sapphire Rapids)

    def __post_init__(self) -> None:
        positive("pcie_bandwidth_bytes_per_s", self.pcie_bandwidth_bytes_per_s)
        positive("memory_bytes", self.memory_bytes)
        positive("cpu_speed", self.cpu_speed)
        if self.c2c_bandwidth_bytes_per_s is not None:
            positive("c2c_bandwidth_bytes_per_s", self.c2c_bandwidth_bytes_per_s)

    @property
    def offload_bandwidth_bytes_per_s(self) -> float:
        """Per GPU and direction between GPU and host memory, over the faster of the two ways."""
        return max(self.pcie_bandwidth_bytes_per_s, self.c2c_bandwidth_bytes_per_s or 0.0)

    def to_dict(self) -> dict[str, object]:
        """The resolved spec, ready for JSON."""
        return {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}


@dataclass(frozen=True, slots=True)
class Cluster:
    """`n_gpus` of one kind in whole nodes (or part of one), and how they are joined."""

    name: str
    gpu: Gpu
    n_gpus: int
    gpus_per_node: int
    scale_up_domain: int  # GPUs joined by NVLink, xGMI, ICI or the PCIe of one host; 1 = none
    scale_up: Link
    scale_out: Link  # per GPU NIC
    host: Host
    oversubscription: float = 1.0  # of the tier above the pods: 2.0 = half the bandwidth leaves a pod
    rail_optimised: bool = True  # GPUs of the same local index meet at one leaf switch
    gpus_per_pod: int | None = None  # GPUs below the oversubscribed tier; None = those of one node
    nvlink_sharp: bool = False  # the switch reduces (NVLS)
    calibration: Calibration | None = None  # what was measured on this very device; replaces catalogue prices
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("n_gpus", "gpus_per_node", "scale_up_domain"):
            _whole(name, getattr(self, name))
        per_node, domain = self.gpus_per_node, self.scale_up_domain
        if self.n_gpus > per_node and self.n_gpus % per_node:
            below, above = self.n_gpus // per_node * per_node, -(-self.n_gpus // per_node) * per_node
            remedy = f"must be whole nodes of {per_node}: {below} or {above}; or set gpus_per_node"
            raise SpecError("n_gpus", self.n_gpus, remedy)
        if domain % per_node and per_node % domain:
            remedy = f"must divide gpus_per_node ({per_node}) or be a multiple of it"
            raise SpecError("scale_up_domain", domain, remedy)
        torus = self.scale_up.torus
        if torus is not None and domain > (chips := math.prod(shape_of(torus, "torus"))):
            raise SpecError("scale_up_domain", domain, f"is more than the {chips} chips of the torus {torus}")
        if not (math.isfinite(self.oversubscription) and self.oversubscription >= 1.0):
            raise SpecError("oversubscription", self.oversubscription, "must be 1.0 (none) or more; 2.0 means 2:1")
        if self.gpus_per_pod is not None:
            _whole("gpus_per_pod", self.gpus_per_pod)
            if self.gpus_per_pod % per_node:
                raise SpecError("gpus_per_pod", self.gpus_per_pod, f"must be whole nodes of {per_node} GPUs")

    @property
    def n_nodes(self) -> int:
        """Hosts, the last one possibly partly used."""
        return -(-self.n_gpus // self.gpus_per_node)

    @property
    def gpus_in_domain(self) -> int:
        """GPUs of a full scale-up domain that this cluster really has: at most `n_gpus`."""
        return min(self.scale_up_domain, self.n_gpus)

    @property
    def used_per_domain(self) -> int:
        """GPUs of each scale-up domain that a job on the whole cluster takes: as many as fill all domains alike.

        Schedulers hand out racks in equal blocks: 256 GPUs of NVL72 are four times 64, not three times 72 and 40.
        """
        per_node, domain = self.gpus_per_node, self.scale_up_domain
        if self.n_gpus <= domain or domain <= per_node:
            return domain
        blocks = range(domain - domain % per_node, 0, -per_node)
        return next((size for size in blocks if self.n_gpus % size == 0), domain)

    @property
    def pod_size(self) -> int:
        """GPUs that reach each other without crossing the oversubscribed tier."""
        return self.gpus_per_node if self.gpus_per_pod is None else self.gpus_per_pod

    def to_dict(self) -> dict[str, object]:
        """The resolved spec, ready for JSON; `parse_cluster` reads it back to an equal cluster."""
        return self._spelled(whole=True)

    def summary_dict(self) -> dict[str, object]:
        """As `to_dict`, for a result: of a calibration what it is, not its thousand points."""
        return self._spelled(whole=False)

    def _spelled(self, *, whole: bool) -> dict[str, object]:
        nested = {name: getattr(self, name).to_dict() for name in ("gpu", "scale_up", "scale_out", "host")}
        plain = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        if self.calibration is not None:
            from windtunnel.physics.hardware.calibration import calibration_to_document

            plain["calibration"] = (
                calibration_to_document(self.calibration) if whole else self.calibration.summary_dict()
            )
        return {**plain, **nested, "sources": dict(self.sources)}


def cluster_with(cluster: Cluster, **changes: Any) -> Cluster:
    """`cluster` with some fields changed, checked again.

    When `gpus_per_node` changes and the scale-up domain was exactly a node, the domain stays exactly a node.

    Raises:
        SpecError: an unknown field, or a value that does not fit the rest.
    """
    names = [item.name for item in dataclasses.fields(Cluster)]
    for name, value in changes.items():
        if name not in names:
            raise SpecError(name, value, f"unknown field of a cluster; known: {', '.join(names)}")
    if "gpus_per_node" in changes and cluster.scale_up_domain == cluster.gpus_per_node:
        changes.setdefault("scale_up_domain", changes["gpus_per_node"])
    if "sources" not in changes:  # a number must not keep the source of the one that it replaces
        sources = {key: text for key, text in cluster.sources.items() if key.split(".")[0] not in changes}
        changes["sources"] = sources
    return dataclasses.replace(cluster, **changes)


def _whole(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SpecError(name, value, "must be a whole number of at least 1")
