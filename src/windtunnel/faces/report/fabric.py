"""What there is to see of a collective on a cluster: the largest message, bandwidth over size, every size."""

from __future__ import annotations

from windtunnel.studies.fabric import FabricResult
from windtunnel.views import (
    Axis,
    Cell,
    Column,
    Curve,
    Document,
    Figure,
    Figures,
    Headline,
    Notes,
    Number,
    Series,
    Table,
    View,
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
    measured = any(size.measured_s is not None for size in result.sizes)
    columns = [Column("message", "B"), Column("time", "s"), Column("algorithm"), Column("algorithm bandwidth", "B/s")]
    columns.append(Column("bus bandwidth", "B/s"))
    if measured:
        columns += [Column("measured", "s"), Column("error", "change")]
    rows: list[list[Cell]] = []
    for size in result.sizes:
        row: list[Cell] = [
            float(size.bytes),
            Number(size.seconds, "s", size.p5_s, size.p95_s, size.source),
            f"{size.algorithm} {size.protocol}".strip(),
            size.algorithm_bandwidth,
            size.bus_bandwidth,
        ]
        if measured:
            row += [size.measured_s, size.error]
        rows.append(row)
    return Table("By size", columns, rows, most=64)
