"""What a rank computed between its communications, kept by the run that measured it for runs of ranks of other classes.

    windtunnel run --rank 1 --captured job --rows rank1.json ...
    windtunnel run --rank 0 --captured job --peer-times rank1.json ...

One typical step of the rank: its communications, its waits, and the seconds of computing before each, as JSON. Members
are kept once for each group.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.errors import InputFileError, SpecError, UserError
from windtunnel.real.emulate.peers.host_program import Event, HostProgram
from windtunnel.studies.programs.communication import Communication

if TYPE_CHECKING:
    from windtunnel.studies.programs.job import CapturedJob

FORMAT = "windtunnel times of a rank 1"
_REMEDY = "give a file that `windtunnel run --rows FILE` wrote"


def document(program: HostProgram, world_size: int) -> dict[str, object]:
    """A typical step as JSON holds it."""
    calls = [asdict(call) for call in program.calls]
    groups = {call["group"]: call.pop("members") for call in calls}
    return {
        "format": FORMAT,
        "rank": program.rank,
        "world_size": world_size,
        "groups": groups,
        "calls": calls,
        "events": [list(event) for event in program.events],
        "seconds": program.seconds.mean(axis=0).tolist(),
    }


def load_times(path: Path) -> tuple[HostProgram, int]:
    """The step and the world size that it was measured in.

    Raises:
        InputFileError: not such a file.
    """
    try:
        times = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputFileError(path, f"cannot be read ({error.strerror})", _REMEDY) from None
    except ValueError as error:
        raise InputFileError(path, f"not JSON ({error})", _REMEDY) from None
    if not isinstance(times, Mapping) or times.get("format") != FORMAT:
        raise InputFileError(path, "holds no times of a rank", _REMEDY)
    try:
        return program_of(times)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputFileError(path, f"was cut short or changed ({error!r})", _REMEDY) from None


def program_of(times: Mapping[str, Any]) -> tuple[HostProgram, int]:
    """The step of a file of times, and the world size. Raises KeyError, TypeError or ValueError where it is none."""
    members = {name: tuple(map(int, ranks)) for name, ranks in times["groups"].items()}
    calls = tuple(
        Communication(members=members[call["group"]], **{key: _tuple(value) for key, value in call.items()})
        for call in times["calls"]
    )
    events = tuple(Event(bool(waits), int(call), int(ago)) for waits, call, ago in times["events"])
    seconds = np.array(times["seconds"], dtype=np.float64)
    whole = seconds.shape == (len(events) + 1,) and bool((seconds >= 0.0).all())
    if not whole or not all(0 <= event.call < len(calls) for event in events):
        raise ValueError("events and seconds do not fit together")
    rank, world_size = int(times["rank"]), int(times["world_size"])
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}")
    return HostProgram(rank, calls, events, seconds[np.newaxis]), world_size


def by_class(job: CapturedJob, rank: int, paths: Sequence[Path]) -> dict[int, HostProgram]:
    """Measured programs by the captured rank that stands for their class.

    Raises:
        UserError: times of another job, of the real rank's own class, or of one class twice.
    """
    programs: dict[int, HostProgram] = {}
    for path in paths:
        program, world_size = load_times(path)
        if world_size != job.world_size:
            raise UserError(
                f"{path} was measured among {world_size} ranks, the captured job has {job.world_size}; give times of "
                "the same job"
            )
        captured = int(job.runs[program.rank])
        if captured == int(job.runs[rank]):
            raise SpecError(
                "--peer-times", str(path), f"is of rank {program.rank}, which runs what rank {rank} does: measured now"
            )
        if captured in programs:
            raise SpecError(
                "--peer-times", str(path), f"is of the class of rank {programs[captured].rank}, given already"
            )
        _check_calls(path, program, [op.communication for op in job.programs[captured].ops if op.communication])
        programs[captured] = program
    return programs


def _check_calls(path: Path, program: HostProgram, communications: Sequence[Communication]) -> None:
    captured = [call for call in communications if not call.is_control]
    both = zip(program.calls, captured, strict=False)
    # Another rank of the class has other groups and peers, and uneven exchanges carry other amounts.
    alike = [
        communication.kind == its.kind
        and (communication.bytes == its.bytes or communication.kind == "all_to_all" or communication.is_message)
        for communication, its in both
    ]
    if len(program.calls) != len(captured) or not all(alike):
        at = alike.index(False) if False in alike else len(alike)
        raise UserError(
            f"{path} is of another program: a step has {len(program.calls)} communications and the captured one "
            f"{len(captured)}, and number {at} differs; capture and measure the same script with the same arguments"
        )


def _tuple(value: object) -> Any:
    return tuple(value) if isinstance(value, list) else value
