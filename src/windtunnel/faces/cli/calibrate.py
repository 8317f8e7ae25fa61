"""`windtunnel calibrate`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from windtunnel.errors import InputFileError, SpecError
from windtunnel.faces.cli.output import note, show, stdout, working
from windtunnel.units import format_many

if TYPE_CHECKING:
    from collections.abc import Mapping

    from windtunnel.faces.report.calibration import CurveChart
    from windtunnel.physics.hardware.calibration import Points


def calibrate(
    *,
    device: Annotated[
        str | None, Parameter(help="cpu or cuda:0; a GPU if there is one. CUDA is not yet run on a GPU.")
    ] = None,
    quick: Annotated[bool, Parameter(negative="", help="Two minutes. This is the default.")] = False,
    full: Annotated[bool, Parameter(negative="", help="Fifteen minutes: more shapes.")] = False,
    budget: Annotated[float | None, Parameter(show=False, help="Seconds, in place of --quick and --full.")] = None,
    out: Annotated[Path, Parameter(help="The file to write, or to add collectives to.")] = Path("my-device.yaml"),
    threads: Annotated[int | None, Parameter(help="Threads of the CPU; all by default.")] = None,
    only: Annotated[
        tuple[str, ...], Parameter(negative="", consume_multiple=False, help="Only this op, or collective; repeatable.")
    ] = (),
    collectives: Annotated[bool, Parameter(negative="", help="Measure collectives between processes.")] = False,
    world_size: Annotated[int | None, Parameter(help="Processes for --collectives (2).")] = None,
    backend: Annotated[
        Literal["gloo", "nccl"] | None, Parameter(help="Library for --collectives (gloo); NCCL: not yet run.")
    ] = None,
    pinned: Annotated[
        bool, Parameter(negative="", help="With --collectives: each process keeps to its own share of the cores.")
    ] = False,
    show: Annotated[Path | None, Parameter(help="Show a calibrated file instead of measuring.")] = None,
    report: Annotated[Path | None, Parameter(help="With --show: write the charts here, as HTML.")] = None,
) -> None:
    """Measure the device at hand, so that predictions rest on what it really does.

    Writes a cluster for --cluster my-device.yaml:1. Interrupted, it goes on where it was when run again.
    """
    import time

    begun = time.monotonic()
    if quick and full:
        raise SpecError("--full", True, "give --quick or --full, not both")
    if report is not None and show is None:
        raise SpecError("--report", str(report), "goes with --show FILE")
    between = {"--world-size": world_size, "--backend": backend, "--pinned": pinned or None}
    alone = {"--device": device}
    for name, value in (alone if collectives else between).items():
        if value is not None:
            remedy = (
                "leave it out: --collectives adds to a file that is there" if collectives else "goes with --collectives"
            )
            raise SpecError(name, value, remedy)
    if show is not None:
        _show(show, report)
        return
    from windtunnel.real.calibrate.session import FULL_S, QUICK_S

    budget_s = (FULL_S if full else QUICK_S) if budget is None else budget
    if collectives:
        _collectives(out, 2 if world_size is None else world_size, backend or "gloo", budget_s, threads, only, pinned)
    else:
        _measure(out, device, budget_s, threads, only, begun)


def _measure(
    out: Path, device: str | None, budget_s: float, threads: int | None, only: tuple[str, ...], begun: float
) -> None:
    from windtunnel.real.calibrate import calibrate as measured
    from windtunnel.real.calibrate.journal import journal_path

    try:
        with _spending("calibrating") as progress:
            outcome = measured(
                out,
                device=device,
                budget_s=budget_s,
                threads=threads,
                only=only,
                report=progress,
                begun=begun,
            )
    except KeyboardInterrupt:
        if journal_path(out).exists():
            note(f"interrupted; what was measured is kept in {journal_path(out)}: run the same again to go on")
        raise
    if outcome.resumed_points or outcome.damaged_lines:
        lost = f", {format_many(outcome.damaged_lines, 'damaged line')} left out" if outcome.damaged_lines else ""
        note(f"went on with {format_many(outcome.resumed_points, 'point')} of an earlier run{lost}")
    for text in (*outcome.device.notes, *outcome.found.notes):
        note(f"note: {text}")
    curves = sum(bool(points) for points in outcome.found.points.values())
    stdout().print(
        f"{outcome.device.name}: {format_many(outcome.found.n_points, 'point')} of {format_many(curves, 'curve')}"
        f" in {outcome.seconds:.0f} s, in {out}",
        markup=False,
        soft_wrap=True,
    )


def _collectives(
    out: Path,
    world_size: int,
    backend: str,
    budget_s: float,
    threads: int | None,
    only: tuple[str, ...],
    pinned: bool,
) -> None:
    from windtunnel.real.calibrate.collectives import measure_collectives

    with working(f"timing {backend} between {world_size} processes"):
        rows, notes = measure_collectives(out, world_size, backend, budget_s, threads, only=only, pinned=pinned)
    for text in notes:
        note(f"note: {text}")
    points = sum(map(len, rows.values()))
    added = f"{format_many(points, 'point')} of {format_many(len(rows), 'collective')}"
    text = f"{backend} {world_size}: {added} added to {out}"
    stdout().print(text, markup=False, soft_wrap=True)


def _show(path: Path, page: Path | None) -> None:
    """Points against curves: the curves come from `cost`, the pictures from `report`."""
    from windtunnel.faces.report.calibration import Calibration, CurveChart, calibration_document
    from windtunnel.faces.report.draw.page import write_page
    from windtunnel.physics.cost.calibrated import calibrated_costs
    from windtunnel.physics.hardware import parse_cluster
    from windtunnel.real.calibrate.document import load_document

    document = load_document(path)
    if document is None:
        raise InputFileError(path, "is not there", "give a file that `windtunnel calibrate` wrote")
    with working("fitting the curves"):
        cluster = parse_cluster(f"{path}:1")
        costs = calibrated_costs(cluster)
        assert costs is not None
        charts = [
            CurveChart(
                curve.op,
                curve.dtype,
                curve.names,
                [tuple(shape) for shape in curve.shapes.tolist()],
                curve.seconds.tolist(),
                curve.low.tolist(),
                curve.high.tolist(),
                curve.left_out_seconds.tolist(),
                curve.mean_error,
                curve.formula,
            )
            for curve in costs.curves()
        ]
    found = costs.calibration
    answer = Calibration(
        str(path),
        found.device,
        found.kind,
        found.date,
        found.software,
        found.threads,
        {"host": found.host, "memory": found.memory, "overlap": found.overlap},
        charts,
        _collective_charts(found.collectives, CurveChart),
        [str(text) for text in document["calibration"].get("notes") or []],
    )
    views = calibration_document(answer)
    if page is not None:
        write_page(views, page)
        note(f"wrote {page}")
    show(views)


def _collective_charts(collectives: Mapping[tuple[str, str, int], Points], chart: type[CurveChart]) -> list[CurveChart]:
    """Each point against the curve through the others."""
    from windtunnel.physics.cost.communication.measured_curve import measured_curve
    from windtunnel.physics.hardware.calibration import Points

    found = []
    for (kind, backend, ranks), points in sorted(collectives.items()):
        count = len(points.seconds)
        curve = points.seconds.tolist()
        for at in range(count) if count > 2 else ():
            others = [other for other in range(count) if other != at]
            left = Points(points.shapes[others], points.seconds[others], points.low[others], points.high[others])
            without = measured_curve(left)
            curve[at] = without.at(float(points.shapes[at, 0]))[0]
        off = [abs(one / measured - 1) for one, measured in zip(curve, points.seconds.tolist(), strict=True)]
        shapes = [(int(size),) for size in points.shapes[:, 0]]
        name, lows, highs = f"{kind} on {ranks} ranks", points.low.tolist(), points.high.tolist()
        seconds = points.seconds.tolist()
        found.append(
            chart(name, backend, ("bytes",), shapes, seconds, lows, highs, curve, sum(off) / max(count, 1), "")
        )
    return found


@contextmanager
def _spending(what: str) -> Iterator[Callable[[float, float, str], None]]:
    """A callback for (spent seconds, budget seconds, what is going on) that draws a bar on stderr for a person."""
    import sys

    if not sys.stderr.isatty():
        yield lambda spent, budget, now: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(spent: float, budget: float, now: str) -> None:
            bar.update(task, completed=spent, total=budget, description=now)

        yield report
