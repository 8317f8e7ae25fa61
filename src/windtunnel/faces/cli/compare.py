"""`windtunnel compare RUN_A RUN_B`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.output import note, print_answer, show


def compare(
    run_a: str,
    run_b: str,
    /,
    *,
    out: Annotated[Path, Parameter(help="Where run folders are looked for by their hash (runs).")] = Path("runs"),
    report: Annotated[Path | None, Parameter(help="Write an HTML report here.")] = None,
    json: Annotated[bool, Parameter(negative="", help="Print the comparison as JSON.")] = False,
) -> None:
    """Show where two runs differ, and what explains it.

    Parameters
    ----------
    run_a
        A run folder, its result.json, or the first digits of its hash.
    run_b
        The run to hold against it.
    """
    from windtunnel.faces.report.comparison.compare import compare as compared
    from windtunnel.faces.report.comparison.views import comparison_document
    from windtunnel.faces.report.run_folder import load

    comparison = compared(load(run_a, out), load(run_b, out))
    if report is not None:
        from windtunnel.faces.report.draw.page import write_page

        write_page(comparison_document(comparison), report)
        note(f"wrote {report}")
    if json:
        print_answer("compare", comparison.to_dict())
    else:
        show(comparison_document(comparison))
