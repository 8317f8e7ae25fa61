"""`windtunnel fabric --cluster ... --collective all-reduce --bytes 64MiB..8GiB`."""

from __future__ import annotations

from cyclopts import App

from windtunnel.faces.cli.flags import Outputs, command, plain_app
from windtunnel.faces.cli.output import give
from windtunnel.questions.asked.fabric import Fabric


def fabric_app(*, everything: bool = False) -> App:
    """`fabric`."""
    app = plain_app("fabric")
    app.default(command("fabric", show_fabric, ("report", "full", "json"), everything=everything))
    return app


def show_fabric(question: Fabric, outputs: Outputs) -> int:
    """Answer, print, write."""
    from windtunnel.faces.report.fabric import fabric_document
    from windtunnel.studies.fabric import answer

    found = answer(question)
    give(question, found, outputs, fabric_document(found))
    return 0
