"""Verbs that answer, print and write, and do nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from windtunnel.faces.cli.flags import Below, Given, Outputs, Reader, command, plain_app
from windtunnel.faces.cli.output import give, note, working
from windtunnel.questions.header import Answer
from windtunnel.questions.registry import QUESTIONS, Question, named

if TYPE_CHECKING:
    from windtunnel.studies.decide import Decision


def answered(
    verb: str,
    doing: str,
    outputs: Sequence[str] = ("report", "full", "json"),
    *,
    reader: Reader | None = None,
    noting: bool = True,
    status: Callable[..., int] = lambda found: 0,
    everything: bool = False,
) -> Callable[..., object]:
    """A verb by its row of QUESTIONS and its answer's views.

    `doing`: what is said meanwhile; `noting`: its warnings are notes as well; `status`: on exit, by the answer.
    """

    def show(question: Question, outputs: Outputs, *, notes: tuple[str, ...] = ()) -> int:
        from windtunnel.faces.report.documents import document_of

        with working(doing):
            found = named(QUESTIONS[verb].answer)(question)
        for text in notes:
            note(text)
        answer = found if isinstance(found, Answer) else found.to_dict()
        give(question, answer, outputs, document_of(found), noting=noting)
        return status(found)

    return command(verb, show, outputs, reader=reader, everything=everything)


def nic_app(*, everything: bool = False) -> Callable[..., object]:
    """`windtunnel nic GRAPH.yaml --nic bluefield-2 --target 100Gb/s`."""
    return answered("nic", "cutting", everything=everything)


def fabric_app(*, everything: bool = False) -> Callable[..., object]:
    """`windtunnel fabric --cluster ... --collective all-reduce --bytes 64MiB..8GiB`."""
    return answered("fabric", "pricing", everything=everything)


def rl_app(*, everything: bool = False) -> App:
    """`windtunnel rl MODEL --cluster ...`, and `rl plan`. The exit status is 3 where the job does not fit."""
    app = plain_app("rl")
    app.default(answered("rl", "simulating", status=lambda found: 0 if found.feasible else 3, everything=everything))
    app.command(answered("rl plan", "searching", everything=everything))
    return app


def compare_app(*, everything: bool = False) -> Callable[..., object]:
    """`windtunnel compare RUN_A RUN_B` and `windtunnel compare RUN TRACE...`."""
    return answered("compare", "reading", ("report", "json"), everything=everything)


def explain_app(*, everything: bool = False) -> Callable[..., object]:
    """`windtunnel explain TRACE...`."""
    return answered("explain", "reading the trace", noting=False, everything=everything)


def decide_app(*, everything: bool = False) -> Callable[..., object]:
    """`windtunnel decide MODEL... --clusters A:N,B:M --tokens N`. The exit status is 3 where no cluster can."""
    doing = "planning on each cluster, and living through its failures"
    return answered("decide", doing, reader=_plan_below, noting=False, status=_undecided, everything=everything)


def _undecided(decision: Decision) -> int:
    return 0 if any(option.fits for option in decision.options) else 3


def _plan_below(given: Given) -> Below:
    """What a plan file says below the flags."""
    from windtunnel.studies.training.question import plan_file

    file = given.files.get("plan")
    if file is None:
        return Below({})
    stated = plan_file("", "", Path(file), {})
    return Below({"plan": stated.fields}, stated.notes, stated.path)
