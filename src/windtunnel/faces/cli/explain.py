"""`windtunnel explain TRACE...`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windtunnel.faces.cli.flags import Outputs, command
from windtunnel.faces.cli.output import print_question, show, working, wrote
from windtunnel.questions.explain import Explain


def explain_app(*, everything: bool = False) -> Callable[..., Any]:
    """The verb."""
    return command("explain", explain, ("report", "full", "json"), everything=everything)


def explain(question: Explain, outputs: Outputs) -> None:
    """Answer, print, write."""
    from windtunnel.faces.report.explanation import explanation_document
    from windtunnel.studies.traces.explain import answer

    with working("reading the trace"):
        explanation = answer(question)
    if outputs.report is not None:
        from windtunnel.faces.report.draw.page import write_page

        write_page(explanation_document(explanation), outputs.report)
    if outputs.json:
        print_question(
            question,
            explanation.to_dict(),
            provenance={"trace": explanation.source},
            warnings=explanation.notes,
        )
    else:
        show(explanation_document(explanation), full=outputs.full)
    if outputs.report is not None:
        wrote(outputs.report)
