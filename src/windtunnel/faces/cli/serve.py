"""`windtunnel serve MODEL --cluster ...`, and its sub-commands."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.answered import answered
from windtunnel.faces.cli.flags import OUTPUT, Below, Command, FlagValues, Outputs, Reader
from windtunnel.faces.cli.output import give, note, working, wrote
from windtunnel.files.write import check_timeline, check_writable, write_atomically
from windtunnel.questions.asked.serve.listen import ServeListen
from windtunnel.questions.asked.serve.parts import Apart
from windtunnel.questions.asked.serve.plan import PlanMethod, ServePlan
from windtunnel.questions.asked.serve.pool import ServePool
from windtunnel.questions.asked.serve.study import Serve

if TYPE_CHECKING:
    from windtunnel.studies.serving.launch.manifests import Form
    from windtunnel.studies.serving.placement.plan import ServingPlans
    from windtunnel.studies.serving.study import ServingAnswer


def show_serve(question: Serve, outputs: Outputs, *, notes: tuple[str, ...] = ()) -> None:
    """Answer, and print. `notes`: what is not modelled of a command line."""
    from windtunnel.studies.serving.study import answer

    _check_places(question, outputs)
    with working("serving"):
        served = answer(question, curve=outputs.report is not None, timeline=outputs.trace is not None)
    served = replace(served, warnings=(*notes, *served.warnings))
    _print_served(question, served, outputs)


EMIT = (
    "Write how to start the best plan: vllm (command lines), dynamo or llm-d (manifests); over files of the same names"
    " in ./deploy, or in --out FOLDER."
)
OUT = "Folder where that goes (deploy)."


def show_plan(
    question: ServePlan,
    outputs: Outputs,
    *,
    notes: tuple[str, ...] = (),
    emit: Annotated[Literal["vllm", "dynamo", "llm-d"] | None, Parameter(help=EMIT, group=OUTPUT)] = None,
    out: Annotated[Path, Parameter(help=OUT, group=OUTPUT, show=False)] = Path("deploy"),
) -> None:
    """Answer, and print."""
    from windtunnel.faces.report.serving.placement import placed_document, plans_document
    from windtunnel.studies.serving.placement.answer import PlacementAnswer
    from windtunnel.studies.serving.placement.plan import ServingPlans
    from windtunnel.studies.serving.study import answer_plan

    if isinstance(question.replicas, PlanMethod):
        for flag, place in (("--trace", outputs.trace), ("--rows", outputs.rows)):
            if place is not None:
                raise SpecError(flag, str(place), "has no meaning beside --method: leave it out")
    _check_places(question, outputs)
    with working("searching"):
        plan = answer_plan(question, curve=outputs.report is not None, timeline=outputs.trace is not None)
    plan = replace(plan, warnings=(*notes, *plan.warnings))
    if emit is not None and not isinstance(plan, ServingPlans):
        raise SpecError("--emit", emit, "writes a plan for a rate: add --rate, and leave the layout open")
    if isinstance(plan, ServingPlans):
        if emit is not None:
            _emit(plan, emit, question.model, out)
        give(question, plan, outputs, plans_document(plan))
    elif not isinstance(plan, PlacementAnswer):
        _print_served(question, plan, outputs)
    else:
        give(question, plan, outputs, placed_document(plan))


def _emit(serving_plans: ServingPlans, form: Form, model: str, folder: Path) -> None:
    from windtunnel.studies.serving.launch.manifests import files_of

    for name, text in files_of(form, model, serving_plans.sides()).items():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / name, text.encode())
        wrote(folder / name)


def _started_by(verb: str) -> Reader:
    """What reads a command line of an engine, or a manifest, in the place of the model."""

    def reader(command_line: FlagValues) -> Below:
        from windtunnel.studies.serving.launch.question import started

        text = str(command_line.flags.get("model", ""))
        parts = started(verb, text, rate_is_given=command_line.flags.get("rate") is not None)
        if parts is None:
            return Below({})
        below = {name: part for name, part in (("engine", parts.engine), ("replicas", parts.replicas)) if part}
        return Below(below, parts.notes, text[:80], instead={"model": parts.model})

    return reader


def _check_places(question: Serve | ServePlan, outputs: Outputs) -> None:
    if outputs.trace is not None and isinstance(question.replicas, Apart):
        raise SpecError("--trace", str(outputs.trace), "has no meaning beside --prefill and --decode: leave it out")
    for place in (outputs.rows, outputs.report):
        if place is not None:
            check_writable(place)
    if outputs.trace is not None:
        check_timeline(outputs.trace)


def _print_served(question: Serve | ServePlan, served: ServingAnswer, outputs: Outputs) -> None:
    from windtunnel.faces.report.serving.views import served_document

    result = served.result
    if outputs.rows is not None:
        write_atomically(outputs.rows, result.requests_csv().encode())
        wrote(outputs.rows)
    if outputs.trace is not None:
        from windtunnel.faces.report.serving.trace import write_trace

        write_trace(result.timeline, outputs.trace)
        wrote(outputs.trace)
    give(question, served, outputs, served_document(served))


def show_pool(question: ServePool, outputs: Outputs) -> None:
    """Answer, and print."""
    from windtunnel.faces.report.serving.views import pool_document, weight_pool_document
    from windtunnel.studies.serving.shared_pool.result import PoolResult
    from windtunnel.studies.serving.study import answer_pool

    with working("serving"):
        pool = answer_pool(question)
    answer = pool.to_dict()
    grouped = isinstance(pool, PoolResult)
    document = pool_document(answer, question.pool.rpartition("/")[2]) if grouped else weight_pool_document(answer)
    give(question, pool, outputs, document)


def show_listen(question: ServeListen, outputs: Outputs, *, notes: tuple[str, ...] = ()) -> None:
    """Listen until interrupted. `notes`: what is not modelled of a command line."""
    from windtunnel.http_guard import TOKEN_VARIABLE
    from windtunnel.studies.serving.study import listen

    def announce(where: str, token: str) -> None:
        shown = f"of {TOKEN_VARIABLE}" if os.environ.get(TOKEN_VARIABLE) else token
        key = f"; clients send the token {shown} (`api_key`, Authorization: Bearer)" if token else ""
        note(f"{question.model.base} is at {where}/v1{key} (Ctrl-C ends it)")

    for text in notes:
        note(text)
    listen(question, announce)


FILES = ("report", "trace", "rows", "json", "full")
COMMANDS = (
    Command("serve", show_serve, FILES, reader=_started_by("serve")),
    Command("serve plan", show_plan, FILES, reader=_started_by("serve plan")),
    *(answered(verb, "serving", reader=_started_by(verb)) for verb in ("serve policies", "serve spot", "serve scale")),
    Command("serve pool", show_pool, ("report", "json", "full")),
    answered("serve real", "serving for real"),
    Command("serve listen", show_listen, (), reader=_started_by("serve listen")),
)
