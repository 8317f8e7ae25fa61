"""`windtunnel predict MODEL --cluster SPEC ...`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.flags import Below, Command, FlagValues, Outputs
from windtunnel.faces.cli.output import note, print_json, show, stdout, working
from windtunnel.files.write import check_timeline
from windtunnel.questions.asked.parts.plan import Plan, Script
from windtunnel.questions.asked.predict import Predict
from windtunnel.questions.fields import fields_of
from windtunnel.questions.words import settings

if TYPE_CHECKING:
    from windtunnel.physics.step.result import Result

INFEASIBLE = 3
OPS_IN_JSON = Path("json")  # as `--rows` says it
OUTPUTS = ("report", "trace", "rows", "full", "json", "out", "save")
PLAN_FIELDS = frozenset(field.path.replace("_", "-") for field in fields_of(Plan))
SCRIPT_FIELDS = frozenset(field.path.replace("_", "-") for field in fields_of(Script))


def plan_below(command_line: FlagValues, cut_by: frozenset[str] = frozenset()) -> Below:
    """What a plan file, or a framework's own file in place of a model, says below the flags.

    `cut_by`: flags by which a captured script may be cut anew. Raises SpecError on one that means nothing to it.
    """
    from windtunnel.studies.predict import SCRIPT_HAS_IT, is_captured
    from windtunnel.studies.training.question import plan_file

    model, file = str(command_line.flags.get("model", "")), command_line.files.get("plan")
    if is_captured(model):
        refused = {"plan": file} | {name: command_line.flags.get(name) for name in PLAN_FIELDS - SCRIPT_FIELDS - cut_by}
        for name, value in sorted(refused.items()):
            if value is not None:
                raise SpecError(f"--{name}", str(value), SCRIPT_HAS_IT)
        return Below({})
    stated = plan_file(
        model,
        str(command_line.flags.get("cluster", "")),
        None if file is None else Path(file),
        settings(command_line.sets),
    )
    return Below({"plan": stated.fields} if stated.fields else {}, stated.notes, stated.path)


def predict(
    question: Predict,
    outputs: Outputs,
    *,
    notes: tuple[str, ...] = (),
    advice: Annotated[
        bool, Parameter(negative="--no-advice", help="Predict what would make it faster, or make it fit, as well.")
    ] = True,
    measured: Annotated[
        str | None, Parameter(help="Step time that you measured, e.g. 11s: what `diagnose` says of it.", show=False)
    ] = None,
    brief: Annotated[
        bool, Parameter(negative="", help="With --json: leave out what happens when inside the step.", show=False)
    ] = False,
    launch_flags: Annotated[
        Literal["megatron", "torchtitan", "deepspeed", "accelerate"] | None,
        Parameter(help="Print the plan as that framework is launched with it, too.", show=False),
    ] = None,
) -> int:
    """Answer, print, write. The exit status is 3 for a job that does not fit in memory."""
    from windtunnel.studies.predict import answer_at_first, is_captured

    if measured is not None:
        from windtunnel.faces.cli.diagnosis import show_diagnosis
        from windtunnel.studies.diagnose import with_measured
        from windtunnel.units import parse_time

        show_diagnosis(with_measured(question, parse_time(measured, "--measured")), outputs, notes=notes)
        return 0
    files: dict[Path, str] = {}
    places = {"--report": outputs.report, "--trace": outputs.trace, "--rows": outputs.rows}
    for name, path in places.items():
        if path is not None and path != OPS_IN_JSON and (other := files.setdefault(path.resolve(), name)) != name:
            raise SpecError(name, str(path), f"is the file of {other} too; give each a name of its own")
    if outputs.trace is not None:
        check_timeline(outputs.trace)
    if question.price is not None and question.tokens is None:
        raise SpecError("--price", question.price, "give --tokens as well, e.g. --tokens 15T")
    if outputs.rows is not None:
        check_rows(outputs.rows, question, json=outputs.json)
    if brief and not outputs.json:
        raise SpecError("--brief", "given", "add --json")
    if launch_flags is not None and is_captured(question.model.base):
        raise SpecError("--launch-flags", launch_flags, "a captured script has its own flags: name a model instead")
    with_them = f"predicting without and with {', '.join(question.technique)}" if question.technique else "predicting"
    with working(with_them):
        result, advised = answer_at_first(question, notes)
    if outputs.json and advice:
        with working("trying changes of the plan"):
            result = advised()
    whole = None if question.tokens is None else training_run(result, question.tokens, question.price)
    rows = [] if outputs.rows is None else op_rows_of(question)
    # Printed first: a finished answer is not lost where it cannot be written.
    if outputs.json:
        from windtunnel.faces.report.prediction.document import TRAINING_RUN, to_document
        from windtunnel.faces.report.prediction.document import brief as without_timelines

        more: dict[str, object] = {} if whole is None else {TRAINING_RUN: whole}
        if outputs.rows == OPS_IN_JSON:
            more["ops"] = rows
        if launch_flags is not None:
            from windtunnel.studies.training.launch import launch_of

            more["launch"] = launch_of(launch_flags, result)
        document = to_document(result)
        print_json((without_timelines(document) if brief else document) | more)
    else:
        from windtunnel.faces.report.draw.console import print_views
        from windtunnel.faces.report.prediction.views import advice_views, prediction_document, training_run_view
        from windtunnel.views import Files

        show(prediction_document(result), full=outputs.full)
        if whole is not None:
            print_views([training_run_view(whole)], stdout())
        if launch_flags is not None:
            from windtunnel.studies.training.launch import launch_of

            print_views([Files("Launched with", list(launch_of(launch_flags, result).items()))], stdout())
        if advice:  # behind the answer, which need not wait for a hundred others
            sys.stdout.flush()
            with working("trying changes of the plan"):
                result = advised()
            print_views(advice_views(result), stdout())
    written = []
    if outputs.report is not None:
        from windtunnel.faces.report.documents import write_report

        write_report(result, outputs.report)
        written.append(outputs.report)
    if outputs.trace is not None:
        from windtunnel.faces.report.prediction.trace import write_trace

        write_trace(result, outputs.trace)
        written.append(outputs.trace)
    if outputs.rows is not None and outputs.rows != OPS_IN_JSON:
        from windtunnel.studies.training.op_table import write_ops

        write_ops(rows, outputs.rows)
        written.append(outputs.rows)
    if outputs.save:
        from windtunnel.faces.report.run_folder import save as save_run

        written.append(save_run(result, outputs.out))
    samples = question.scenario.samples
    if samples and (result.disturbed is None or result.disturbed.samples is None):
        note("--samples changes nothing: nothing is random; add --jitter, --lengths, or --slow with noise or a pause")
    for path in written:
        note(f"wrote {path}")
    return INFEASIBLE if result.status == "infeasible" else 0


def check_rows(rows: Path, question: Predict, *, json: bool) -> None:
    """Refuse, before anything is predicted, a `--rows` that cannot be answered. Raises SpecError."""
    from windtunnel.studies.predict import is_captured

    if rows != OPS_IN_JSON and rows.suffix != ".parquet":
        raise SpecError("--rows", str(rows), "name a .parquet file, or say json together with --json")
    if rows == OPS_IN_JSON and not json:
        raise SpecError("--rows", str(rows), "add --json, or name a .parquet file")
    if is_captured(question.model.base):
        remedy = "leave it out: the table is of a model with a plan, not of a captured script"
        raise SpecError("--rows", str(rows), remedy)
    if question.technique:
        raise SpecError("--rows", str(rows), "the table is of plans without a technique: leave one out")


def op_rows_of(question: Predict) -> list[dict[str, object]]:
    """Rows of `training.op_table` for what `predict` is asked."""
    from windtunnel.studies.training.op_table import op_rows
    from windtunnel.studies.training.question import cluster_of, model_of

    cluster = cluster_of(question.cluster)
    assert isinstance(question.plan, Plan), "predicted"
    return op_rows(model_of(question.model, cluster.n_gpus), cluster, question.plan)


def training_run(result: Result, count: int, price: float | None) -> dict[str, float]:
    """Days, GPU-hours and cost of a whole training at the predicted step, with its band; failures not counted."""
    if not result.tokens_per_step:
        raise SpecError("--tokens", count, "leave it out: how many tokens a step of this script has is not known")
    steps = -(-count // result.tokens_per_step)
    totals: dict[str, float] = {"tokens": count, "steps": steps}
    bands = {"": result.step_time_ns, "_p5": result.step_time_p5_ns, "_p95": result.step_time_p95_ns}
    for name, step_ns in bands.items():
        hours = steps * step_ns / 3.6e12
        totals[f"days{name}"], totals[f"gpu_hours{name}"] = hours / 24.0, hours * result.n_gpus
        if price is not None:
            totals[f"cost{name}"] = hours * result.n_gpus * price
    return totals


COMMANDS = (Command("predict", predict, OUTPUTS, reader=plan_below),)
