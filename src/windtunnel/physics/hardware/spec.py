"""From what a user wrote to `Gpu`, `Link`, `Host` and `Cluster`: the schema, with every unknown key an error.

A spec is a mapping (from YAML, JSON or Python). Each may stand on a `base`, of which it then changes single numbers.
Keys are the field names of the dataclasses or their short forms (`memory` for `memory_bytes`), so that what `to_dict`
writes can be read again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar

from windtunnel.errors import SpecError
from windtunnel.physics.hardware.cluster import Cluster, Host, Link
from windtunnel.physics.hardware.gpu import Gpu, KernelScale
from windtunnel.physics.hardware.torus import shape_of
from windtunnel.units import (
    format_rate,
    parse_bandwidth,
    parse_bytes,
    parse_count,
    parse_flops,
    parse_number,
    parse_time,
)

UNSEEN_SHARE = 0.015  # of the capacity, kept by driver and ECC; 1.0 to 1.9 % on the catalogue's NVIDIA data-centre GPUs


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where in which document a mapping stands: `prefix` is "" or "gpu.", `document` is None or a file."""

    prefix: str = ""
    document: str | None = None

    def inside(self, key: str) -> Place:
        """The place of what is nested under `key`."""
        return Place(f"{self.prefix}{key}.", self.document)

    def error(self, key: str, value: object, remedy: str) -> SpecError:
        """A SpecError about `key` here."""
        return SpecError(f"{self.prefix}{key}", value, remedy, self.document)


def _text(value: object, field: str, where: str | None) -> str:
    if isinstance(value, str):
        return value
    raise SpecError(field, value, "give text", where)


def _truth(value: object, field: str, where: str | None) -> bool:
    truth = _TRUTHS.get(str(value).lower())
    if truth is None:
        raise SpecError(field, value, "give true or false", where)
    return truth


def _texts(value: object, field: str, where: str | None) -> Mapping[str, object]:
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return value
    raise SpecError(field, value, "give a mapping of `key: value` lines", where)


_TRUTHS = {
    **dict.fromkeys(("true", "yes", "on", "1", "y", "t"), True),
    **dict.fromkeys(("false", "no", "off", "0", "n", "f"), False),
}
_BY_UNIT = {"_bytes_per_s": parse_bandwidth, "_bytes": parse_bytes, "latency_s": parse_time}
_BY_TYPE = {"int": parse_count, "float": parse_number, "bool": _truth, "str": _text, "Mapping[str": _texts}
# Short form -> field, and what of a document is not of the part itself.
_SHORT: dict[type, Mapping[str, str]] = {
    Gpu: {
        "memory": "memory_bytes",
        "usable_memory": "usable_memory_bytes",
        "memory_bandwidth": "memory_bandwidth_bytes_per_s",
        "flops": "flops_per_s",
        "tdp": "tdp_w",
    },
    Link: {
        "bandwidth": "bandwidth_bytes_per_s",
        "latency": "latency_s",
        "peer_bandwidth": "peer_bandwidth_bytes_per_s",
    },
    Host: {"pcie": "pcie_bandwidth_bytes_per_s", "c2c": "c2c_bandwidth_bytes_per_s", "memory": "memory_bytes"},
    Cluster: {"gpus": "n_gpus", "nic": "scale_out", "rail_optimized": "rail_optimised"},
    KernelScale: {},
}
_BESIDE: dict[type, Mapping[str, str]] = {  # `aliases` and a GPU's usual `cluster` are for the catalogue
    Gpu: {"base": "str", "aliases": "tuple", "cluster": "str"},
    Cluster: {"base": "str", "aliases": "tuple", "instances": "tuple"},
}
_NESTED: dict[str, type] = {"scale_up": Link, "scale_out": Link, "host": Host}


@cache
def keys_of(kind: type) -> dict[str, str]:
    """What may be given of a part: each field with its type, and what goes beside the part."""
    declared = {name: getattr(hint, "__forward_arg__", hint) for name, hint in kind.__annotations__.items()}
    return {**_BESIDE.get(kind, {}), **{name: str(hint).removesuffix(" | None") for name, hint in declared.items()}}


def short_keys(kind: type) -> Mapping[str, str]:
    """Short form -> field."""
    return _SHORT[kind]


def _reader(name: str, hint: str) -> Callable[[object, str, str | None], object]:
    """How the value of a field is read: by the unit in its name, else by its type; parts are read apart."""
    unit = next((parse for suffix, parse in _BY_UNIT.items() if name.endswith(suffix)), None)
    return unit or _BY_TYPE.get(hint.partition(",")[0], lambda value, field, where: value)


_Part = TypeVar("_Part", Gpu, Link, Host, Cluster)


