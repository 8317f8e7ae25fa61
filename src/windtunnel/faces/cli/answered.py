"""Verbs that answer, print and write, and do nothing else; `nic`, `fabric` and `rl` are nothing but that."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cyclopts import App

from windtunnel.faces.cli.flags import Outputs, command, plain_app
from windtunnel.faces.cli.output import give, working
from windtunnel.questions.registry import QUESTIONS, Question, named


def answered(
    verb: str,
    doing: str,
    outputs: Sequence[str] = ("report", "full", "json"),
    *,
    status: Callable[..., int] = lambda found: 0,
    everything: bool = False,
) -> Callable[..., object]:
    """A verb by its row of QUESTIONS and its answer's views. `doing`: what is said meanwhile; `status`: on exit."""

    def show(question: Question, outputs: Outputs) -> int:
        from windtunnel.faces.report.documents import document_of

        with working(doing):
            found = named(QUESTIONS[verb].answer)(question)
        give(question, found, outputs, document_of(found))
        return status(found)

    return command(verb, show, outputs, everything=everything)


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
