"""`windtunnel rl MODEL --cluster ...`, and `windtunnel rl plan`."""

from __future__ import annotations

from cyclopts import App

from windtunnel.faces.cli.flags import Outputs, command, plain_app
from windtunnel.faces.cli.output import give, working
from windtunnel.questions.asked.rl import Rl, RlPlan


def rl_app(*, everything: bool = False) -> App:
    """`rl` with its verbs."""
    app = plain_app("rl")
    app.default(command("rl", show_rl, ("report", "full", "json"), everything=everything))
    app.command(command("rl plan", show_plan, ("report", "full", "json"), everything=everything))
    return app


def show_rl(question: Rl, outputs: Outputs) -> int:
    """Answer, print, write. The exit status is 3 for a job that does not fit in memory."""
    from windtunnel.faces.report.rl.views import rl_document
    from windtunnel.studies.rl.study import answer

    with working("simulating"):
        found = answer(question)
    give(question, found, outputs, rl_document(found))
    return 0 if found.feasible else 3


def show_plan(question: RlPlan, outputs: Outputs) -> None:
    """Answer, print, write."""
    from windtunnel.faces.report.rl.views import plan_document
    from windtunnel.studies.rl.plan import answer

    with working("searching"):
        found = answer(question)
    give(question, found, outputs, plan_document(found))
