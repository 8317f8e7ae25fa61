"""`windtunnel explain TRACE...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.output import note, print_answer, show, working


def explain(
    *traces: Path,
    without: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            consume_multiple=False,
            help="Step time if this were ideal: worker=12, stage=3, replica=8, step=40 or op=backward-compute; "
            "repeatable, all together.",
        ),
    ] = (),
    silent: Annotated[
        bool, Parameter(negative="", help="Name the rank that made the others wait, from a folder of ranks' logs.")
    ] = False,
    report: Annotated[Path | None, Parameter(help="Write an HTML report here.")] = None,
    full: Annotated[bool, Parameter(negative="", help="Print all of the answer, not its first screen alone.")] = False,
    json: Annotated[bool, Parameter(negative="", help="Print the explanation as JSON.")] = False,
) -> None:
    """Say why a real job is slower than it should be: which worker, stage or kind of op, and what mending it gives.

    Parameters
    ----------
    traces
        An operation table (.parquet), or one Kineto trace (.json, .json.gz) or Chakra trace (.et, .json) per rank; with
        --silent the folder of logs that `windtunnel watch` reads.
    """
    if silent:
        from windtunnel.faces.cli.watch import told

        if len(traces) != 1 or without:
            raise SpecError("--silent", " ".join(map(str, traces)), "give one folder of ranks' logs, and nothing else")
        told(traces[0], 3.0, as_of_last_beat=True, report=report, json=json)
        return
    from windtunnel.faces.report.explanation import explanation_document
    from windtunnel.studies.traces.read import read_trace
    from windtunnel.studies.traces.stragglers.counterfactuals import explain as explained

    with working("reading the trace"):
        explanation = explained(read_trace(traces), [str(path) for path in traces], without)
    if report is not None:
        from windtunnel.faces.report.draw.page import write_page

        write_page(explanation_document(explanation), report)
    if json:
        print_answer(
            "explain",
            explanation.to_dict(),
            provenance={"trace": explanation.source},
            warnings=explanation.notes,
        )
    else:
        show(explanation_document(explanation), full=full)
    if report is not None:
        note(f"wrote {report}")
