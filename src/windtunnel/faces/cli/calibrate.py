"""`windtunnel calibrate device | collectives | show`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.flags import Command, Outputs
from windtunnel.faces.cli.output import give, note, stdout, working
from windtunnel.questions.asked.calibrate import CalibrateCollectives, CalibrateDevice, CalibrateShow
from windtunnel.units import format_many

Place = Annotated[Path, Parameter(help="The file to write, or to add collectives to.")]
DEVICE_FILE = Path("my-device.yaml")


def calibrate_device(question: CalibrateDevice, outputs: Outputs, *, out: Place = DEVICE_FILE) -> None:
    """Measure, and write the file."""
    start_s = time.monotonic()
    from windtunnel.real.calibrate.journal import journal_path
    from windtunnel.real.calibrate.run import answer

    try:
        with _spending("calibrating") as progress:
            outcome = answer(question, out=out, report=progress, begun=start_s)
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


def calibrate_collectives(question: CalibrateCollectives, outputs: Outputs, *, out: Place = DEVICE_FILE) -> None:
    """Measure, and add to the file."""
    from windtunnel.real.calibrate.collectives import answer

    with working(f"timing {question.backend} between {question.world_size} processes"):
        rows, notes = answer(question, out=out)
    for text in notes:
        note(f"note: {text}")
    points = sum(map(len, rows.values()))
    added = f"{format_many(points, 'point')} of {format_many(len(rows), 'collective')}"
    text = f"{question.backend} {question.world_size}: {added} added to {out}"
    stdout().print(text, markup=False, soft_wrap=True)


def show_calibration(question: CalibrateShow, outputs: Outputs) -> None:
    """Points against curves."""
    from windtunnel.faces.report.calibration import calibration_document
    from windtunnel.real.calibrate.curves import answer

    with working("fitting the curves"):
        calibration = answer(question)
    give(question, calibration.to_dict(), outputs, calibration_document(calibration))


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


COMMANDS = (
    Command("calibrate device", calibrate_device, ()),
    Command("calibrate collectives", calibrate_collectives, ()),
    Command("calibrate show", show_calibration, ("report", "full", "json")),
)
