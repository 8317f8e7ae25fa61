"""One step of a rank through the eyes of its host: where it begins communications, where it waits, what it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.programs.communication import Communication


class Event(NamedTuple):
    """Something that the host does at a communication."""

    waits: bool  # else it begins
    call: int  # of the step's calls
    steps_ago: int = 0  # a wait for something that an earlier step began


@dataclass(frozen=True, eq=False)
class HostProgram:
    """One step of one class of ranks, through the eyes of `rank`."""

    rank: int
    calls: tuple[Communication, ...]
    events: tuple[Event, ...]
    seconds: NDArray[np.float64]  # [samples, events + 1]: computing before each event and after the last

    def __post_init__(self) -> None:
        samples, parts = self.seconds.shape
        assert samples > 0
        assert parts == len(self.events) + 1


def resembles(communication: Communication, other: Communication) -> bool:
    """Whether two calls are the same call of two steps: uneven exchanges may carry other amounts."""
    if (communication.kind, communication.group, communication.peer, communication.tag) != (
        other.kind,
        other.group,
        other.peer,
        other.tag,
    ):
        return False
    return communication.bytes == other.bytes or communication.kind == "all_to_all" or communication.is_message
