"""`windtunnel decide MODEL... --clusters A:N,B:M --tokens N`."""

from __future__ import annotations

from collections.abc import Callable

from windtunnel.faces.cli.flags import Below, Given, Outputs, command
from windtunnel.faces.cli.output import give, note, working
from windtunnel.questions.asked.decide import Decide


def decide_app(*, everything: bool = False) -> Callable[..., object]:
    """The verb."""
    return command("decide", decide, ("report", "full", "json"), reader=_below, everything=everything)


def _below(given: Given) -> Below:
    """What a plan file says below the flags."""
    from pathlib import Path

    from windtunnel.studies.training.question import plan_file

    file = given.files.get("plan")
    if file is None:
        return Below({})
    stated = plan_file("", "", Path(file), {})
    return Below({"plan": stated.fields}, stated.notes, stated.path)


def decide(question: Decide, outputs: Outputs, *, notes: tuple[str, ...] = ()) -> int:
    """Answer, print, write. The exit status is 3 where no cluster can."""
    from windtunnel.faces.report.decision import decide_document
    from windtunnel.studies.decide import answer

    with working("planning on each cluster, and living through its failures"):
        found = answer(question)
    for text in notes:
        note(text)
    give(question, found, outputs, decide_document(found), noting=False)
    return 0 if any(one.fits for one in found.options) else 3
