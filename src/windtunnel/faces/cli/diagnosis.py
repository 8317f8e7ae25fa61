"""A diagnosis, asked and shown: what `diagnose` and `predict --measured` do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.flags import Outputs
from windtunnel.faces.cli.output import give, note, working
from windtunnel.questions.asked.diagnose import Diagnose


def show_diagnosis(
    question: Diagnose,
    outputs: Outputs,
    *,
    notes: tuple[str, ...] = (),
    save_anchor: Annotated[Path | None, Parameter(help="Write what was measured here, for predict --anchor.")] = None,
) -> None:
    """Answer, print, write."""
    from windtunnel.faces.report.own_run import diagnose_document
    from windtunnel.files.write import write_atomically
    from windtunnel.studies.diagnose import answer

    with working("reading, predicting, trying changes of the plan"):
        diagnosis = answer(question, notes)
    give(question, diagnosis, outputs, diagnose_document(diagnosis), noting=False)
    if save_anchor is not None:
        write_atomically(save_anchor, diagnosis.anchor(as_json=save_anchor.suffix.lower() == ".json").encode())
        note(f"wrote {save_anchor}; use it with: windtunnel predict ... --anchor {save_anchor}")
