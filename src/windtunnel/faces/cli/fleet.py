"""`windtunnel fleet TRACE --cluster GPU:COUNT --policy ...`, and its sub-commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from windtunnel.errors import SpecError
from windtunnel.faces.cli.answered import answered
from windtunnel.faces.cli.flags import Command, Outputs
from windtunnel.faces.cli.output import give, note, noted, working, wrote
from windtunnel.files.write import check_writable, write_atomically, writing
from windtunnel.process import terminated_is_an_end
from windtunnel.questions.asked.fleet.further import FleetBeside, FleetFlows, FleetLive, FleetPack, FleetWhen
from windtunnel.questions.asked.fleet.study import Fleet

if TYPE_CHECKING:
    from windtunnel.studies.fleet.jobs.lint import LintAnswer

Executor = Annotated[str, Parameter(help="--seeds: serial, processes, ray or ray:ADDRESS (serial).")]
Emitted = Annotated[Path, Parameter(help="--emit: the folder that gets the files (fleet-config).")]
Folder = Annotated[Path, Parameter(help="Where a live run keeps its journal (fleet-live).")]
Logs = Annotated[Path, Parameter(help="Folder of logs and of what jobs save (fleet-beside).")]


def show_fleet(
    question: Fleet,
    outputs: Outputs,
    *,
    executor: Executor = "serial",
    emit_to: Emitted = Path("fleet-config"),
) -> None:
    """Answer, and print."""
    from windtunnel.faces.report.fleet import answer_document
    from windtunnel.studies.fleet.study import answer

    places = {"--rows": outputs.rows, "--report": outputs.report}
    flag = next((name for name, place in places.items() if place is not None), None)
    if question.seeds is None and executor != "serial":
        raise SpecError("--executor", executor, "it is for runs of one policy at several seeds: give --seeds too")
    if question.seeds is not None and flag is not None:
        raise SpecError(flag, str(places[flag]), "--seeds prints bands over runs: leave it out")
    for place in places.values():
        if place is not None:
            check_writable(place)
    with working("running"):
        fleet_answer = answer(question, executor, frontier=outputs.report is not None)
    for text in fleet_answer.notes:
        note(text)
    if outputs.json:
        noted(fleet_answer)
    if outputs.rows is not None:
        from windtunnel.studies.fleet.outcome import write_jobs

        with writing(outputs.rows):
            write_jobs(list(fleet_answer.outcomes), outputs.rows)
    give(question, fleet_answer, outputs, answer_document(fleet_answer))
    for name, text in fleet_answer.files.items():
        with writing(emit_to / name):
            emit_to.mkdir(parents=True, exist_ok=True)
        write_atomically(emit_to / name, text.encode())
        wrote(emit_to / name)


def show_when(question: FleetWhen, outputs: Outputs) -> None:
    """Answer, and print."""
    from windtunnel.faces.report.fleet import when_answer_document
    from windtunnel.studies.fleet.when import answer_when

    with working("running"):
        when_answer = answer_when(question)
    for text in when_answer.notes:
        note(text)
    give(question, when_answer, outputs, when_answer_document(when_answer))


def show_pack(question: FleetPack, outputs: Outputs) -> None:
    """Answer, and print."""
    from windtunnel.faces.report.fleet import pack_document
    from windtunnel.studies.fleet.packing.study import answer_pack

    if outputs.rows is not None:
        check_writable(outputs.rows)
    with working("packing"):
        pack_answer = answer_pack(question)
    if outputs.json:
        noted(pack_answer)
    if outputs.rows is not None:
        with writing(outputs.rows):
            pack_answer.write_rows(outputs.rows)
    give(question, pack_answer, outputs, pack_document(pack_answer))


def show_flows(question: FleetFlows, outputs: Outputs) -> None:
    """Answer, and print."""
    from windtunnel.faces.report.fleet import flows_document
    from windtunnel.studies.fleet.flows.study import answer_flows

    with working("moving flows"):
        flows_study = answer_flows(question)
    if outputs.rows is not None:
        flows_study.write_rows(outputs.rows)
    give(question, flows_study, outputs, flows_document(flows_study))
    if outputs.json:
        noted(flows_study)
    if outputs.rows is not None:
        wrote(outputs.rows)


def show_live(question: FleetLive, outputs: Outputs, *, out: Folder = Path("fleet-live")) -> int:
    """Answer, and print. The exit status is 1 where a job did not complete."""
    from windtunnel.studies.fleet.live.study import answer_live

    live_run = answer_live(question, out)
    from windtunnel.faces.report.fleet import live_document  # only now: jobs wait for a scheduler that starts again

    give(question, live_run, outputs, live_document(live_run))
    return _incomplete(live_run.jobs)


def show_beside(question: FleetBeside, outputs: Outputs, *, out: Logs = Path("fleet-beside")) -> int:
    """Answer, and print. The exit status is 1 where a job did not complete."""
    from windtunnel.faces.report.fleet_measured import beside_document
    from windtunnel.studies.fleet.live.beside import answer_beside

    if outputs.report is not None:
        check_writable(outputs.report)
    with terminated_is_an_end(), working("running beside the service"):
        beside_run = answer_beside(question, out)
    give(question, beside_run, outputs, beside_document(beside_run))
    return _incomplete(beside_run.jobs)


def _incomplete(jobs: Sequence[Mapping[str, object]]) -> int:
    return int(any(job["state"] != "completed" for job in jobs))


def _wrong(lint_answer: LintAnswer) -> int:
    """3 where something cannot be right."""
    return 3 if any(finding.severity == "error" for finding in lint_answer.findings) else 0


COMMANDS = (
    Command("fleet", show_fleet, ("report", "rows", "json", "full")),
    Command("fleet when", show_when, ("report", "json", "full")),
    Command("fleet pack", show_pack, ("report", "rows", "json", "full")),
    Command("fleet flows", show_flows, ("report", "rows", "json")),
    answered("fleet lint", "reading", ("report", "json"), status=_wrong),
    answered("fleet usage", "reading"),
    answered("fleet share", "fitting"),
    Command("fleet live", show_live),
    Command("fleet beside", show_beside, ("report", "json")),
)
