"""`windtunnel diagnose TRAIN.sh --cluster SPEC --log FILE`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.diagnosis import show_diagnosis
from windtunnel.faces.cli.flags import Below, Given, Outputs, command
from windtunnel.faces.cli.predict import plan_below
from windtunnel.questions.asked.diagnose import Diagnose


def diagnose_app(*, everything: bool = False) -> Callable[..., object]:
    """The verb; a framework's own file that --plan names is the one that advice is a diff of."""
    files: list[str] = []

    def below(given: Given) -> Below:
        files[:] = [path for name, path in given.files.items() if name == "plan"]
        return plan_below(given)

    def shown(
        question: Diagnose,
        outputs: Outputs,
        *,
        notes: tuple[str, ...] = (),
        save_anchor: Annotated[
            Path | None, Parameter(help="Write what was measured here, for predict --anchor.")
        ] = None,
    ) -> None:
        from windtunnel.studies.training.launch import is_native

        if question.launch is None and files and is_native(files[0]):
            question = replace(question, launch=files[0])
        show_diagnosis(question, outputs, notes, save_anchor)

    return command("diagnose", shown, ("report", "full", "json"), reader=below, everything=everything)
