"""The catalogue of GPUs and node types, and `parse_cluster`, the one way from what a user says to a `Cluster`.

    h100-sxm:8192            a GPU in its usual node type, and how many
    8xh100                   the same, as people write it; "NVIDIA H100 80GB HBM3:8" as nvidia-smi names it
    aws-p5:64                a node type, and how many GPUs; p5.48xlarge:64, as a cloud calls it
    4 x p5.48xlarge          so many of a cloud's instances
    nvidia-smi.txt           what `nvidia-smi`, `nvidia-smi -L` or its CSV printed: those GPUs, in their usual node type
    my-cluster.yaml          a file (see docs); its `gpu` and `base` are names from the catalogue or numbers of your own
    my-cluster.yaml:64       the same, with another number of GPUs

One YAML file per GPU under `catalogue/gpus`, one per node type under `catalogue/clusters`: to add one is to add a file.
Names do not depend on case, and `_` or a blank reads as `-`.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from windtunnel.errors import InputFileError, SpecError, UnknownNameError
from windtunnel.files.bytes import read_text
from windtunnel.files.document import form_of, read_form
from windtunnel.physics.hardware.cluster import Cluster, cluster_with
from windtunnel.physics.hardware.gpu import Gpu
from windtunnel.questions.asked.parts import ClusterPart
from windtunnel.questions.reading import plain_part
from windtunnel.units import parse_count

_HERE = Path(__file__).parent / "catalogue"
_MIXED = "mixed GPU types are for predict and plan only, as NAME:COUNT+NAME:COUNT or `groups` in YAML: give one GPU"
SPEC_FILE = "give the path of a readable YAML file, `key: value` a line"
SPEC_BYTES_MOST = 4 << 20  # a calibrated device lists thousands of points
ADDED = ("nvidia", "amd", "instinct", "hbm2", "hbm2e", "hbm3", "hbm3e", "geforce", "tesla", "standard")
COUNT_FIRST = re.compile(r"(\d{1,8})(?: ?[x×*] ?| +)([A-Za-z][\w .-]*)")  # `8xh100`, `4 x p5.48xlarge`
LISTED = "give a cluster file in YAML, what nvidia-smi printed, or name:count"
LISTED_BYTES_MOST = 1 << 20
LINE = re.compile(r"^GPU \d+: (.+?) \(UUID", re.MULTILINE)
ROW = re.compile(r"^\|\s+\d+\s+((?:NVIDIA|Tesla|Quadro)\b.*?)\s+(?:On|Off|N/A)\s*\|", re.MULTILINE)
_LARGEST_CLUSTER = 2**24  # GPUs; far above what exists, and a typing error beyond


def gpu_names() -> tuple[str, ...]:
    """The GPUs of the catalogue, by canonical name."""
    return _stems("gpus")


def cluster_names() -> tuple[str, ...]:
    """The node types of the catalogue, by canonical name."""
    return _stems("clusters")


def get_gpu(name: str) -> Gpu:
    """A GPU of the catalogue, by name or alias.

    Raises:
        UnknownNameError: the catalogue has none of that name.
    """
    canonical = _canonical("gpus", name)
    if canonical is None:
        remedy = "To describe one of your own, give its numbers under `gpu:` in a cluster file."
        raise UnknownNameError("GPU", name, gpu_names(), remedy)
    return _load_gpu(canonical)


def parse_cluster(spec: str | Path | Mapping[str, object]) -> Cluster:
    """The cluster that `spec` names or describes: `name:count`, a YAML file, `file:count`, or the mapping itself.

    Raises:
        UserError: SpecError (a key or value), UnknownNameError (a GPU or node type) or InputFileError (the file).
    """
    if isinstance(spec, Mapping):
        return _from_mapping(spec, None, None)
    if isinstance(spec, os.PathLike):
        return _from_file(spec, None)
    if not isinstance(spec, str) or not spec.strip():
        raise SpecError("cluster", spec, "give name:count, such as h100-sxm:64, or the path of a YAML file")
    text = spec.strip()
    before = COUNT_FIRST.fullmatch(text)
    if before:
        text = f"{before[2]}:{before[1]}"
    elif os.path.isfile(text) and not text.lower().endswith((".yaml", ".yml", ".json")):
        text = listed_gpus(text) or text
    head, colon, tail = text.rpartition(":")
    if colon and _is_yaml(head):
        return _from_file(head, _count(tail, spec))
    if _is_yaml(text) or os.sep in text:
        return _from_file(text, None)
    if colon and any(mark in head for mark in ":,+"):
        raise SpecError("cluster", spec, _MIXED)
    name = head if colon else text
    kind = "clusters" if _canonical("clusters", name) else "gpus"
    canonical = _canonical(kind, name)
    if canonical is None:
        names = (*gpu_names(), *cluster_names())
        raise UnknownNameError("GPU or cluster", name, names, "For one of your own, give a YAML file.")
    if not colon:
        raise SpecError("cluster", spec, f"say how many GPUs, such as {canonical}:64")
    cluster, count = _load_cluster(canonical) if kind == "clusters" else _usual_cluster(canonical), _count(tail, spec)
    if _normal(name).removeprefix("standard-") in _instances():
        each = cluster.gpus_per_node
        if before:  # `2 x p5.48xlarge` are instances
            count *= each
        elif count % each:
            remedy = f"after the colon GPUs are counted, and an instance has {each}: give {name}:{each * count}"
            raise SpecError("cluster", spec, remedy)
    return _sized(cluster, count, spec)


def with_settings(cluster: Cluster, settings: Mapping[str, object]) -> Cluster:
    """`cluster` with single numbers set anew; what follows from them (kernel rates, usable memory) follows.

    Args:
        cluster: What to start from.
        settings: As a cluster document: `{"gpu": {"memory": "96 GiB"}, "nic": "800 Gb/s"}`; "gpu" may be a name.

    Raises:
        SpecError: as `parse_cluster`.
    """
    from windtunnel.physics.hardware.spec import Place, cluster_from, given_of, gpu_from

    spec, _ = given_of(Cluster, settings, Place())
    if "base" in spec:
        raise SpecError("base", spec["base"], "a cluster that stands already keeps its base; name another cluster")
    inner = settings.get("gpu")
    if isinstance(inner, Mapping) and "base" in inner:
        base = inner["base"]
        raise SpecError("gpu.base", base, f"a GPU is changed as a whole by its name: cluster.gpu={base}")
    gpu, gpu_entry = None, spec.get("gpu")
    if isinstance(gpu_entry, str):
        gpu = get_gpu(gpu_entry)
    elif gpu_entry is not None:
        gpu = gpu_from(gpu_entry, cluster.gpu, Place().inside("gpu"))
    if gpu is not None and cluster.calibration is not None and "calibration" not in spec:
        cluster = _still_calibrated(cluster, gpu)
    changed = cluster_from(settings, gpu, cluster, None if "n_gpus" in spec else cluster.n_gpus, Place())
    if changed.n_gpus > _LARGEST_CLUSTER:
        raise SpecError("cluster.gpus", changed.n_gpus, f"more than {_LARGEST_CLUSTER} GPUs is not meant")
    return changed


def _still_calibrated(cluster: Cluster, gpu: Gpu) -> Cluster:
    """A calibrated cluster that is to get `gpu`: without its calibration if that is another device.

    Raises:
        SpecError: the same device at other rates; its measured times cannot follow them.
    """
    if gpu.name.removesuffix("-custom") != cluster.gpu.name.removesuffix("-custom"):
        return cluster_with(cluster, calibration=None)
    for name in ("flops_per_s", "memory_bandwidth_bytes_per_s", "kernel_scale"):
        if getattr(gpu, name) != getattr(cluster.gpu, name):
            remedy = "this device was calibrated, and measured times do not follow other rates; set memory only, or use"
            raise SpecError(f"gpu.{name}", getattr(gpu, name), f"{remedy} a cluster without `calibration`")
    return cluster


def _from_file(path: str | os.PathLike[str], n_gpus: int | None) -> Cluster:
    entry = read_form(path, SPEC_FILE, SPEC_BYTES_MOST)
    return _from_mapping({"name": Path(path).stem, **entry}, n_gpus, str(path))


def _from_mapping(entry: Mapping[str, object], n_gpus: int | None, document: str | None) -> Cluster:
    from windtunnel.physics.hardware.spec import Place, cluster_from, given_of, gpu_from

    place = Place("", document)
    spec, written = given_of(Cluster, entry, place)
    if spec.get("n_gpus", 0) > _LARGEST_CLUSTER:
        raise place.error(written["n_gpus"], spec["n_gpus"], f"more than {_LARGEST_CLUSTER} GPUs is not meant")
    gpu, usual, gpu_entry = None, None, spec.get("gpu")
    if isinstance(gpu_entry, str):
        gpu = get_gpu(gpu_entry)
        usual = _usual_cluster(gpu.name)
    elif isinstance(gpu_entry, Mapping):
        at = place.inside("gpu")
        parent_name = given_of(Gpu, gpu_entry, at)[0].get("base")
        parent = get_gpu(parent_name) if parent_name is not None else None
        gpu = gpu_from(gpu_entry, parent, at)
        usual = _usual_cluster(parent.name) if parent else None
    elif isinstance(gpu_entry, (list, tuple)):
        raise place.error("gpu", gpu_entry, _MIXED)
    elif gpu_entry is not None:
        raise place.error("gpu", gpu_entry, "give the name of a GPU, or `key: value` lines that describe one")
    base = usual
    if "base" in spec:
        canonical = _canonical("clusters", spec["base"])
        if canonical is None:
            raise UnknownNameError(
                "cluster", spec["base"], cluster_names(), "`base` names a node type of the catalogue."
            )
        base = _load_cluster(canonical)
    if gpu is None and base is None:
        raise place.error("gpu", None, "give the name of a GPU, such as h100-sxm, or a `base` cluster")
    return cluster_from(entry, gpu, base, n_gpus, place)


def _usual_cluster(gpu_name: str) -> Cluster:
    """One node of the usual type of a catalogue GPU, with that GPU in it."""
    usual = _raw("gpus", gpu_name).get("cluster")
    return cluster_with(_load_cluster(str(usual)), gpu=_load_gpu(gpu_name))


def _sized(cluster: Cluster, n_gpus: int, spec: str) -> Cluster:
    try:
        return cluster_with(cluster, n_gpus=n_gpus)
    except SpecError as error:
        raise SpecError("cluster", spec, error.remedy) from error


def _count(tail: str, spec: str) -> int:
    try:
        count = parse_count(tail, "cluster")
    except SpecError as error:
        raise SpecError("cluster", spec, "after the colon comes the number of GPUs, such as h100-sxm:64") from error
    if count > _LARGEST_CLUSTER:
        raise SpecError("cluster", spec, f"more than {_LARGEST_CLUSTER} GPUs is not meant")
    return count


def _is_yaml(text: str) -> bool:
    return text.lower().endswith((".yaml", ".yml", ".json")) or os.path.isfile(text)


def _normal(name: str) -> str:
    return "-".join(name.strip().lower().replace("_", " ").split())


@cache
def _stems(kind: str) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (_HERE / kind).glob("*.yaml")))


@cache
def _aliases(kind: str) -> dict[str, str]:
    """Alias -> canonical name, over all files of a kind. Reads them all, so only where a name is no file's own."""
    listed = ((stem, key) for stem in _stems(kind) for key in ("aliases", "instances"))
    return {_normal(alias): stem for stem, key in listed for alias in _raw(kind, stem).get(key, ())}