def given_of(kind: type, entry: object, place: Place) -> tuple[dict[str, Any], dict[str, str]]:
    """What `entry` says of a part, None left out, and for each field the key that the user wrote.

    Raises:
        SpecError: the first thing wrong with it.
    """
    if not isinstance(entry, Mapping):
        here = Place(document=place.document)
        raise here.error(place.prefix.rstrip(".") or "cluster", entry, "must be `key: value` lines, or nothing")
    keys = keys_of(kind)
    written = {name: name for name in keys}
    fields: dict[str, object] = {}
    for key, value in entry.items():
        field = _SHORT[kind].get(key, key) if isinstance(key, str) else str(key)
        if field not in keys:
            raise place.error(field, value, _unknown_key(field, kind))
        if field in fields:
            raise place.error(str(key), value, f"is the same as {written[field]}; give one of them")
        written[field] = str(key)
        fields[field] = (
            None if value is None else _reader(field, keys[field])(value, place.prefix + str(key), place.document)
        )
    return {name: value for name, value in fields.items() if value is not None}, written


def gpu_from(entry: object, base: Gpu | None, place: Place) -> Gpu:
    """The GPU that `entry` describes, on top of `base`.

    Raises:
        SpecError: a key or value that cannot be used, or one that is missing where there is no base.
    """
    spec, written = given_of(Gpu, entry, place)
    changes = _without(spec, "base", "aliases", "cluster", "sources")
    if "flops_per_s" in spec:
        at = place.inside(written["flops_per_s"])
        rates = {
            dtype: parse_flops(rate, at.prefix + dtype, at.document) for dtype, rate in spec["flops_per_s"].items()
        }
        changes["flops_per_s"] = {**(base.flops_per_s if base else {}), **rates}
    if "kernel_scale" in changes:
        changes["kernel_scale"] = KernelScale(
            **given_of(KernelScale, spec["kernel_scale"], place.inside("kernel_scale"))[0]
        )
    elif base is not None:
        changes["kernel_scale"] = _rescaled(base, changes)
    if "memory_bytes" in changes and "usable_memory_bytes" not in changes:
        share = base.usable_memory_bytes / base.memory_bytes if base else 1.0 - UNSEEN_SHARE
        changes["usable_memory_bytes"] = int(changes["memory_bytes"] * share)
    if base is None:
        changes.setdefault("name", "custom")
        changes.setdefault("vendor", "unknown")
        changes.setdefault("generation", "other")
    elif set(changes) - {"name", "kernel_scale"}:
        changes.setdefault("name", f"{base.name}-custom")
    changes["sources"] = _sources(base, spec.get("sources"), list(changes), _SHORT[Gpu], place)
    return _build(Gpu, base, changes, place, written)


def link_from(entry: object, base: Link | None, place: Place) -> Link:
    """The link that `entry` describes: a mapping, or just a bandwidth.

    Raises:
        SpecError: as `gpu_from`.
    """
    if isinstance(entry, Mapping):
        changes, written = given_of(Link, entry, place)
    else:
        written = {}
        changes = {"bandwidth_bytes_per_s": parse_bandwidth(entry, place.prefix.rstrip("."), place.document)}
    bandwidth = changes.get("bandwidth_bytes_per_s")
    if bandwidth is not None and (base is None or bandwidth != base.bandwidth_bytes_per_s or "protocol" in changes):
        protocol = changes.get("protocol") or (base.protocol if base else "infiniband")
        changes.setdefault("name", f"{protocol} {format_rate(bandwidth)}")
        if base is not None and base.peer_bandwidth_bytes_per_s is not None:
            share = base.peer_bandwidth_bytes_per_s / base.bandwidth_bytes_per_s
            changes.setdefault("peer_bandwidth_bytes_per_s", bandwidth * share)
    return _build(Link, base, changes, place, written)


def host_from(entry: object, base: Host | None, place: Place) -> Host:
    """The host that `entry` describes, on top of `base`.

    Raises:
        SpecError: as `gpu_from`.
    """
    changes, written = given_of(Host, entry, place)
    return _build(Host, base, changes, place, written)


