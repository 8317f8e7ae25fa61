"""What a rank calls of `torch.distributed` from the start of the script, line by line; and what it reads too early."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from windtunnel.real.capture.fake_tensors.control_flow import call_site
from windtunnel.real.capture.recorder.rows import COMMUNICATION, Flight, Rows, is_aside
from windtunnel.real.capture.virtual_world.groups import Group
from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.rank_classes.findings import CORRUPT, CallEntry, CallLog, Finding, GroupEntry

MOST_ENTRIES = 1 << 20
MOST_RACES = 8


class CallJournal:
    """Of one recorder. `is_guessed` says whether a size may be made up by now."""

    def __init__(self, rank: int, world_size: int, rows: Rows, is_guessed: Callable[[], bool]) -> None:
        self._world_size, self._rows, self._is_guessed = world_size, rows, is_guessed
        self._log = CallLog(rank)
        self._numbers: dict[tuple[str, int], int] = {}  # (torch's name, id of the members) -> group of the log
        self._keep: list[tuple[int, ...]] = []
        self._ops: list[int] = []  # of each entry: the op that comes next
        self._bounds: list[int] = []  # op with which each step ends
        self._races: dict[tuple[str, str], Finding] = {}
        self.line = ""  # of the last call
        self.is_loose = False  # threads beside the main one still had something to call at the end

    # ---- calls

    def note_call(self, call: Communication, group: object) -> None:
        """A call is made. `group`: the world's, if there is one."""
        self.line = call_site(3)
        number = self._numbers.get((call.group, id(call.members)))
        if number is None:
            number = self._numbers[call.group, id(call.members)] = len(self._log.groups)
            self._keep.append(call.members)
            name = str(getattr(group, "title", "") or "")
            self._log.groups.append(GroupEntry(name, call.members, getattr(group, "ordinal", 0)))
        place = call.members.index(call.peer) if call.peer in call.members else -1
        aside = is_aside()
        module = "" if aside else self._rows.where.place_of(()).module
        entry = CallEntry(
            *(0, number, call.kind, call.bytes, call.dtype, call.reduce_op, place, call.tag),
            *(call.sent_bytes, call.received_bytes, call.is_control, self._is_guessed(), self.line, module),
            is_aside=aside,
        )
        self._append(entry)

    def note_together(self, kind: str, group: Group) -> None:
        """All of a group call what is not played, and costs nothing here: a distributed checkpoint."""
        self.note_call(Communication(kind, group.name, group.members, group.position, 0, is_control=True), group)

    def note_set_up(self, kind: str, about: str) -> None:
        """All ranks make a group, or initialise."""
        self._append(CallEntry(0, -1, kind, line=call_site(3), about=about))

    def _append(self, entry: CallEntry) -> None:
        if len(self._ops) < MOST_ENTRIES:
            self._log.entries.append(entry)
            self._ops.append(self._rows.count())

    # ---- steps

    def end_step(self, bound: int) -> None:
        """A step ended before this op."""
        self._bounds.append(bound)

    def forget_steps(self) -> None:
        """What ended so far were no steps."""
        self._bounds.clear()

    def log(self, *, is_partial: bool = False, is_over: bool = False, steps: int | None = None) -> CallLog:
        """All calls of whole steps, or of the first `steps`; all of a script that is over, ended none or still runs."""
        bounds = self._bounds[:steps] if steps else self._bounds
        last = bounds[-1] if bounds and not is_partial and not is_over else None
        entries = [
            entry._replace(step=bisect_right(self._bounds, op))
            for entry, op in zip(self._log.entries, self._ops, strict=True)
            if last is None or op < last or entry.is_aside  # whenever a thread comes to it
        ]
        cut = 0 if is_partial or len(bounds) == len(self._bounds) else len(bounds)
        return CallLog(self._log.rank, self._log.groups, entries, is_partial, cut, self.is_loose or cut > 0)

    # ---- races

    def note_race(self, flight: Flight, op: int) -> None:
        """An op meets bytes that a communication still writes."""
        line = call_site(4)
        call = flight.call
        if (line, flight.line) in self._races or len(self._races) >= MOST_RACES:
            return
        group = self.group_text(call)
        text = (
            f"rank {self._log.rank} reads or writes at {line} what {call.kind} at {flight.line} in group {group} still"
            f" writes (op {op}): wait for its handle first, or the values are old, new or a mixture"
        )
        self._races[line, flight.line] = Finding("race", (self._log.rank,), group, line, text, CORRUPT)

    def note_overlap(self, call: Communication) -> None:
        """The parts that a call brings are to lie in one tensor: `[x] * size`."""
        group = self.group_text(call)
        text = (
            f"rank {self._log.rank}: {call.kind} at {self.line} in group {group} is given the same tensor for several"
            " members, so the last part is all that is left: make a tensor for each"
        )
        self._races.setdefault((self.line, ""), Finding("overlap", (self._log.rank,), group, self.line, text, CORRUPT))

    def note_partial(self, taken_at: str, name: str) -> None:
        """An op that is not linear takes what is a part of a sum."""
        line, (where, _, group) = call_site(4), taken_at.partition(" ")
        if len(self._races) >= MOST_RACES:
            return
        text = (
            f"rank {self._log.rank}: what to_local() gives at {where} is this rank's part of a sum over group {group},"
            f" and {name} at {line} takes it for the whole: redistribute it to Replicate or Shard first, or all_reduce"
        )
        self._races.setdefault((line, where), Finding("partial", (self._log.rank,), group, line, text, CORRUPT))

    def note_unordered(self, writer: int, group: str) -> None:
        """An op meets what another stream wrote, and its own did not wait for."""
        line, at, rows = call_site(4), writer - self._rows.base, self._rows.rows
        name, call = (rows[at][0], rows[at][COMMUNICATION]) if at >= 0 else ("an earlier step", None)
        if "empty" in name or (line, "stream") in self._races or len(self._races) >= MOST_RACES:
            return  # what is empty was not written
        at_line = f" at {self._rows.lines[writer]}" if writer in self._rows.lines else ""
        text = (
            f"rank {self._log.rank} takes at {line}, on one stream, what {name}{at_line} wrote on another, which that"
            " does not wait for: call wait_stream (or wait for an event) first, or the values are old, new or a mixture"
        )
        where = group or (self.group_text(call) if call is not None else "")
        self._races[line, "stream"] = Finding("race", (self._log.rank,), where, line, text, CORRUPT)

    def group_text(self, call: Communication) -> str:
        """A group as findings name it."""
        number = self._numbers.get((call.group, id(call.members)))
        return self._log.groups[number].text(self._world_size) if number is not None else call.group

    def members_text(self, members: tuple[int, ...]) -> str:
        """Ranks as findings name them: by the name of a group of theirs."""
        group = next((group for group in self._log.groups if group.members == members), GroupEntry("", members, 0))
        return group.text(self._world_size)

    @property
    def races(self) -> list[Finding]:
        """Reads before `wait`, and parts that overlap."""
        return list(self._races.values())
