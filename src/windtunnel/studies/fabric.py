"""The answer to `fabric`: a collective's time, algorithm and bandwidth for each size, and beside it nccl-tests.

Algorithm bandwidth is bytes over time; bus bandwidth that times the share of the bytes that crosses each rank's links,
as nccl-tests has it (its PERFORMANCE.md): 2 (n - 1) / n for all-reduce, (n - 1) / n for all-gather, reduce-scatter and
all-to-all, 1 for the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

from windtunnel.errors import InputFileError, SpecError
from windtunnel.files.bytes import read_text
from windtunnel.physics.cost.communication.collectives import Group, collective, group_of, latency_and_bandwidth
from windtunnel.physics.hardware.catalogue import cluster_of
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.hardware.torus import slice_of
from windtunnel.questions.asked.fabric import Fabric
from windtunnel.questions.header import Answer, band_entry
from windtunnel.questions.typed import plain_fields
from windtunnel.units import parse_bytes

SIZES_MOST = 64
BYTES_MOST = 2**44
REMEDY = "give the output of an nccl-tests binary such as all_reduce_perf -b 1M -e 8G -f 2 -g 8"


@dataclass(frozen=True, slots=True)
class Size:
    """One message. Times in seconds, bandwidths in bytes per second; `measured_s` by nccl-tests, out of place."""

    bytes: int
    seconds: float
    p5_s: float
    p95_s: float
    algorithm: str
    protocol: str
    latency_s: float  # what a message of one byte takes; a large one fills longer chains first
    algorithm_bandwidth: float
    bus_bandwidth: float
    source: str
    measured_s: float | None = None

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one."""
        return None if self.measured_s is None else self.seconds / self.measured_s - 1.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the ranks of the worst of such groups lie."""

    ranks: int
    domains: int  # scale-up domains: nodes, or racks of NVL72
    ranks_per_domain: int
    domain_gpus: int
    groups: int  # of that size, over the cluster
    crosses: str  # the link that its slowest traffic crosses


@dataclass(frozen=True, eq=False)
class FabricResult(Answer):
    """The sizes in order, and where the ranks are."""

    spec: Mapping[str, object]
    collective: str
    placement: Placement
    sizes: tuple[Size, ...]
    warnings: tuple[str, ...] = ()
    JSON_LEAVES_OUT = ("warnings",)

    @property
    def band(self) -> Mapping[str, object]:
        """Of the largest message."""
        return band_entry("sizes[-1].seconds", self.sizes[-1].p5_s, self.sizes[-1].p95_s)

    @property
    def provenance(self) -> Mapping[str, object]:
        """What prices messages."""
        return {"rests on": sorted({size.source for size in self.sizes})}

    @property
    def mean_error(self) -> float | None:
        """Mean of the sizes' errors, without their signs, where any was measured."""
        errors = [abs(size.error) for size in self.sizes if size.error is not None]
        return sum(errors) / len(errors) if errors else None

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        rows = [{**asdict(size), "error": size.error} for size in self.sizes]
        return {**plain_fields(self), "sizes": rows, "mean_error": self.mean_error}


def answer(question: Fabric) -> FabricResult:
    """Price every size. Raises UserError."""
    cluster = cluster_of(question.cluster)
    ranks = question.ranks or cluster.n_gpus
    if ranks < 2 or (ranks - 1) * question.stride + 1 > cluster.n_gpus:
        remedy = f"give 2 to {(cluster.n_gpus - 1) // question.stride + 1}: the cluster has {cluster.n_gpus} GPUs"
        raise SpecError("ranks", ranks, remedy)
    kind = question.collective.replace("-", "_")
    group = group_of(ranks, question.stride, cluster)
    measured = {} if question.measured is None else read_nccl_tests(question.measured)
    sizes = sorted(measured) if measured else sizes_of(question.bytes)
    priced_sizes = tuple(_size(kind, size, group, cluster, question.algorithm, measured.get(size)) for size in sizes)
    return FabricResult(
        spec={"cluster": cluster.name, "gpus": cluster.n_gpus, "gpu": cluster.gpu.name, "stride": question.stride},
        collective=question.collective,
        placement=_placement(group, cluster),
        sizes=priced_sizes,
        warnings=_warnings(kind, group, cluster),
    )


