"""What one rank did, in a form that Kineto and Chakra traces share, before ranks are joined into one graph."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from windtunnel.errors import InputFileError
from windtunnel.physics.graph.program import OpKind


class Communication(NamedTuple):
    """Says with whom an op meets. Two ops meet for what they name, never because they ran at about the same time."""

    op: int  # index into the ops of the rank
    group: Hashable  # communicator: its name and, where the trace gives them, its ranks
    sequence: int | None  # number within the communicator, None where only the order is known
    signature: Hashable  # collective, size, type: must agree among the members
    ranks: tuple[int, ...]  # members of the communicator, empty where the trace does not say
    n_members: int = 0  # of the communicator, 0 where the trace does not say
    pair: tuple[int, int, int] | None = None  # (source, destination, tag) of a send or receive


@dataclass
class RankOps:
    """Lists of n ops; those of one stream are in the order in which they run."""

    rank: int
    path: str
    kind: list[OpKind] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)  # index into stream_names
    stream_names: list[str] = field(default_factory=list)
    start_ns: list[int] = field(default_factory=list)  # on the rank's clock
    duration_ns: list[int] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    category: list[str] = field(default_factory=list)
    peer: list[Hashable | None] = field(default_factory=list)  # what kind of work exactly; None: like nothing else
    step: list[int] = field(default_factory=list)  # training step, -1: in none
    waits: list[tuple[int, int]] = field(default_factory=list)  # (op, op that must have ended)
    communications: list[Communication] = field(default_factory=list)
    openings: list[int] = field(default_factory=list)  # ops that stand for the time before a host thread's first call
    notes: list[str] = field(default_factory=list)

    def stream_of(self, name: str) -> int:
        """Add a stream; its number."""
        self.stream_names.append(name)
        return len(self.stream_names) - 1

    def add(
        self,
        kind: OpKind,
        stream: int,
        start_ns: int,
        duration_ns: int,
        label: str,
        category: str,
        peer: Hashable | None,
        step: int = -1,
    ) -> int:
        """Append an op to a stream; returns its index."""
        self.kind.append(kind)
        self.stream.append(stream)
        self.start_ns.append(start_ns)
        self.duration_ns.append(duration_ns)
        self.label.append(label)
        self.category.append(category)
        self.peer.append(peer)
        self.step.append(step)
        return len(self.kind) - 1


def rank_of_file(path: Path, stated: int | None, turn: int, ranks: Mapping[int, RankOps]) -> int:
    """The rank that a file is of: as it states, else by its turn. Raises InputFileError where another is of it."""
    rank = turn if stated is None else stated
    if rank in ranks:
        raise InputFileError(path, f"is of rank {rank}, as is {ranks[rank].path}", "give one trace per rank")
    return rank
