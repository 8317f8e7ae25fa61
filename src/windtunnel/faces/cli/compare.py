"""`windtunnel compare RUN_A RUN_B`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windtunnel.faces.cli.flags import Outputs, command
from windtunnel.faces.cli.output import print_question, show, wrote
from windtunnel.questions.saved import Compare


def compare_app(*, everything: bool = False) -> Callable[..., Any]:
    """The verb."""
    return command("compare", compare, ("report", "json"), everything=everything)


def compare(question: Compare, outputs: Outputs) -> None:
    """Answer, print, write."""
    from windtunnel.faces.report.comparison.compare import answer
    from windtunnel.faces.report.comparison.views import comparison_document

    comparison = answer(question)
    if outputs.report is not None:
        from windtunnel.faces.report.draw.page import write_page

        write_page(comparison_document(comparison), outputs.report)
        wrote(outputs.report)
    if outputs.json:
        print_question(question, comparison.to_dict())
    else:
        show(comparison_document(comparison))
