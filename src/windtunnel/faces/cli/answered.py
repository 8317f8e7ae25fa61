"""Verbs that answer, print and write, and do little else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.flags import Below, Command, FlagValues, Outputs, Reader
from windtunnel.faces.cli.output import give, note, working
from windtunnel.faces.cli.plan import work_of_file
from windtunnel.questions.asked.explain import Watch
from windtunnel.questions.asked.saved import WhatIf
from windtunnel.questions.asked.sweep import Techniques
from windtunnel.questions.header import Answer
from windtunnel.questions.registry import QUESTIONS, Question, object_at

if TYPE_CHECKING:
    from windtunnel.studies.decide import Decision


def answered(
    verb: str,
    doing: str,
    outputs: Sequence[str] = ("report", "full", "json"),
    *,
    reader: Reader | None = None,
    noting: bool = True,
    status: Callable[..., int] = lambda outcome: 0,
) -> Command:
    """A verb by its row of QUESTIONS and its answer's views.

    `doing`: what is said meanwhile; `noting`: its warnings are notes as well; `status`: on exit, by the answer.
    """

    def show(question: Question, outputs: Outputs, *, notes: tuple[str, ...] = ()) -> int:
        from windtunnel.faces.report.documents import document_of

        with working(doing):
            outcome = object_at(QUESTIONS[verb].answer)(question)
        for text in notes:
            note(text)
        answer = outcome if isinstance(outcome, Answer) else outcome.to_dict()
        give(question, answer, outputs, document_of(outcome), noting=noting)
        return status(outcome)

    return Command(verb, show, outputs, reader)


def _undecided(decision: Decision) -> int:
    return 0 if any(option.fits for option in decision.options) else 3


def _plan_below(command_line: FlagValues) -> Below:
    """What files say below the flags: as of `plan`, for the first model on the first cluster."""
    models, clusters = command_line.flags.get("models"), str(command_line.flags.get("clusters") or "")
    model = models[0] if isinstance(models, tuple | list) and models else models or ""
    flags: dict[str, object] = {"model": model, "cluster": clusters.split(",")[0].strip()}
    return work_of_file(replace(command_line, flags={**command_line.flags, **flags}))


def techniques(question: Techniques, outputs: Outputs) -> None:
    """List, print."""
    from windtunnel.faces.report.techniques import techniques_document
    from windtunnel.studies.helping import answer

    outcome = answer(question)
    give(question, outcome, outputs, techniques_document(outcome["techniques"]))


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


def whatif(question: WhatIf, outputs: Outputs) -> None:
    """Ask again, print, and save the new answer."""
    from windtunnel.faces.report.comparison.compare import asked_again, changed
    from windtunnel.faces.report.comparison.views import comparison_document
    from windtunnel.faces.report.run_folder import save

    with working("predicting"):
        before, after = asked_again(question)
    comparison = changed(question, before, after)
    give(question, comparison, outputs, comparison_document(comparison))
    if outputs.save:
        note(f"wrote {save(after, Path(question.runs))}")


DECIDING = "planning on each cluster, and living through its failures"
COMMANDS = (
    answered("nic", "cutting"),
    answered("fabric", "pricing"),
    answered("rl", "simulating", status=lambda outcome: 0 if outcome.feasible else 3),  # 3: the job does not fit
    answered("rl plan", "searching"),
    answered("compare", "reading", ("report", "json")),
    answered("explain", "reading the trace", noting=False),
    answered("decide", DECIDING, reader=_plan_below, noting=False, status=_undecided),
    Command("techniques", techniques, ("report", "json")),
    Command("watch", watch, ("report", "json")),
    Command("whatif", whatif, ("report", "json", "save")),
)