@cache
def _instances() -> frozenset[str]:
    """What clouds call the node types that they rent as a whole."""
    return frozenset(
        _normal(name) for stem in _stems("clusters") for name in _raw("clusters", stem).get("instances", ())
    )


def _canonical(kind: str, name: str) -> str | None:
    normal = _normal(name)
    if normal in _stems(kind):
        return normal
    bare = "-".join(word for word in normal.split("-") if word not in ADDED)  # without its maker and kind of memory
    alias = _aliases(kind).get(normal) or (bare if bare in _stems(kind) else _aliases(kind).get(bare))
    return alias or _by_words(kind).get(_words(normal)) or _by_letters(kind).get(normal.replace("-", ""))


def _words(name: str) -> frozenset[str]:
    """A name as its words in any order: `H100 SXM5 80G` is `h100-80gb-sxm`."""
    words = (word for word in name.split("-") if word not in ADDED)
    return frozenset(re.sub(r"^(\d+)g$", r"\1gb", re.sub(r"^sxm\d$", "sxm", word)) for word in words)


@cache
def _by_words(kind: str) -> dict[frozenset[str], str]:
    names = {**_aliases(kind), **{stem: stem for stem in _stems(kind)}}
    return {_words(name): stem for name, stem in names.items()}


@cache
def _by_letters(kind: str) -> dict[str, str]:
    """Canonical names by their letters and digits alone: `rtx4090`."""
    return {stem.replace("-", ""): stem for stem in _stems(kind)}


