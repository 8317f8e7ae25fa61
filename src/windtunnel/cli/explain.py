"""`windtunnel explain TRACE...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def explain(
    *traces: Path,
    json: Annotated[bool, Parameter(negative="", help="Print the explanation as JSON.")] = False,
) -> None:
    """Say why a real job is slower than it should be: which worker, stage or kind of op, and what mending it gives.

    Parameters
    ----------
    traces
        An operation table (.parquet), or one Kineto trace (.json, .json.gz) or Chakra trace (.et, .json) per rank.
    """
    from windtunnel.capture.read import read_trace
    from windtunnel.capture.whatif import explain as explained
    from windtunnel.cli.output import print_json, stdout, working
    from windtunnel.report.explain_console import print_explanation

    with working("reading the trace"):
        explanation = explained(read_trace(traces), [str(path) for path in traces])
    if json:
        print_json(explanation.to_dict())
    else:
        print_explanation(explanation, stdout())
