"""From what a user wrote to `Gpu`, `Link`, `Host` and `Cluster`: the schema, with every unknown key an error.

A spec is a mapping (from YAML, JSON or Python). Each may stand on a `base`, of which it then changes single numbers.
Keys are the field names of the dataclasses or their short forms (`memory` for `memory_bytes`), so that what `to_dict`
writes can be read again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo

from windtunnel.errors import SpecError, remedy_of
from windtunnel.physics.hardware.cluster import Cluster, Host, Link
from windtunnel.physics.hardware.gpu import Gpu, KernelScale
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


def _unit(parse: Callable[[object, str, str | None], Any]) -> BeforeValidator:
    def validate(value: object, info: ValidationInfo) -> Any:
        assert info.context is not None
        assert info.field_name is not None
        place, written = info.context["place"], info.context["written"]
        return None if value is None else parse(value, place.prefix + written[info.field_name], place.document)

    return BeforeValidator(validate)


_Bytes = Annotated[int | None, _unit(parse_bytes)]
_Bandwidth = Annotated[float | None, _unit(parse_bandwidth)]
_Time = Annotated[float | None, _unit(parse_time)]
_Number = Annotated[float | None, _unit(parse_number)]
_Count = Annotated[int | None, _unit(parse_count)]


class _Schema(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    short: ClassVar[Mapping[str, str]] = {}  # short form -> field


class GpuSchema(_Schema):
    """Keys of a GPU; `aliases` and `cluster` (the node type it usually stands in) are for the catalogue."""

    short = {
        "memory": "memory_bytes",
        "usable_memory": "usable_memory_bytes",
        "memory_bandwidth": "memory_bandwidth_bytes_per_s",
        "flops": "flops_per_s",
        "tdp": "tdp_w",
    }
    name: str | None = None
    base: str | None = None
    aliases: tuple[str, ...] = ()
    cluster: str | None = None
    vendor: str | None = None
    generation: str | None = None
    memory_bytes: _Bytes = None
    usable_memory_bytes: _Bytes = None
    memory_bandwidth_bytes_per_s: _Bandwidth = None
    flops_per_s: Mapping[str, Any] | None = None
    sm_count: _Count = None
    tdp_w: _Number = None
    kernel_tables: str | None = None
    kernel_scale: Mapping[str, Any] | None = None
    sources: Mapping[str, str] | None = None


class KernelScaleSchema(_Schema):
    """Keys under `kernel_scale`."""

    compute: _Number = None
    memory: _Number = None
    clock: _Number = None


class LinkSchema(_Schema):
    """Keys of a link; a plain bandwidth may stand in its place."""

    short = {
        "bandwidth": "bandwidth_bytes_per_s",
        "latency": "latency_s",
        "peer_bandwidth": "peer_bandwidth_bytes_per_s",
    }
    name: str | None = None
    bandwidth_bytes_per_s: _Bandwidth = None
    latency_s: _Time = None
    protocol: str | None = None
    peer_bandwidth_bytes_per_s: _Bandwidth = None


class HostSchema(_Schema):
    """Keys of a host."""

    short = {
        "pcie": "pcie_bandwidth_bytes_per_s",
        "c2c": "c2c_bandwidth_bytes_per_s",
        "memory": "memory_bytes",
    }
    pcie_bandwidth_bytes_per_s: _Bandwidth = None
    memory_bytes: _Bytes = None
    c2c_bandwidth_bytes_per_s: _Bandwidth = None
    cpu_speed: _Number = None


class ClusterSchema(_Schema):
    """Keys of a cluster; `aliases` is for the catalogue."""

    short = {"gpus": "n_gpus", "nic": "scale_out", "rail_optimized": "rail_optimised"}
    name: str | None = None
    base: str | None = None
    aliases: tuple[str, ...] = ()
    gpu: Any = None
    n_gpus: _Count = None
    gpus_per_node: _Count = None
    scale_up_domain: _Count = None
    scale_up: Any = None
    scale_out: Any = None
    host: Any = None
    oversubscription: _Number = None
    rail_optimised: bool | None = None
    gpus_per_pod: _Count = None
    nvlink_sharp: bool | None = None
    calibration: Any = None
    sources: Mapping[str, str] | None = None


_Model = TypeVar("_Model", bound=_Schema)
_Part = TypeVar("_Part", Gpu, Link, Host, Cluster)


def validated(schema: type[_Model], given: object, place: Place) -> tuple[_Model, dict[str, str]]:
    """`given` as a `schema`, and for each field the key that the user wrote.

    Raises:
        SpecError: the first thing wrong with it.
    """
    if not isinstance(given, Mapping):
        here = Place(document=place.document)
        raise here.error(place.prefix.rstrip(".") or "cluster", given, "must be `key: value` lines, or nothing")
    written = {name: name for name in schema.model_fields}
    fields: dict[str, object] = {}
    for key, value in given.items():
        field = schema.short.get(key, key) if isinstance(key, str) else str(key)
        if field not in schema.model_fields:
            raise place.error(field, value, _unknown_key(field, schema))
        if field in fields:
            raise place.error(str(key), value, f"is the same as {written[field]}; give one of them")
        fields[field], written[field] = value, str(key)
    try:
        context = {"place": place, "written": written}
        return schema.model_validate(fields, context=context), written
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = [written.get(str(part), str(part)) for part in first["loc"]]
        raise place.error(".".join(path), first["input"], remedy_of(first)) from error


def gpu_from(given: object, base: Gpu | None, place: Place) -> Gpu:
    """The GPU that `given` describes, on top of `base`.

    Raises:
        SpecError: a key or value that cannot be used, or one that is missing where there is no base.
    """
    spec, written = validated(GpuSchema, given, place)
    changes = _given(spec, leave_out=("base", "aliases", "cluster", "sources"))
    if spec.flops_per_s is not None:
        at = place.inside(written["flops_per_s"])
        rates = {dtype: parse_flops(rate, at.prefix + dtype, at.document) for dtype, rate in spec.flops_per_s.items()}
        changes["flops_per_s"] = {**(base.flops_per_s if base else {}), **rates}
    if "kernel_scale" in changes:
        scale, _ = validated(KernelScaleSchema, spec.kernel_scale, place.inside("kernel_scale"))
        changes["kernel_scale"] = KernelScale(**_given(scale))
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
    changes["sources"] = _sources(base, spec.sources, list(changes), GpuSchema.short, place)
    return _built(Gpu, base, changes, place, written)


def link_from(given: object, base: Link | None, place: Place) -> Link:
    """The link that `given` describes: a mapping, or just a bandwidth.

    Raises:
        SpecError: as `gpu_from`.
    """
    if isinstance(given, Mapping):
        spec, written = validated(LinkSchema, given, place)
        changes = _given(spec)
    else:
        written = {}
        changes = {"bandwidth_bytes_per_s": parse_bandwidth(given, place.prefix.rstrip("."), place.document)}
    bandwidth = changes.get("bandwidth_bytes_per_s")
    if bandwidth is not None and (base is None or bandwidth != base.bandwidth_bytes_per_s or "protocol" in changes):
        protocol = changes.get("protocol") or (base.protocol if base else "infiniband")
        changes.setdefault("name", f"{protocol} {format_rate(bandwidth)}")
        if base is not None and base.peer_bandwidth_bytes_per_s is not None:
            share = base.peer_bandwidth_bytes_per_s / base.bandwidth_bytes_per_s
            changes.setdefault("peer_bandwidth_bytes_per_s", bandwidth * share)
    return _built(Link, base, changes, place, written)


def host_from(given: object, base: Host | None, place: Place) -> Host:
    """The host that `given` describes, on top of `base`.

    Raises:
        SpecError: as `gpu_from`.
    """
    spec, written = validated(HostSchema, given, place)
    return _built(Host, base, _given(spec), place, written)


def cluster_from(given: object, gpu: Gpu | None, base: Cluster | None, n_gpus: int | None, place: Place) -> Cluster:
    """The cluster that `given` describes, of `gpu` (else the base's), on top of `base`.

    `n_gpus`, when not None, replaces the number in `given`.

    Raises:
        SpecError: as `gpu_from`.
    """
    spec, written = validated(ClusterSchema, given, place)
    read_apart = ("gpu", "scale_up", "scale_out", "host", "calibration")
    changes = _given(spec, leave_out=("base", "aliases", "sources", *read_apart))
    if gpu is not None:
        changes["gpu"] = gpu
    if spec.calibration is not None:
        changes["calibration"] = _calibration_from(spec.calibration, place)
    for tier in ("scale_up", "scale_out"):
        if getattr(spec, tier) is not None:
            under = getattr(base, tier) if base else None
            changes[tier] = link_from(getattr(spec, tier), under, place.inside(written[tier]))
    if spec.host is not None:
        changes["host"] = host_from(spec.host, base.host if base else None, place.inside("host"))
    if n_gpus is not None:
        changes["n_gpus"], written["n_gpus"] = n_gpus, "gpus"
    if "n_gpus" not in changes:
        raise place.error("gpus", None, "say how many GPUs, such as `gpus: 64`")
    if base is not None and "gpus_per_node" in changes and base.scale_up_domain == base.gpus_per_node:
        changes.setdefault("scale_up_domain", changes["gpus_per_node"])
    changed = [name for name in changes if name not in ("gpu", "n_gpus", "calibration", *_NESTED)]
    changed += [name for field in _NESTED for name in _changed_inside(field, getattr(spec, field))]
    changes["sources"] = _sources(base, spec.sources, changed, ClusterSchema.short, place)
    if base is None:
        changes.setdefault("name", "custom")
    return _built(Cluster, base, changes, place, written)


def _calibration_from(given: object, place: Place) -> object:
    from windtunnel.physics.hardware.calibration import (  # numpy: only where there is one
        Calibration,
        calibration_from_document,
    )

    return given if isinstance(given, Calibration) else calibration_from_document(given, place.document)


def _given(spec: _Schema, leave_out: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields that the user set, as they are: not a field left out, and not one set to nothing."""
    fields = {name: getattr(spec, name) for name in spec.model_fields_set if name not in leave_out}
    return {name: value for name, value in fields.items() if value is not None}


def _rescaled(base: Gpu, changes: Mapping[str, Any]) -> KernelScale:
    """The base's kernel scale, times what changed in the data sheet: slower memory slows measured kernels as much."""
    memory = changes.get("memory_bandwidth_bytes_per_s", base.memory_bandwidth_bytes_per_s)
    compute = changes.get("flops_per_s", base.flops_per_s)["bf16"] / base.flops_per_s["bf16"]
    scale = base.kernel_scale
    return KernelScale(scale.compute * compute, scale.memory * memory / base.memory_bandwidth_bytes_per_s, scale.clock)


def _sources(
    base: Gpu | Cluster | None,
    given: Mapping[str, str] | None,
    changed: list[str],
    short: Mapping[str, str],
    place: Place,
) -> dict[str, str]:
    """Field -> where its number comes from. No number keeps the source of the one that it replaces."""
    sources = dict(base.sources) if base else {}
    stale = [name for name in changed if given is None or name in sources]
    sources |= {name: f"given in {place.document or 'the spec'}" for name in stale if name != "name"}
    for key, text in (given or {}).items():
        head, dot, rest = key.partition(".")
        head = short.get(head, head)
        inner = _NESTED[head].short if head in _NESTED else {}
        sources[head + dot + inner.get(rest, rest)] = text
    return sources


def _changed_inside(field: str, given: object) -> list[str]:
    """The dotted names of what `given` sets under `field`; a link may be given as its bandwidth alone."""
    keys = list(given) if isinstance(given, Mapping) else ["bandwidth"] if given is not None else []
    return [f"{field}.{_NESTED[field].short.get(key, key)}" for key in keys]


def _built(
    kind: type[_Part], base: _Part | None, changes: dict[str, Any], place: Place, written: Mapping[str, str]
) -> _Part:
    """`base` with `changes`, or a new `kind`; errors name the place and the key as written."""
    if base is None:
        for item in dataclasses.fields(kind):
            needed = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
            if needed and item.name not in changes:
                short = {field: key for key, field in _SCHEMAS[kind].short.items()}.get(item.name, item.name)
                raise place.error(short, None, "give it, or a `base` to start from")
    try:
        return dataclasses.replace(base, **changes) if base is not None else kind(**changes)
    except SpecError as error:
        head, dot, rest = error.field.partition(".")
        raise place.error(written.get(head, head) + dot + rest, error.value, error.remedy) from error


_SCHEMAS: dict[type, type[_Schema]] = {Gpu: GpuSchema, Link: LinkSchema, Host: HostSchema, Cluster: ClusterSchema}
_NESTED: dict[str, type[_Schema]] = {"scale_up": LinkSchema, "scale_out": LinkSchema, "host": HostSchema}


def _unknown_key(key: str, schema: type[_Schema]) -> str:
    to_short = {field: short for short, field in schema.short.items()}
    known = [to_short.get(name, name) for name in schema.model_fields]
    near = get_close_matches(key.lower(), [*known, *schema.model_fields], n=1, cutoff=0.6)
    return f"unknown key; did you mean {near[0]}?" if near else f"unknown key; known: {', '.join(known)}"
