"""Networks as views: a collective on a cluster over sizes of its message, and a data path on a NIC."""

from __future__ import annotations

from windtunnel.studies.fabric import FabricResult, Size
from windtunnel.studies.nic import NicResult
from windtunnel.views import (
    Axis,
    Curve,
    Document,
    Field,
    Figure,
    Figures,
    Headline,
    Notes,
    Number,
    Series,
    Table,
    View,
    table_of,
)
from windtunnel.views.text import text_of


def fabric_document(result: FabricResult) -> Document:
    """Everything that there is to see."""
    spec, last, place = result.spec, result.sizes[-1], result.placement
    title = f"{result.collective} on {spec['gpus']:,} × {spec['gpu']}"
    domains = f"{place.domains:,} domains of {place.domain_gpus} GPUs" if place.domains > 1 else "one domain"
    groups = "one group" if place.groups == 1 else f"{place.groups:,} such groups"
    under = f"{place.ranks:,} ranks in {domains} · {groups} · {place.crosses}"
    bandwidth = text_of(last.bus_bandwidth, "B/s")
    verdict = f"{text_of(last.bytes, 'B')} take {text_of(last.seconds, 's')}: {bandwidth} bus bandwidth."
    figures = [
        Figure(
            "time", Number(last.seconds, "s", last.p5_s, last.p95_s, last.source), f"{last.algorithm} {last.protocol}"
        ),
        Figure("bus bandwidth", Number(last.bus_bandwidth, "B/s")),
        Figure("latency", Number(last.latency_s, "s"), "of one byte"),
    ]
    if result.mean_error is not None:
        figures.append(Figure("mean error", Number(result.mean_error, "share"), "against nccl-tests"))
    curve = [_bandwidth(result)] if len(result.sizes) > 1 else []  # of one size there is none to draw
    views: list[View] = [Headline(verdict), Figures(figures), *curve, _sizes(result)]
    if result.warnings:
        views.append(Notes("To mind", list(result.warnings)))
    return Document("a collective", title, views, [], under)


def _bandwidth(result: FabricResult) -> Curve:
    sizes = [float(size.bytes) for size in result.sizes]
    bus = [size.bus_bandwidth for size in result.sizes]
    low = [size.bus_bandwidth * size.seconds / size.p95_s for size in result.sizes]
    high = [size.bus_bandwidth * size.seconds / size.p5_s for size in result.sizes]
    series = [Series("predicted", sizes, bus, low, high)]
    timed = [size for size in result.sizes if size.measured_s is not None]
    if timed:
        measured = [size.bus_bandwidth * size.seconds / (size.measured_s or 1.0) for size in timed]
        series.append(Series("nccl-tests", [float(size.bytes) for size in timed], measured, form="points"))
    return Curve("Bus bandwidth", Axis("message", "B", log=True), Axis("bus bandwidth", "B/s", low=0.0), series)


def _sizes(result: FabricResult) -> Table:
    fields: list[Field[Size]] = [
        ("message", "B", "bytes"),
        ("time", "s", lambda size: Number(size.seconds, "s", size.p5_s, size.p95_s, size.source)),
        ("algorithm", "text", lambda size: f"{size.algorithm} {size.protocol}".strip()),
        *(("algorithm bandwidth", "B/s", "algorithm_bandwidth"), ("bus bandwidth", "B/s", "bus_bandwidth")),
        *(("measured", "s", "measured_s"), ("error", "change", "error")),
    ]
    return table_of("By size", result.sizes, fields, most=64)


def nic_document(result: NicResult) -> Document:
    """A data path that is split between host and NIC."""
    spec, (low, high) = result.spec, result.right_for_skew
    host_share = result.host_cores / result.host_only_cores if result.host_only_cores else 1.0
    verdict = f"{spec['nic']} leaves the host {result.host_cores:.1f} of {result.host_only_cores:.1f} cores."
    figures = [
        Figure("host cores", Number(result.host_cores, "")),
        Figure("saved", Number(1 - host_share, "share"), f"{result.host_cores_saved:.1f} cores"),
        Figure("by code alone", Number(result.by_code_cores, ""), "host cores"),
        Figure("by state alone", Number(result.by_state_cores, ""), "host cores"),
        Figure("NIC cores in use", Number(result.nic_use, "share")),
        Figure("traffic of flows on the NIC", Number(result.hot, "share"), f"{result.flows_on_nic:,} flows"),
    ]
    split = table_of(
        "The split",
        result.partition,
        [
            *(("flows", "text", "flows"), ("traffic", "share", "share")),
            ("on the NIC", "text", lambda share: ", ".join(share.on_nic)),
            ("on the host", "text", lambda share: ", ".join(share.on_host)),
        ],
        most=12,
    )
    views: list[View] = [Headline(verdict), Figures(figures), split]
    notes = [f"Right within 5 % while flows send by Zipf's law of {low:g} to {high:g}.", *result.warnings]
    views.append(Notes("To mind", notes))
    return Document("a data path on a NIC", f"{spec['nodes']} operations on {spec['nic']}", views, [], result.source)