def sizes_of(text: str) -> list[int]:
    """`64MiB`, or `64MiB..8GiB` in powers of two from the first on, and the last. Raises SpecError."""
    ends = [parse_bytes(end.strip(), "bytes") for end in text.split("..")]
    if not 1 <= len(ends) <= 2 or not 1 <= ends[0] <= ends[-1] <= BYTES_MOST:
        raise SpecError("bytes", text[:80], "give a size or FIRST..LAST, such as 64MiB..8GiB, of at most 16TiB")
    sizes = [ends[0]]
    while sizes[-1] * 2 <= ends[-1] and len(sizes) < SIZES_MOST:
        sizes.append(sizes[-1] * 2)
    return sizes if sizes[-1] == ends[-1] else [*sizes, ends[-1]]


def bus_factor(kind: str, ranks: int) -> float:
    """What nccl-tests multiplies algorithm bandwidth with."""
    if kind == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def _size(
    kind: str, size: int, group: Group, cluster: Cluster, algorithm: str | None, measured_s: float | None
) -> Size:
    price = collective(kind, size, group, cluster, algorithm=algorithm)
    chosen, protocol, _, _ = latency_and_bandwidth(kind, size, group, cluster)
    alone = collective(kind, 1, group, cluster)
    bandwidth = size / price.seconds
    return Size(
        bytes=size,
        seconds=price.seconds,
        p5_s=price.p5,
        p95_s=price.p95,
        algorithm=algorithm or chosen,
        protocol=protocol if algorithm in (None, chosen) else "",
        latency_s=min(alone.seconds, price.seconds),
        algorithm_bandwidth=bandwidth,
        bus_bandwidth=bandwidth * bus_factor(kind, group.size),
        source=price.source.name.lower(),
        measured_s=measured_s,
    )


def _placement(group: Group, cluster: Cluster) -> Placement:
    link = cluster.scale_up if group.domains == 1 else cluster.scale_out
    shape = ""
    if link.torus is not None:
        axes = slice_of(link, min(cluster.n_gpus, cluster.used_per_domain))
        ways = ", ".join("ring" if axis.ring else "line" for axis in axes)
        shape = f", slice {'x'.join(str(axis.length) for axis in axes)} ({ways})"
    return Placement(
        ranks=group.size,
        domains=group.domains,
        ranks_per_domain=group.per_domain,
        domain_gpus=cluster.gpus_in_domain,
        groups=max(1, cluster.n_gpus // group.size),
        crosses=link.name + shape,
    )


def _warnings(kind: str, group: Group, cluster: Cluster) -> tuple[str, ...]:
    warnings = []
    if group.domains > 1 and group.size % group.per_domain:
        warnings.append(f"the last domain holds {group.size % group.per_domain} ranks, the others {group.per_domain}")
    if group.domains > 1 and cluster.oversubscription > 1.0:
        warnings.append(f"links above a pod are {cluster.oversubscription:g}:1 oversubscribed")
    if kind.startswith("ep_") and group.domains > 1:
        warnings.append("tokens go to every expert alike; a router that limits nodes sends less")
    return tuple(warnings)


ROW = re.compile(r"(?:^|[:>\]])\s*(\d+)\s+(\d+)\s+([a-z]\w*)\s+(.*)$")  # mpirun may have put a tag in front


def read_nccl_tests(path: str | Path) -> dict[int, float]:
    """Seconds by size of what an nccl-tests binary printed, out of place. Raises InputFileError."""
    nccl_tests: dict[int, float] = {}
    for number, line in enumerate(read_text(path, REMEDY).splitlines(), 1):
        row = ROW.search(line)
        if row is None:
            continue
        time_us = _out_of_place_us(int(row[1]), row[4].split())
        if time_us is None:
            raise InputFileError(path, f"line {number} has a size and no time", REMEDY)
        if int(row[1]):
            nccl_tests[int(row[1])] = time_us * 1e-6
    if not nccl_tests:
        raise InputFileError(path, "holds no rows of sizes and times", REMEDY)
    if len(nccl_tests) > SIZES_MOST:
        raise InputFileError(path, f"holds {len(nccl_tests)} sizes", f"give at most {SIZES_MOST}")
    return nccl_tests


def _out_of_place_us(size: int, words: Sequence[str]) -> float | None:
    """The first time in a row. redop and root are not in every version's columns, and a time of 10 ms and more has no
    point, so it is told by the algorithm bandwidth behind it: size / time in GB/s, to two digits."""
    numbers = [float(word) for word in words if re.fullmatch(r"-?\d+(\.\d+)?", word)]
    for time_us, bandwidth in pairwise(numbers):
        if time_us > 0 and abs(size / time_us / 1e3 - bandwidth) <= max(0.0051, 0.01 * bandwidth):
            return time_us
    return None
