"""`windtunnel techniques`."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.faces.cli.flags import Outputs, command
from windtunnel.faces.cli.output import give
from windtunnel.questions.asked.sweep import Techniques


def techniques_app(*, everything: bool = False) -> Callable[..., object]:
    """The verb."""
    return command("techniques", techniques, ("report", "json"), everything=everything)


def techniques(question: Techniques, outputs: Outputs) -> None:
    """List, print."""
    from windtunnel.faces.report.techniques import techniques_document
    from windtunnel.studies.helping import answer

    found = answer(question)
    give(question, found, outputs, techniques_document(found["techniques"]))