@cache
def _raw(kind: str, stem: str) -> dict[str, Any]:
    path = _HERE / kind / f"{stem}.yaml"
    return form_of(path.read_text(encoding="utf-8"), str(path), own=True)


@cache
def _load_gpu(stem: str) -> Gpu:
    from windtunnel.physics.hardware.spec import Place, gpu_from

    return gpu_from({"name": stem, **_raw("gpus", stem)}, None, Place("", f"catalogue/gpus/{stem}.yaml"))


@cache
def _load_cluster(stem: str) -> Cluster:
    """One node of a catalogue node type."""
    from windtunnel.physics.hardware.spec import Place, cluster_from

    raw = _raw("clusters", stem)
    base = _load_cluster(str(raw["base"])) if "base" in raw else None
    gpu = _load_gpu(str(raw["gpu"])) if "gpu" in raw else None
    n_gpus = parse_count(raw.get("gpus_per_node") or (base.gpus_per_node if base else 1))
    return cluster_from({"name": stem, **raw}, gpu, base, n_gpus, Place("", f"catalogue/clusters/{stem}.yaml"))


def cluster_of(part: ClusterPart) -> Cluster:
    """The cluster that a question names, with what it changes of it. Raises UserError."""
    data = plain_part(part)
    base = data.pop("base", None)
    if base is None:
        return parse_cluster(data)
    cluster = parse_cluster(base)
    return with_settings(cluster, data) if data else cluster


