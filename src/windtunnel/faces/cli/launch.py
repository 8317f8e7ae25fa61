"""`windtunnel launch RUN --as FRAMEWORK`."""

from __future__ import annotations

from pathlib import Path

from windtunnel.faces.cli.flags import Command, Outputs
from windtunnel.faces.cli.output import print_question, stdout
from windtunnel.questions.asked.saved import Launch


def launch(question: Launch, outputs: Outputs) -> None:
    """Answer, print."""
    from windtunnel.faces.report.draw.console import print_views
    from windtunnel.views import Files

    outcome = answer(question)
    if outputs.json:
        print_question(question, outcome)
    else:
        print_views([Files("Launched with", list(outcome["launch"].items()))], stdout())


def answer(question: Launch) -> dict[str, dict[str, str]]:
    """File name -> text, under `launch`. Raises UserError."""
    from windtunnel.faces.report.run_folder import load
    from windtunnel.studies.training.launch import launch_of

    return {"launch": launch_of(question.framework, load(question.run, Path(question.runs)))}


COMMANDS = (Command("launch", launch),)
