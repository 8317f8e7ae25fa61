"""When each real rank came to each of its communications: one file a rank, which it writes and all others read.

The file is a ring of records in shared memory; nobody locks. A record is whole once its number is there, and its number
is written last. All processes read one clock (`time.perf_counter` is the machine's since it started), so times of one
rank mean the same to another.

    place   (step, number): the number-th communication of that step of the rank that wrote it
    ident   names the communication to all its members: the same on both ends of a message
    tag     of its kind and size: whether it is the one that a program expects there
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.programs.communication import Communication

RECORDS = 1 << 15  # a rank that is so many communications ahead of a reader is not read any more
KEPT_STEPS = 3  # that a reader remembers
END = 0  # ident of a step's end
RUNS, WAITS, DONE = 0, 1, 2
_RECORD = np.dtype([("ident", "u8"), ("at", "f8"), ("step", "i8"), ("place", "i8"), ("tag", "u8"), ("number", "i8")])
_HEAD = 64  # bytes before the records: what the rank is doing


class Board:
    """The files of all real ranks, as one of them sees them."""

    def __init__(self, folder: Path, rank: int, ranks: Sequence[int]) -> None:
        self.rank, self.others = rank, tuple(other for other in ranks if other != rank)
        self._mine = _Page(folder, rank, writes=True)
        self._theirs = {other: _Page(folder, other, writes=False) for other in self.others}
        self._counts: dict[tuple[object, ...], int] = {}
        self._group_numbers: dict[tuple[int, ...], list[str]] = {}

    # ------------------------------------------------------------------------------------------------------ own

    def record_arrival(self, call: Communication, ident: int, step: int, place: int, at: float) -> None:
        """This rank came to a communication."""
        self._mine.write(ident, at, step, place, tag_of(call))

    def record_step_end(self, step: int, places: int, at: float) -> None:
        """This rank ended a step of so many communications."""
        self._mine.write(END, at, step, places, 0)

    def does(self, what: int) -> None:
        """Whether this rank runs, waits for what is not known yet, or is done."""
        self._mine.state = what

    def ident(self, call: Communication) -> int:
        """A name for the next communication of its kind that is the same on all its members. Counts: ask once."""
        names = self._group_numbers.setdefault(call.members, [])
        if call.group not in names:
            names.append(call.group)
        key: tuple[object, ...] = (call.members, names.index(call.group))
        if call.is_message:
            me = call.members[call.position]
            key = (*key, *((me, call.peer) if call.kind == "send" else (call.peer, me)), call.tag)
        count = self._counts[key] = self._counts.get(key, -1) + 1
        return zlib.crc32(repr((*key, count)).encode()) + (1 << 32)

    # --------------------------------------------------------------------------------------------------- others

    def at(self, rank: int, step: int, place: int) -> tuple[float, int] | None:
        """When a rank came to its communication of that place, and its tag; None: not yet, or long ago."""
        page = self._theirs[rank]
        page.read()
        return page.places.get((step, place))

    def has_ended(self, rank: int, step: int) -> bool:
        """Whether it is past that step."""
        page = self._theirs[rank]
        page.read()
        return page.ended >= step or page.state == DONE

    def peer_arrival_s(self, rank: int, ident: int) -> float | None:
        """When a rank came to a communication of which this rank is a member too."""
        page = self._theirs[rank]
        page.read()
        return page.idents.get(ident)

    def is_done(self, rank: int) -> bool:
        """Whether its script has ended."""
        return self._theirs[rank].state == DONE

    def pulse(self) -> tuple[int, ...] | None:
        """Changes as long as anybody moves; None while somebody computes."""
        if any(page.state == RUNS for page in self._theirs.values()):
            return None
        return tuple(page.count_written for page in self._theirs.values())


class _Page:
    """The file of one rank."""

    def __init__(self, folder: Path, rank: int, *, writes: bool) -> None:
        path = folder / f"came_{rank}"
        size = _HEAD + RECORDS * _RECORD.itemsize
        # Whoever is first makes it: a file of zeros, in which no record is numbered.
        with open(path, "ab") as file:
            file.truncate(size)
        whole: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r+" if writes else "r", shape=(size,))
        self._head = whole[:_HEAD].view(np.int64)
        self._records = whole[_HEAD:].view(_RECORD)
        self._next = 1
        self.ended = -1
        self.places: dict[tuple[int, int], tuple[float, int]] = {}
        self.idents: dict[int, float] = {}
        self._of_step: dict[int, list[int]] = {}

    @property
    def state(self) -> int:
        return int(self._head[0])

    @state.setter
    def state(self, what: int) -> None:
        self._head[0] = what

    @property
    def count_written(self) -> int:
        return int(self._head[1])

    def write(self, ident: int, at: float, step: int, place: int, tag: int) -> None:
        number = int(self._head[1]) + 1
        record = self._records[number % RECORDS]
        record["number"] = 0
        for name, value in (("ident", ident), ("at", at), ("step", step), ("place", place), ("tag", tag)):
            record[name] = value
        record["number"] = number
        self._head[1] = number

    def read(self) -> None:
        written = int(self._head[1])
        if written - self._next >= RECORDS:
            self._next = written - RECORDS // 2  # what is overwritten is not known any more
        while self._next <= written:
            record = self._records[self._next % RECORDS]
            if int(record["number"]) != self._next:
                return
            ident, step, at = int(record["ident"]), int(record["step"]), float(record["at"])
            if ident == END:
                self.ended = max(self.ended, step)
                self._forget(step - KEPT_STEPS)
            else:
                self.places[step, int(record["place"])] = (at, int(record["tag"]))
                self.idents[ident] = at
                self._of_step.setdefault(step, []).append(ident)
            self._next += 1

    def _forget(self, step: int) -> None:
        for old in [number for number in self._of_step if number <= step]:
            for ident in self._of_step.pop(old):
                self.idents.pop(ident, None)
            for key in [key for key in self.places if key[0] <= old]:
                del self.places[key]


def tag_of(call: Communication) -> int:
    """The same for one call of two steps: messages and uneven exchanges may carry other amounts."""
    size = 0 if call.is_message or call.kind == "all_to_all" else call.bytes
    return zlib.crc32(f"{call.kind}/{size}".encode())
