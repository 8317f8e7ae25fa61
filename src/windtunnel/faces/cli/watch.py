"""`windtunnel watch FOLDER`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.flags import Outputs, command
from windtunnel.faces.cli.output import give
from windtunnel.questions.asked.explain import Watch


def watch_app(*, everything: bool = False) -> Callable[..., object]:
    """The verb."""
    return command("watch", watch, ("report", "json"), everything=everything)


def watch(
    question: Watch,
    outputs: Outputs,
    *,
    follow: Annotated[bool, Parameter(negative="", help="Look again every second until somebody is named.")] = False,
) -> None:
    """Read the logs, say who is to blame."""
    from windtunnel.faces.report.survival import verdict_document
    from windtunnel.real.survive.watch.verdict import answer, answer_at_last

    verdict = answer_at_last(question) if follow else answer(question)
    give(question, verdict.to_dict(), outputs, verdict_document(verdict), provenance={"logs": question.folder})
