"""`windtunnel run [torchrun's options] train.py ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.faces.cli.flags import Command, Outputs
from windtunnel.faces.cli.output import note, print_answered, stdout, wrote
from windtunnel.files.write import check_timeline
from windtunnel.questions.asked.capture import Run

if TYPE_CHECKING:
    from windtunnel.real.emulate.run import Outcome


def run(question: Run, outputs: Outputs) -> int:
    """Run, print, write: of rows, what a rank computed, for runs of ranks unlike it (--peer-times)."""
    from windtunnel.faces.report.emulation_console import report_lines
    from windtunnel.real.emulate.question import doubts, emulated, emulation_of

    if outputs.trace is not None:
        check_timeline(outputs.trace)
    emulation = emulation_of(question, aside=outputs.json)
    for text in doubts(emulation.cluster) if emulation.cluster else ():
        note(text)
    answer = emulated(emulation)
    if answer.failed is not None:
        rank, outcome = answer.failed
        if emulation.ranks:
            note(f"rank {rank} ended first; the other real ranks were ended with it")
        return _failed(outcome)
    outcome = answer.outcomes[emulation.rank]
    if outputs.json:
        print_answered(question, answer)
    elif emulation.tape is not None and emulation.tape[0] == "record":
        tape = outcome.facts["tape"]
        note(f"wrote {emulation.tape[1]}: {tape['communications']:,} communications, {tape['bytes']:,} bytes")
    else:
        shown = answer.outcomes if emulation.ranks else outcome
        lines = report_lines(emulation, shown, answer.predicted_step_s)
        console = stdout()
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)
    for path in () if outputs.rows is None else answer.write_times(outputs.rows):
        wrote(path)
    if outputs.trace is not None:
        answer.write_trace(outputs.trace)
        wrote(outputs.trace)
    return 0


def _failed(outcome: Outcome) -> int:
    """Say what ended the script; its own status, or 1."""
    if outcome.details:
        note(outcome.details.rstrip())
    if outcome.status == "exit":
        return int(outcome.exit_status)
    at = f"{outcome.place}: " if outcome.place else ""
    note(f"windtunnel: error: {at}{outcome.message}")
    if outcome.status == "out of memory":
        note(f"out of memory at {outcome.facts.get('op') or 'an unknown op'}")
        memory = outcome.facts.get("memory")
        if memory:
            note(f"peak until then: {memory['allocated_bytes']:,} bytes allocated")
    return {"refused": 2, "interrupted": 130}.get(outcome.status, 1)


COMMANDS = (Command("run", run, ("trace", "rows", "json")),)
