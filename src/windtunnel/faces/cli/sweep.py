"""`windtunnel sweep STUDY.yaml` and `windtunnel sweep TABLE.parquet --show Y_vs_X`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.output import counting, note, print_answer, stdout
from windtunnel.units import format_many


def sweep(
    study: Path,
    /,
    *,
    out: Annotated[Path, Parameter(help="The table to write (sweep.parquet).")] = Path("sweep.parquet"),
    jobs: Annotated[int | None, Parameter(help="How many processes (one per core).")] = None,
    executor: Annotated[str, Parameter(help="processes, serial, ray or ray:ADDRESS (processes).")] = "processes",
    show: Annotated[
        str | None, Parameter(help="Of a table: the best Y at each X, e.g. time_vs_gpus or mfu_vs_plan.tp.")
    ] = None,
    json: Annotated[bool, Parameter(negative="", help="Print what was done as JSON.")] = False,
) -> None:
    """Run any verb over many points: one row each in one Parquet file; a killed sweep goes on where it was.

    Parameters
    ----------
    study
        A study in YAML (docs/planning.md), or with --show a table that a sweep wrote.
    """
    if show is not None or study.suffix == ".parquet":
        from windtunnel.studies.sweeps.table import best_at_each

        rows = best_at_each(study, show or "time_vs_gpus")
        if json:
            print_answer("sweep", {"study": str(study), "--show": show}, {"rows": rows}, study="sweep --show")
        else:
            from windtunnel.faces.report.planning.sweep_console import print_rows

            print_rows(rows, stdout())
        return
    from windtunnel.studies.sweeps import sweep as run

    with counting("points") as report:
        outcome = run(study, out=out, jobs=jobs, executor=executor, progress=report)
    if json:
        print_answer(
            "sweep",
            {"study": str(study), "--out": str(out), "--jobs": jobs, "--executor": executor},
            {
                "path": str(outcome.path),
                "points": outcome.points,
                "ran": outcome.ran,
                "by_status": dict(outcome.by_status),
                "reasons": dict(outcome.reasons),
                "best": None if outcome.best is None else dict(outcome.best),
            },
        )
        return
    points = format_many(outcome.points, "point")
    counts = ", ".join(f"{count:,} {status}" for status, count in outcome.by_status.items())
    from_file = "" if outcome.ran else f" ({out} answers; remove it to run again)"
    stdout().print(f"{points}: {counts}; {outcome.ran:,} ran now{from_file}", soft_wrap=True)
    for status, reason in outcome.reasons.items():
        stdout().print(f"the first {status}: {reason}", soft_wrap=True, markup=False)
    if outcome.best is not None:
        words = " ".join(f"{name}={value}" for name, value in outcome.best.items())
        stdout().print(f"best of those tried: {words}", soft_wrap=True)
    if outcome.ran:
        note(f"wrote {outcome.path}")
