"""`windtunnel explain TRACE...`."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.faces.cli.flags import Outputs, command
from windtunnel.faces.cli.output import give, working
from windtunnel.questions.asked.explain import Explain


def explain_app(*, everything: bool = False) -> Callable[..., object]:
    """The verb."""
    return command("explain", explain, ("report", "full", "json"), everything=everything)


def explain(question: Explain, outputs: Outputs) -> None:
    """Answer, print, write."""
    from windtunnel.faces.report.explanation import explanation_document
    from windtunnel.studies.traces.explain import answer

    with working("reading the trace"):
        explanation = answer(question)
    give(
        question,
        explanation.to_dict(),
        outputs,
        explanation_document(explanation),
        provenance={"trace": explanation.source},
        warnings=explanation.notes,
    )
