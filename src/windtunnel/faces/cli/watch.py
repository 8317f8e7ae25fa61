"""`windtunnel watch FOLDER`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.output import note, print_answer, show
from windtunnel.units import parse_time


def watch(
    folder: Path,
    /,
    *,
    patience: Annotated[str, Parameter(help="How long nobody may move until it is a hang (3s).")] = "3s",
    follow: Annotated[bool, Parameter(negative="", help="Look again every second until somebody is named.")] = False,
    report: Annotated[Path | None, Parameter(help="Write an HTML page with the heat map here.")] = None,
    json: Annotated[bool, Parameter(negative="", help="Print the verdict as JSON.")] = False,
) -> None:
    """Name the rank that makes all others wait, or that is slow, from the logs that ranks write while they run.

    Parameters
    ----------
    folder
        Where the ranks' logs are: one memory-mapped file each, as windtunnel.real.survive.RankLog writes them.
    """
    import time

    from windtunnel.real.survive.watch.log import read_logs
    from windtunnel.real.survive.watch.verdict import verdict

    patience_s = parse_time(patience, "--patience")
    while follow:
        views = read_logs(folder)
        if verdict(views, time.time(), patience_s).culprits or all(view.ended for view in views):
            break
        time.sleep(1.0)
    told(folder, patience_s, report=report, json=json)


def told(folder: Path, patience_s: float, *, report: Path | None, json: bool, as_of_last_beat: bool = False) -> None:
    """Read the logs and say who is to blame, now or, for a job that is over, as of its last beat."""
    import time

    from windtunnel.faces.report.survival import verdict_document
    from windtunnel.real.survive.watch.log import read_logs
    from windtunnel.real.survive.watch.verdict import verdict

    views = read_logs(folder)
    now_s = max((view.beat_s for view in views), default=0.0) if as_of_last_beat else time.time()
    found = verdict(views, now_s, patience_s)
    if report is not None:
        from windtunnel.faces.report.draw.page import write_page

        write_page(verdict_document(found), report)
        note(f"wrote {report}")
    if json:
        print_answer("watch", found.to_dict(), provenance={"logs": str(folder)})
    else:
        show(verdict_document(found))
