"""Ranks that go through one program in step, what they wait for, and what is seen of them while they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from windtunnel.real.emulate.peers.arrivals import Meeting, Ranks, Times
from windtunnel.real.emulate.peers.host_program import Event, HostProgram
from windtunnel.studies.programs.communication import Communication

Channel = tuple[object, ...]  # what a group's communications, or the messages of one direction, go through in order


class OtherReal(Protocol):
    """When other real ranks come where, as far as it is known. Steps count from the replay's begin."""

    @property
    def ranks(self) -> Sequence[int]:
        """The other real ranks."""

    def arrival_s(self, rank: int, step: int, place: int, call: Communication) -> float | None:
        """To its communication of that place; None: not yet. `NAN`: it does something else, and counts as virtual."""

    def has_ended_step(self, rank: int, step: int) -> bool:
        """Whether it is past that step."""


class Watched(NamedTuple):
    """Something that one rank does in the replay."""

    what: str  # compute | wait | communication
    step: int
    begin_s: float  # a communication: when this rank is there
    ended: float  # NaN of a communication: it is known once all are there
    call: Communication | None = None
    meeting: Meeting | None = None
    group: int = 0

    @property
    def start(self) -> float:
        """When the last member of a communication was there and the stream free; NaN while one is missing."""
        return self.begin_s if self.meeting is None else float(self.meeting.start[self.group])

    @property
    def finish(self) -> float:
        """When it was done; NaN while a member is missing."""
        return self.ended if self.meeting is None else float(self.meeting.finish[self.group])


@dataclass(slots=True, eq=False)
class Underway:
    """A communication that takes its ranks' own processors while it goes on."""

    meeting: Meeting
    groups: Ranks
    left: Times  # seconds of the processor that it still needs, of each rank
    since: Times  # until when these were paid for


@dataclass(slots=True)
class Cohort:
    """Ranks that go through one program in step."""

    number: int  # of its class
    program: HostProgram
    ranks: Ranks
    clock: Times  # of each rank
    factor: Times  # how many times longer each rank computes
    at: int = 0  # the next event
    step: int = 0
    sample: Ranks = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # which row of `seconds` each rank runs
    meetings: dict[tuple[int, int], tuple[Meeting, Ranks]] = field(
        default_factory=dict
    )  # (step, call) -> meeting, groups
    underway: list[Underway] = field(default_factory=list)
    uses: dict[tuple[Channel, str], int] = field(default_factory=dict)  # how often each side of a channel was used
    step_ends: list[Times] = field(default_factory=list)
    watchers: dict[int, list[Watched]] = field(default_factory=dict)  # place of a rank -> what it does
    real: bool = False  # one rank, which is real, and moves when that does
    begins: int = 0  # in this step

    @property
    def event(self) -> Event | None:
        """The next one, None at the step's end."""
        return self.program.events[self.at] if self.at < len(self.program.events) else None