def listed_gpus(path: str) -> str:
    """`NAME:COUNT` of the GPUs that a file lists; "" for a file that is not nvidia-smi's. Raises InputFileError."""
    text = read_text(path, LISTED, LISTED_BYTES_MOST)
    names = LINE.findall(text) or ROW.findall(text) or _column(text)
    if not names:
        return ""
    counts = Counter(name.strip() for name in names)
    if len(counts) > 1:
        listing = " and ".join(f"{count} x {name}" for name, count in counts.items())
        raise InputFileError(path, f"lists {listing}", "mixed GPUs are said as NAME:COUNT+NAME:COUNT")
    ((name, count),) = counts.items()
    return f"{name}:{count}"


def _column(text: str) -> list[str]:
    """Of `--query-gpu=name,... --format=csv`; a device that is listed each second counts once."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]  # it quotes nothing
    if not rows or "name" not in rows[0]:
        return []
    at = rows[0].index("name")
    ids = next(
        (
            rows[0].index(column)
            for column in ("pci.bus_id", "gpu_bus_id", "uuid", "gpu_uuid", "index")
            if column in rows[0]
        ),
        None,
    )
    whole = [row for row in rows[1:] if len(row) == len(rows[0])]
    seen = {row[ids]: row[at] for row in whole} if ids is not None else dict(enumerate(row[at] for row in whole))
    return list(seen.values())
