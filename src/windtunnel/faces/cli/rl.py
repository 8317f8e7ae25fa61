"""`windtunnel rl MODEL --cluster ...`, and `windtunnel rl plan`."""

from __future__ import annotations

from cyclopts import App

from windtunnel.faces.cli.flags import Outputs, command, plain_app
from windtunnel.faces.cli.output import noted, print_answered, show, working, wrote
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
    if outputs.report is not None:
        from windtunnel.faces.report.draw.page import write_page

        write_page(rl_document(found), outputs.report)
        wrote(outputs.report)
    if outputs.json:
        print_answered(question, found)
    else:
        noted(found)
        show(rl_document(found), full=outputs.full)
    return 0 if found.feasible else 3


def show_plan(question: RlPlan, outputs: Outputs) -> None:
    """Answer, print, write."""
    from windtunnel.faces.report.rl.views import plan_document
    from windtunnel.studies.rl.plan import answer

    with working("searching"):
        found = answer(question)
    if outputs.report is not None:
        from windtunnel.faces.report.draw.page import write_page

        write_page(plan_document(found), outputs.report)
        wrote(outputs.report)
    if outputs.json:
        print_answered(question, found)
    else:
        noted(found)
        show(plan_document(found), full=outputs.full)
