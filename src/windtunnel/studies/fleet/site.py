"""The cluster of a fleet: how many nodes of how many GPUs, or a file of unlike nodes.

t4:64              64 GPUs of a kind, on nodes as that kind usually comes
t4:16x4            16 nodes of 4 GPUs
8xh100             GPUs of a kind as people write them; 4 x p5.48xlarge: instances of a cloud
v100:8x4+k80:4x4   nodes of several kinds, of one size (policies gavel and sia)
nodes.csv          node,cpu_milli,memory_mib,gpus,gpu_model: unlike nodes, for packing
slurm.conf         its nodes, of unlike sizes for slurm alone; a site.yaml may have `slurm: [slurm.conf, gres.conf,
                   qos.txt, assoc.txt]`, of `sacctmgr -P show` too, and `gpu`
nodes.json         Kubernetes nodes, of `kubectl get nodes -o json`: their GPUs, and labels for Kueue's flavors; a
                   site.yaml may have `nodes: nodes.json`, and a topology
site.yaml          gpu, gpus, gpus_per_node; clouds beside them (`hybrid/clouds.py`); for kueue the nodes of racks and
                   blocks, `topology: {block: 64, rack: 16}`; `shares_per_gpu` for jobs that ask for shares by number,
                   `link` of a rack or node for traffic (`sharing/links.py`), `devices` for live jobs: [MIG-...]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import InputFileError, SpecError, UnknownNameError
from windtunnel.files.document import read_document, read_mapping
from windtunnel.studies.fleet.fields import known_keys
from windtunnel.studies.fleet.jobs.objects import count_at, is_whole_gpu, items_at, mapping_at, text_at
from windtunnel.studies.fleet.parts.profile import SHARES_MOST
from windtunnel.units import parse_bandwidth

if TYPE_CHECKING:
    from windtunnel.studies.fleet.policies.slurm.cluster import Cluster

USUAL_NODE = 8  # GPUs of a node of which nothing else is known: HGX and DGX boards
NODES_OF = {"t4": 4, "a10": 4, "k80": 8, "p100": 8, "v100": 8, "gpu": USUAL_NODE}  # g4dn/g5.12xlarge, p2, DGX-1; any
MOST_GPUS = 2**22
NODES = "write them with `kubectl get nodes -o json`"
CLOUDS = ("pools", "starburst", "price_per_gpu_hour", "privacy", "egress_per_gb", "bandwidth")  # of `hybrid/clouds.py`


@dataclass(frozen=True)
class Site:
    """Equal nodes, or nodes of several kinds that have as many GPUs each; of slurm.conf unlike ones too."""

    gpu: str
    nodes: int
    per_node: int  # the most that a node has
    text: str
    file: Path | None = None  # where the site came from
    kinds: tuple[tuple[str, int], ...] = ()  # (GPU, nodes), where there are several
    topology: tuple[tuple[str, int], ...] = ()  # levels above nodes, from the top down, and nodes of a domain of each
    unit: int = 1  # in which GPUs are counted, of a GPU: `per_node` is in it too (`parts/part.py`)
    shares: int = 0  # into which a GPU is cut for jobs that ask for shares by number; 0: not told
    link: float = 0.0  # bytes per second of a domain of the lowest level, or of a node; 0: not told
    devices: tuple[str, ...] = ()  # what CUDA calls each GPU, through all nodes; none: their numbers
    slurm: tuple[Path, ...] = ()  # Slurm's own files of it
    sizes: tuple[int, ...] = ()  # of each node, as `per_node`, where they are unlike
    labels: tuple[Mapping[str, str], ...] = ()  # of each node of Kubernetes
    changed: Cluster | None = field(default=None, compare=False)  # what these say, with something else in its place

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(self.sizes) or self.nodes * self.per_node

    @property
    def node_sizes(self) -> tuple[int, ...]:
        """GPUs of each node."""
        return self.sizes or (self.per_node,) * self.nodes

    @cached_property
    def slurm_cluster(self) -> Cluster:
        """What its files of Slurm say, with what is changed of it; one partition and no limits where it has none."""
        from windtunnel.studies.fleet.policies.slurm.cluster import Cluster
        from windtunnel.studies.fleet.policies.slurm.files import read_cluster

        if self.changed is not None:
            return self.changed
        cluster = read_cluster(self.slurm, self.gpu) if self.slurm else Cluster(gpu=self.gpu)
        return replace(cluster, shares=self.shares)

    @property
    def node_kinds(self) -> tuple[str, ...]:
        """The GPU of each node."""
        return tuple(gpu for gpu, nodes in self.kinds or ((self.gpu, self.nodes),) for _ in range(nodes))


def parse_site(text: str, per_node: int | None = None) -> Site:
    """A site from what the user says. Raises SpecError."""
    if text.lower().endswith((".yaml", ".yml")):
        return _from_yaml(Path(text))
    if text.lower().endswith(".json"):
        return _of_nodes(Path(text), text)
    if text.lower().endswith(".conf"):
        return _of_slurm((Path(text),), text)
    if "+" in text:
        return _of_kinds(text, per_node)
    if per_node is not None and per_node < 1:
        raise SpecError("--gpus-per-node", per_node, "give 1 or more")
    if text.lower().endswith(".csv"):
        raise SpecError("--cluster", text, "unlike nodes are for `fleet pack`: write GPU:COUNT, or leave it out")
    from windtunnel.physics.hardware.catalogue import COUNT_FIRST, parse_cluster

    counted = text.strip()
    if first := COUNT_FIRST.fullmatch(counted):
        counted = f"{first[2]}:{parse_cluster(counted).n_gpus}"
    match = re.fullmatch(r"([^:]+):(\d+)(?:x(\d+))?", counted)
    if not match:
        raise SpecError("--cluster", text, "write GPU:COUNT such as t4:64, GPU:NODESxGPUS such as t4:16x4, or a file")
    gpu, count, by = match.group(1).lower(), int(match.group(2)), match.group(3)
    if by is not None:
        return checked(Site(gpu, count, int(by), text))
    size = per_node or _usual(gpu, text)
    if count < size:
        size = max(count, 1)
    if count % size:
        raise SpecError("--cluster", text, f"{count} GPUs are no whole nodes of {size}; write {gpu}:NODESxGPUS")
    return checked(Site(gpu, count // size, size, text))


def _of_kinds(text: str, per_node: int | None) -> Site:
    parts = [parse_site(part, per_node) for part in text.split("+")]
    if len({part.per_node for part in parts}) > 1:
        raise SpecError("--cluster", text, "give nodes of one size: write each part as GPU:NODESxGPUS")
    if len({part.gpu for part in parts}) < len(parts):
        raise SpecError("--cluster", text, "name each kind of GPU once")
    kinds = tuple((part.gpu, part.nodes) for part in parts)
    nodes = sum(part.nodes for part in parts)
    return checked(Site("+".join(gpu for gpu, _ in kinds), nodes, parts[0].per_node, text, kinds=kinds))


def checked(site: Site) -> Site:
    """The site. Raises SpecError for one without GPUs, or with too many."""
    if not 0 < site.gpus <= MOST_GPUS:
        raise SpecError("--cluster", site.text, f"give from 1 to {MOST_GPUS:,} GPUs")
    return site


def _usual(gpu: str, text: str) -> int:
    """GPUs of a node. A fleet needs no speed of its GPUs, as jobs bring their own: of others this must be said."""
    from windtunnel.physics.hardware.catalogue import parse_cluster

    if gpu in NODES_OF:
        return NODES_OF[gpu]
    try:
        return parse_cluster(f"{gpu}:8").gpus_per_node
    except (UnknownNameError, SpecError):
        remedy = f"no known GPU: say how many of them a node has, {gpu}:NODESxGPUS or gpus_per_node"
        raise SpecError("--cluster", text, remedy) from None


def _of_slurm(files: tuple[Path, ...], text: str, gpu: str = "gpu") -> Site:
    """The nodes of a slurm.conf, which comes first or not, and what else Slurm says of them."""
    from windtunnel.studies.fleet.policies.slurm.files import read_cluster

    cluster = read_cluster(files, gpu)
    if not cluster.nodes:
        raise SpecError("slurm", text, "give the path of slurm.conf too")
    return checked(
        Site(gpu, cluster.nodes, cluster.per_node, text, slurm=files, shares=cluster.shares, sizes=cluster.sizes)
    )


def _of_nodes(path: Path, text: str) -> Site:
    """The nodes of Kubernetes that have GPUs and take pods, in the order of their file. Raises InputFileError."""
    sizes, labels = [], []
    for node in items_at(read_document(path, NODES), "items"):
        allocatable = mapping_at(node, "status", "allocatable") or mapping_at(node, "status", "capacity")
        gpus = sum(count_at(allocatable, name, default=0) for name in map(str, allocatable) if is_whole_gpu(name))
        if text_at(node, "kind") == "Node" and gpus and mapping_at(node, "spec").get("unschedulable") is not True:
            sizes.append(gpus)
            labels.append({str(key): str(value) for key, value in mapping_at(node, "metadata", "labels").items()})
    if not sizes:
        raise InputFileError(path, "has no node with GPUs", NODES)
    unlike = tuple(sizes) if len(set(sizes)) > 1 else ()
    return checked(Site("gpu", len(sizes), max(sizes), text, sizes=unlike, labels=tuple(labels)))


def _from_yaml(path: Path) -> Site:
    data = read_mapping(path, "give gpu, gpus and gpus_per_node")
    keys = {"gpu", "gpus", "gpus_per_node", "shares_per_gpu", "link", "topology", "slurm", "devices", *CLOUDS}
    shares = data.get("shares_per_gpu", 0)
    if isinstance(shares, bool) or not isinstance(shares, int) or not 0 <= shares <= SHARES_MOST:
        raise SpecError("shares_per_gpu", shares, f"give a whole number from 1 to {SHARES_MOST:,}", str(path))
    if "slurm" in data:
        wrong = next((key for key in ("gpus", "gpus_per_node") if key in data), None)
        if wrong is not None:
            raise SpecError(wrong, data[wrong], "leave it out: slurm.conf says which nodes there are", str(path))
        known_keys(data, {"slurm", "gpu", "shares_per_gpu"}, str(path))
        names = data["slurm"] if isinstance(data["slurm"], list) else [data["slurm"]]
        site = _of_slurm(tuple(path.parent / str(name) for name in names), str(path), str(data.get("gpu", "gpu")))
        return replace(site, file=path, shares=shares or site.shares)
    gpu = str(data.get("gpu", "gpu"))
    if "nodes" in data:
        known_keys(data, {"nodes", "gpu", "topology", "link", "shares_per_gpu"}, str(path))
        site = replace(_of_nodes(path.parent / str(data["nodes"]), str(path)), gpu=gpu)
    elif not isinstance(data.get("gpus"), int):
        raise InputFileError(path, "does not say how many GPUs", "give gpus: 64")
    else:
        known_keys(data, keys, str(path))
        site = parse_site(f"{gpu}:{data['gpus']}", data.get("gpus_per_node"))
    link = parse_bandwidth(data["link"], "link", str(path)) if "link" in data else 0.0
    if "link" in data and not link > 0:
        raise SpecError("link", data["link"], "give more than 0, such as 400Gb/s", str(path))
    devices = data.get("devices", [])
    if not isinstance(devices, list) or (devices and len({str(name) for name in devices}) != site.gpus):
        raise SpecError("devices", devices, f"give a list of {site.gpus} names, one for each GPU", str(path))
    levels = _levels(data.get("topology", {}), path)
    return replace(site, file=path, topology=levels, shares=shares, link=link, devices=tuple(map(str, devices)))


def _levels(entry: object, path: Path) -> tuple[tuple[str, int], ...]:
    """Levels as a file says them, e.g. `{block: 64, rack: 16}`. Raises InputFileError."""
    levels = tuple((str(name), nodes) for name, nodes in entry.items()) if isinstance(entry, Mapping) else ()
    sizes = [nodes for _, nodes in levels]
    whole = all(isinstance(nodes, int) and not isinstance(nodes, bool) and nodes > 0 for nodes in sizes)
    if (entry and not levels) or not whole or any(above % below for above, below in pairwise(sizes)):
        remedy = "give the nodes of a domain of each level, from the top down, each a multiple of the next"
        raise InputFileError(path, f"has a topology that is no tree: {entry}", f"{remedy}: {{block: 64, rack: 16}}")
    return levels
