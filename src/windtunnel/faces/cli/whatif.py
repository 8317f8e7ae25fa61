"""`windtunnel whatif RUN --set ...`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from windtunnel.faces.cli.flags import Outputs, command
from windtunnel.faces.cli.output import give, note, working
from windtunnel.questions.asked.saved import WhatIf


def whatif_app(*, everything: bool = False) -> Callable[..., object]:
    """The verb."""
    return command("whatif", whatif, ("report", "json", "save"), everything=everything)


def whatif(question: WhatIf, outputs: Outputs) -> None:
    """Ask again, print, and save the new answer."""
    from windtunnel.faces.report.comparison.compare import asked_again, compare
    from windtunnel.faces.report.comparison.views import comparison_document
    from windtunnel.faces.report.run_folder import save

    with working("predicting"):
        before, after = asked_again(question)
    made_by, now = before.spec.get("version"), after.spec["version"]
    by = f"{question.run} was made by version {made_by or 'unknown'}, this is {now}"
    warnings = [f"{by}: not all that differs is the change"] if made_by != now else []
    for text in warnings:
        note(text)
    comparison = compare(before, after)
    give(question, comparison.to_dict(), outputs, comparison_document(comparison), warnings=warnings)
    if outputs.save:
        note(f"wrote {save(after, Path(question.runs))}")
