"""`windtunnel nic GRAPH.yaml --nic bluefield-2 --target 100Gb/s`."""

from __future__ import annotations

from cyclopts import App

from windtunnel.faces.cli.flags import Outputs, command, plain_app
from windtunnel.faces.cli.output import give
from windtunnel.questions.asked.nic import Nic


def nic_app(*, everything: bool = False) -> App:
    """`nic`."""
    app = plain_app("nic")
    app.default(command("nic", show_nic, ("report", "full", "json"), everything=everything))
    return app


def show_nic(question: Nic, outputs: Outputs) -> int:
    """Answer, print, write."""
    from windtunnel.faces.report.nic import nic_document
    from windtunnel.studies.nic import answer

    found = answer(question)
    give(question, found, outputs, nic_document(found))
    return 0
