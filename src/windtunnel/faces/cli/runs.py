"""`windtunnel runs list | tag | delete`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.faces.cli.flags import Command, Outputs
from windtunnel.faces.cli.output import give, note
from windtunnel.questions.asked.saved import RunsDelete, RunsList, RunsTag

if TYPE_CHECKING:
    from windtunnel.faces.report.run_list import Listed


def list_runs(question: RunsList, outputs: Outputs) -> None:
    """List what is asked for."""
    from windtunnel.faces.report.run_list import answer

    _print(question, answer(question), outputs, some=bool(question.words or question.tagged))


def tag_runs(question: RunsTag, outputs: Outputs) -> None:
    """Tag, and list all."""
    from windtunnel.faces.report.run_list import answer_tag

    _print(question, answer_tag(question), outputs, some=False)


def delete_runs(question: RunsDelete, outputs: Outputs) -> None:
    """Delete."""
    from windtunnel.faces.report.run_list import answer_delete

    for name in answer_delete(question):
        note(f"deleted {Path(question.runs) / name}")


def _print(question: RunsList | RunsTag, listing: Listed, outputs: Outputs, *, some: bool) -> None:
    from windtunnel.faces.report.run_list import runs_document

    document = runs_document(listing.runs, listing.tags, question.runs, some=some)
    give(question, listing, outputs, document)


COMMANDS = (
    Command("runs list", list_runs),
    Command("runs tag", tag_runs),
    Command("runs delete", delete_runs, ()),
)