def cluster_from(entry: object, gpu: Gpu | None, base: Cluster | None, n_gpus: int | None, place: Place) -> Cluster:
    """The cluster that `entry` describes, of `gpu` (else the base's), on top of `base`.

    `n_gpus`, when not None, replaces the number in `entry`.

    Raises:
        SpecError: as `gpu_from`.
    """
    spec, written = given_of(Cluster, entry, place)
    changes = _without(spec, "base", "aliases", "instances", "sources", "gpu", "calibration", *_NESTED)
    if gpu is not None:
        changes["gpu"] = gpu
    if "calibration" in spec:
        changes["calibration"] = _calibration_from(spec["calibration"], place)
    for tier in ("scale_up", "scale_out"):
        if tier in spec:
            under = getattr(base, tier) if base else None
            changes[tier] = link_from(spec[tier], under, place.inside(written[tier]))
    if "host" in spec:
        changes["host"] = host_from(spec["host"], base.host if base else None, place.inside("host"))
    if n_gpus is not None:
        changes["n_gpus"], written["n_gpus"] = n_gpus, "gpus"
    if "n_gpus" not in changes:
        raise place.error("gpus", None, "say how many GPUs, such as `gpus: 64`")
    if base is not None and "gpus_per_node" in changes and base.scale_up_domain == base.gpus_per_node:
        changes.setdefault("scale_up_domain", changes["gpus_per_node"])
    changed = [name for name in changes if name not in ("gpu", "n_gpus", "calibration", *_NESTED)]
    changed += [name for field in _NESTED for name in _changed_inside(field, spec.get(field))]
    changes["sources"] = _sources(base, spec.get("sources"), changed, _SHORT[Cluster], place)
    if base is None:
        changes.setdefault("name", "custom")
    cluster = _build(Cluster, base, changes, place, written)
    if isinstance(spec.get("scale_up"), Mapping) and spec["scale_up"].get("slice"):
        _check_slice(cluster, place.inside("scale_up"))
    return cluster


def _check_slice(cluster: Cluster, place: Place) -> None:
    """Raise SpecError unless the slice that was asked for holds the job, or each of its parts of a pod."""
    shape, chips = cluster.scale_up.slice, min(cluster.n_gpus, cluster.used_per_domain)
    size = math.prod(shape_of(str(shape), "slice"))
    if size != chips:
        raise place.error("slice", shape, f"has {size} chips, the cluster {chips} in each of its slices")


def _calibration_from(entry: object, place: Place) -> object:
    from windtunnel.physics.hardware.calibration import (  # numpy: only where there is one
        Calibration,
        calibration_from_document,
    )

    return entry if isinstance(entry, Calibration) else calibration_from_document(entry, place.document)


def _without(fields: Mapping[str, object], *names: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}


def _rescaled(base: Gpu, changes: Mapping[str, Any]) -> KernelScale:
    """The base's kernel scale, times what changed in the data sheet: slower memory slows measured kernels as much."""
    memory = changes.get("memory_bandwidth_bytes_per_s", base.memory_bandwidth_bytes_per_s)
    compute = changes.get("flops_per_s", base.flops_per_s)["bf16"] / base.flops_per_s["bf16"]
    scale = base.kernel_scale
    return KernelScale(scale.compute * compute, scale.memory * memory / base.memory_bandwidth_bytes_per_s, scale.clock)


def _sources(
    base: Gpu | Cluster | None,
    entry: Mapping[str, str] | None,
    changed: list[str],
    short: Mapping[str, str],
    place: Place,
) -> dict[str, str]:
    """Field -> where its number comes from. No number keeps the source of the one that it replaces."""
    sources = dict(base.sources) if base else {}
    stale = [name for name in changed if entry is None or name in sources]
    sources |= {name: f"given in {place.document or 'the spec'}" for name in stale if name != "name"}
    for key, text in (entry or {}).items():
        head, dot, rest = key.partition(".")
        head = short.get(head, head)
        inner = _SHORT[_NESTED[head]] if head in _NESTED else {}
        sources[head + dot + inner.get(rest, rest)] = text
    return sources


def _changed_inside(field: str, entry: object) -> list[str]:
    """The dotted names of what `entry` sets under `field`; a link may be given as its bandwidth alone."""
    keys = list(entry) if isinstance(entry, Mapping) else ["bandwidth"] if entry is not None else []
    return [f"{field}.{_SHORT[_NESTED[field]].get(key, key)}" for key in keys]


def _build(
    kind: type[_Part], base: _Part | None, changes: dict[str, Any], place: Place, written: Mapping[str, str]
) -> _Part:
    """`base` with `changes`, or a new `kind`; errors name the place and the key as written."""
    if base is None:
        for item in dataclasses.fields(kind):
            needed = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
            if needed and item.name not in changes:
                short = {field: key for key, field in _SHORT[kind].items()}.get(item.name, item.name)
                raise place.error(short, None, "give it, or a `base` to start from")
    try:
        return dataclasses.replace(base, **changes) if base is not None else kind(**changes)
    except SpecError as error:
        head, dot, rest = error.field.partition(".")
        raise place.error(written.get(head, head) + dot + rest, error.value, error.remedy) from error


def _unknown_key(key: str, kind: type) -> str:
    to_short = {field: short for short, field in _SHORT[kind].items()}
    fields = keys_of(kind)
    names = [to_short.get(name, name) for name in fields]
    near = get_close_matches(key.lower(), [*names, *fields], n=1, cutoff=0.6)
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; known: {', '.join(names)}"
