"""The log of one rank: a memory-mapped file that can be read while its writer is stopped, and after kill -9.

    row 0        beat, events written, whether the rank has ended, rank, clock at which the log began
    other rows   kind, name, number, begun, ended        (a ring: the oldest are overwritten)

A beat is stamped every 50 ms by a thread: waiting in a collective releases the interpreter's lock, so beats go on. An
event is a collective (entered, left) or a segment of own work (begun, ended): input, forward, copy, garbage collection.
Writing one is two clock readings and a row of five numbers. Names, and who is in a group, stand in a text file beside
it.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError

ROWS, COLUMNS = 8192, 5
BEAT_S = 0.05
COLLECTIVE, SEGMENT = 1.0, 2.0
GARBAGE = "garbage collection"


class RankLog:
    """One rank's log, as its writer holds it."""

    def __init__(self, rows: NDArray[np.float64], names: Path) -> None:
        self.rows, self._names_path = rows, names
        self._codes: dict[str, int] = {}
        self._numbers: dict[str, int] = {}
        self._count = 0
        self._collecting = 0
        self._thread = 0

    @classmethod
    def create(cls, path: Path, rank: int = -1, groups: Mapping[str, Sequence[int]] | None = None) -> RankLog:
        """An empty log at `path`; `groups`: who is in each group that this rank is in."""
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = np.zeros((ROWS, COLUMNS))
        now = time.time()
        fresh[0] = now, 0.0, 0.0, rank, now
        names, part = _names_of(path), path.with_name(path.name + ".part")
        names.write_text("")
        fresh.tofile(part)
        part.replace(path)  # whoever reads logs meets whole ones
        log = cls(np.memmap(path, np.float64, "r+", shape=(ROWS, COLUMNS)), names)
        for name, members in (groups or {}).items():
            log._code(name, members)
        return log

    @staticmethod
    def last_beat(path: Path) -> float:
        """When the writer last stamped its beat, in seconds since the epoch; 0 where the file is not whole yet."""
        with path.open("rb") as file:
            data = file.read(8)
        return float(np.frombuffer(data, np.float64)[0]) if len(data) == 8 else 0.0

    def play(self, rank: int) -> None:
        """From now on this process is that rank."""
        self.rows[0, 3] = rank

    def start_beat(self) -> None:
        """Stamp the time from now on."""
        threading.Thread(target=self._beat, daemon=True, name="beat").start()

    def _beat(self) -> None:
        while not self.rows[0, 2]:
            self.rows[0, 0] = time.time()
            time.sleep(BEAT_S)

    def _code(self, name: str, members: Sequence[int] = ()) -> int:
        if name not in self._codes:
            self._codes[name] = len(self._codes)
            self._numbers[name] = 0
            with self._names_path.open("a") as file:
                file.write(f"{' '.join(name.split())}\t{','.join(map(str, members))}\n")
        return self._codes[name]

    def _begin(self, kind: float, name: str) -> int:
        code = self._code(name)
        row = 1 + self._count % (ROWS - 1)
        self.rows[row] = kind, code, self._numbers[name], time.time(), 0.0
        self._numbers[name] += 1
        self._count += 1
        self.rows[0, 1] = self._count
        return row

    @contextmanager
    def collective(self, group: str) -> Iterator[None]:
        """A collective of a group: entered, left. One that fails is never left."""
        row = self._begin(COLLECTIVE, group)
        yield
        self.rows[row, 4] = time.time()

    @contextmanager
    def segment(self, name: str) -> Iterator[None]:
        """A stretch of own work."""
        row = self._begin(SEGMENT, name)
        yield
        self.rows[row, 4] = time.time()

    def watch_garbage(self) -> None:
        """Log each garbage collection of this thread as a segment of its own."""
        self._thread = threading.get_ident()
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, _: object) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collecting = self._begin(SEGMENT, GARBAGE)
        elif self._collecting:
            self.rows[self._collecting, 4] = time.time()
            self._collecting = 0

    def end(self) -> None:
        """The rank ends as it should."""
        self.rows[0, 2] = 1.0
        if self._collected in gc.callbacks:
            gc.callbacks.remove(self._collected)


def _names_of(path: Path) -> Path:
    return path.with_name(path.name + ".names")


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank's log as it is read: events in order, oldest first."""

    rank: int
    beat_s: float
    ended: bool
    names: tuple[str, ...]
    members: Mapping[str, tuple[int, ...]]  # of groups that were declared
    events: NDArray[np.float64]  # (n, 5): kind, name, number, begun, ended

    def of_kind(self, kind: float) -> NDArray[np.float64]:
        """Collectives or segments alone."""
        chosen: NDArray[np.float64] = self.events[self.events[:, 0] == kind]
        return chosen


def read_logs(folder: Path) -> list[RankView]:
    """Every rank's log under `folder`, by rank. Raises InputFileError where there is none, or one is damaged."""
    paths = sorted(folder.glob("*.log")) if folder.is_dir() else []
    if not paths:
        raise InputFileError(
            folder, "holds no logs of ranks", "give the folder that windtunnel.real.survive.RankLog writes to"
        )
    views = [_read(path) for path in paths]
    return sorted((view for view in views if view.rank >= 0), key=lambda view: view.rank)


def _read(path: Path) -> RankView:
    data = np.fromfile(path, np.float64)
    if data.size != ROWS * COLUMNS:
        raise InputFileError(path, "is no log of a rank, or cut off", "let its rank write it anew")
    rows = data.reshape(ROWS, COLUMNS)
    count = int(rows[0, 1])
    entries = rows[1 : 1 + min(count, ROWS - 1)]
    if count > ROWS - 1:
        entries = np.roll(entries, -(count % (ROWS - 1)), axis=0)
    names, members = [], {}
    for line in _names_of(path).read_text().splitlines():
        name, _, ranks = line.partition("\t")
        names.append(name)
        if ranks:
            members[name] = tuple(map(int, ranks.split(",")))
    return RankView(int(rows[0, 3]), float(rows[0, 0]), bool(rows[0, 2]), tuple(names), members, entries)
