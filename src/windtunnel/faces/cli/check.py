"""`windtunnel check TRAIN.sh --cluster SPEC --fail-if slower=5% --baseline BEFORE.sh`."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.flags import Below, Command, FlagValues, Outputs
from windtunnel.faces.cli.output import give, working
from windtunnel.faces.cli.predict import plan_below
from windtunnel.questions.asked.check import Check

BROKEN = 1


def check(
    question: Check,
    outputs: Outputs,
    *,
    notes: tuple[str, ...] = (),
    github: Annotated[
        bool, Parameter(negative="", help="Print broken rules as annotations of a GitHub Action.")
    ] = False,
) -> int:
    """Answer, print, write. The exit status is 1 where a rule is broken."""
    from windtunnel.faces.report.decision import check_document, github_lines
    from windtunnel.studies.check import answer

    with working("predicting"):
        outcome = answer(question, notes)
    give(question, outcome, outputs, check_document(outcome), noting=False)
    if github:
        for line in github_lines(outcome, question.model.base):
            print(line)
    return 0 if outcome.passed else BROKEN


def _below(command_line: FlagValues) -> Below:
    """What --plan says below the flags; what the launch file says is its own, and not its baseline's."""
    below = plan_below(command_line)
    return below if "plan" in command_line.files else replace(below, parts={})


COMMANDS = (Command("check", check, ("report", "full", "json"), reader=_below),)
