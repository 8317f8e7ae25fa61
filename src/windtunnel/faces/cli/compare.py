"""`windtunnel compare RUN_A RUN_B` and `windtunnel compare RUN TRACE...`."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.faces.cli.flags import Outputs, command
from windtunnel.faces.cli.output import give, working
from windtunnel.questions.asked.saved import Compare


def compare_app(*, everything: bool = False) -> Callable[..., object]:
    """The verb."""
    return command("compare", compare, ("report", "json"), everything=everything)


def compare(question: Compare, outputs: Outputs) -> None:
    """Answer, print, write."""
    from windtunnel.faces.report.comparison.compare import TraceComparison, answer
    from windtunnel.faces.report.comparison.views import comparison_document, trace_document

    with working("reading"):
        comparison = answer(question)
    if isinstance(comparison, TraceComparison):
        document = trace_document(comparison)
    else:
        document = comparison_document(comparison)
    give(question, comparison.to_dict(), outputs, document)
