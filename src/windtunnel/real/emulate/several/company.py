"""The other real ranks, as the replay of one of them sees them: when they come, what they compute, who is like them.

Each real rank replays the whole job for itself. In it the other real ranks come when they say that they do
(`board.py`), and every virtual rank runs the typical step that a real rank of its class measured: classes that have
several real ranks are dealt out among them. Each rank keeps its typical step where the others find it, anew whenever it
prices its own.

Classes are a captured job's; else, where the real ranks run one program, all ranks run it. Where they do not (stages of
a pipeline), a rank runs the program of that real rank which has its places in the groups that carry messages.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from windtunnel.real.emulate.peers.arrivals import places, roster
from windtunnel.real.emulate.peers.host_program import HostProgram
from windtunnel.real.emulate.peers.peer_times import document, program_of
from windtunnel.real.emulate.several.board import DONE, RUNS, WAITS, Board, tag_of
from windtunnel.studies.programs.communication import Communication

PATIENCE_S = 5.0  # for which all real ranks wait and nobody moves, before that is a hang
Classes = list[tuple[HostProgram, Sequence[int]]]
_NAN = float("nan")
_LOOK_S = 0.01


class Company:
    """The other real ranks, for one real rank."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        ranks: Sequence[int],
        world_size: int,
        class_of: Mapping[int, int] | None = None,
        others: Callable[[HostProgram], Sequence[tuple[HostProgram, Sequence[int]]]] | None = None,
    ) -> None:
        """`class_of` a captured job's ranks, and `others`: programs of classes without a real rank, from that job."""
        self.board = Board(folder, rank, ranks)
        self.rank = rank
        self.world_size = world_size
        self.first_step = 0  # of the replay
        self.lacks: list[int] = []  # real ranks whose step is not known yet
        self.not_alike = 0  # ranks that no real rank is like, and no captured job knows
        self._folder, self._class_of, self._captured = folder, class_of, others
        self._known: dict[int, tuple[float, HostProgram]] = {}
        self._still: tuple[tuple[int, ...], float] | None = None

    # ------------------------------------------------------------------------------- for the replay (`OtherReal`)

    @property
    def ranks(self) -> Sequence[int]:
        """The other real ranks."""
        return self.board.others

    def arrival_s(self, rank: int, step: int, place: int, call: Communication) -> float | None:
        """When a real rank came to a communication; NaN where it does something else than its program says."""
        arrival = self.board.at(rank, self.first_step + step, place)
        if arrival is not None:
            return arrival[0] if arrival[1] == tag_of(call) else _NAN
        return _NAN if self.board.has_ended(rank, self.first_step + step) else None

    def has_ended_step(self, rank: int, step: int) -> bool:
        """Whether it is past that step."""
        return self.board.has_ended(rank, self.first_step + step)

    # ------------------------------------------------------------------------------------------- for the conductor

    def shared_ranks(self, call: Communication) -> list[int]:
        """Other real ranks that a call is with."""
        with_whom = (call.peer,) if call.is_message else call.members
        return [rank for rank in self.ranks if rank in with_whom]

    def latest(self, ident: int, ranks: Sequence[int]) -> float | None:
        """When the last of these came to a communication; None: not all did."""
        times = [self.board.peer_arrival_s(rank, ident) for rank in ranks]
        arrivals = [at for rank, at in zip(ranks, times, strict=True) if at is not None]
        missing = [rank for rank, at in zip(ranks, times, strict=True) if at is None and not self.board.is_done(rank)]
        return None if missing else max(arrivals, default=float("-inf"))

    def keep(self, program: HostProgram) -> None:
        """Let the others know this rank's typical step."""
        path = self._path(self.rank)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(document(program, self.world_size)))
        partial.replace(path)

    def classes(self, own: HostProgram) -> Classes | None:
        """Who runs what; None while a real rank's step is not known."""
        programs = {self.rank: own}
        for rank in self.ranks:
            program = self._program(rank)
            if program is not None:
                programs[rank] = program
        self.lacks = [rank for rank in self.ranks if rank not in programs]
        if self.lacks:
            return None
        kinds = self._kinds(programs)
        classes: Classes = []
        has_class = np.zeros(self.world_size, dtype=bool)
        for kind in sorted(set(kinds.values())):
            alike = [rank for rank in sorted(programs) if kinds[rank] == kind]
            of_kind = [rank for rank in self._ranks_of(kind, alike, kinds, programs) if rank not in programs]
            has_class[of_kind] = True
            cuts = [len(of_kind) * at // len(alike) for at in range(len(alike) + 1)]
            for number, rank in enumerate(alike):
                classes.append((programs[rank], sorted((rank, *of_kind[cuts[number] : cuts[number + 1]]))))
        has_class[list(programs)] = True
        if self._captured is not None:
            for program, ranks in self._captured(own):
                left = [rank for rank in ranks if not has_class[rank]]
                has_class[left] = True
                if left:
                    classes.append((program, left))
        rest = np.flatnonzero(~has_class).tolist()
        self.not_alike = len(rest)
        if rest:
            classes.append((own, rest))
        return classes

    @property
    def is_whole(self) -> bool:
        """Whether every rank's program is known, so that both ends of a message can be waited for."""
        return not self.not_alike

    def _kinds(self, entry: Mapping[int, HostProgram]) -> dict[int, int]:
        """Real ranks by class: a captured job's, or the first real rank that runs the same calls."""
        if self._class_of is not None:
            return {rank: self._class_of[rank] for rank in entry}
        kinds: dict[int, int] = {}
        for rank, program in sorted(entry.items()):
            kinds[rank] = next((kind for kind in kinds.values() if _alike(entry[kind], program)), rank)
        return kinds

    def _ranks_of(
        self, kind: int, alike: Sequence[int], kinds: Mapping[int, int], programs: Mapping[int, HostProgram]
    ) -> list[int]:
        if self._class_of is not None:
            return [rank for rank in range(self.world_size) if self._class_of[rank] == kind]
        if len(set(kinds.values())) == 1:
            return list(range(self.world_size))
        groups = {call.members for program in programs.values() for call in program.calls if call.is_message}
        keys = np.zeros((self.world_size, 0), dtype=np.int64)
        for shape in sorted({tuple(places(roster(members, self.world_size))[1].tolist()) for members in groups}):
            keys = np.column_stack([keys, np.array(shape, dtype=np.int64)])
        wanted = {tuple(keys[rank]) for rank in alike}
        elsewhere = {tuple(keys[rank]) for rank in programs if rank not in alike}
        if not keys.shape[1] or wanted & elsewhere:
            return list(alike)
        return [rank for rank in range(self.world_size) if tuple(keys[rank]) in wanted]

    def _program(self, rank: int) -> HostProgram | None:
        path = self._path(rank)
        with suppress(FileNotFoundError):
            written = os.stat(path).st_mtime_ns
            if rank not in self._known or self._known[rank][0] != written:
                self._known[rank] = (written, program_of(json.loads(path.read_text()))[0])
        return self._known[rank][1] if rank in self._known else None

    def _path(self, rank: int) -> Path:
        return self._folder / f"times_{rank}.json"

    # -------------------------------------------------------------------------------------------- who waits for whom

    def waits(self, waits: bool) -> None:
        """This rank waits for what hangs on others, or goes on."""
        self.board.does(WAITS if waits else RUNS)
        if not waits:
            self._still = None

    def leave(self) -> None:
        """The script is at its end: stay until the others are, or are ended; who leaves closes its connections."""
        self.board.does(DONE)
        while not all(self.board.is_done(rank) for rank in self.ranks):
            time.sleep(_LOOK_S)

    def is_stuck(self) -> bool:
        """Whether all real ranks wait, and have for a while."""
        pulse = self.board.pulse()
        now = time.perf_counter()
        if pulse is None:
            self._still = None
        elif self._still is None or self._still[0] != pulse:
            self._still = (pulse, now)
        return self._still is not None and now - self._still[1] > PATIENCE_S


def _alike(host_program: HostProgram, other: HostProgram) -> bool:
    """Whether two real ranks run one program, each in its own groups."""
    if len(host_program.calls) != len(other.calls):
        return False
    return all(
        mine.kind == theirs.kind
        and len(mine.members) == len(theirs.members)
        and (mine.bytes == theirs.bytes or mine.is_message or mine.kind == "all_to_all")
        for mine, theirs in zip(host_program.calls, other.calls, strict=True)
    )
