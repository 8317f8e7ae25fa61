"""`windtunnel survive [MODEL] --cluster SPEC ...` and `windtunnel survive spot MACHINES.csv ...`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from windtunnel.faces.cli.flags import Command, Outputs
from windtunnel.faces.cli.output import give, note, working
from windtunnel.faces.cli.predict import plan_below
from windtunnel.files.write import write_atomically
from windtunnel.questions.asked.survive import Survive, SurviveSpot


def survive(
    question: Survive,
    outputs: Outputs,
    *,
    failures_out: Annotated[Path | None, Parameter(help="Write the failure process as YAML here.", show=False)] = None,
) -> None:
    """Answer, print, write."""
    from windtunnel.studies.resilience import process_to_yaml
    from windtunnel.studies.resilience import survive as survived
    from windtunnel.studies.survive import job_of

    with working("predicting"):
        _, job = job_of(question)
    if failures_out is not None:
        write_atomically(failures_out, process_to_yaml(job.process).encode())
        note(f"wrote {failures_out}")
    with working("surviving"):
        answer = survived(job)
    from windtunnel.faces.report.survival import survival_document

    model = "" if question.model is None else question.model.base
    give(question, answer, outputs, survival_document(answer, model))


def survive_spot(question: SurviveSpot, outputs: Outputs) -> None:
    """Answer, print, write: of rows, what the first policy decides in each minute."""
    from windtunnel.studies.survive import answer_spot

    with working("surviving"):
        answer = answer_spot(question)
    if question.model is None and len(answer.models) > 1:
        others = ", ".join(name for name in answer.models if name != answer.model)
        note(f"model {answer.model}; name another behind the machines: {others}")
    if outputs.rows is not None:
        write_atomically(outputs.rows, answer.decisions_csv().encode())
        note(f"wrote {outputs.rows}")
    from windtunnel.faces.report.survival import spot_document

    give(question, answer, outputs, spot_document(answer))


COMMANDS = (
    Command("survive", survive, ("report", "full", "json"), reader=plan_below),
    Command("survive spot", survive_spot, ("report", "rows", "full", "json")),
)
