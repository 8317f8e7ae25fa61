"""Whether the ranks of a captured job can run it together: what they say in groups fits, and nobody waits for ever.

Each rank was captured by itself, with peers that answer whatever is asked. So a collective that one member skips, makes
with another shape or in another order, and messages that nobody sends, go unnoticed until programs are compared:

    collectives   of a group, in order: kind, reduction, root, dtype, and bytes are the same on all members
    messages      of each pair: as many are sent as received, and of the same bytes
    order         ranks move through their programs, each until it waits for what others have not begun

Ranks that were not captured run what their representative does, in their own groups. Objects, and other small control
messages, may differ in size. Deadlocks are looked for among all ranks of a small job, else among those of one group of
each kind that carries messages, and the captured ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.rank_classes.findings import Finding

if TYPE_CHECKING:
    from windtunnel.studies.programs.job import CapturedJob
    from windtunnel.studies.programs.program import RankProgram

MOST_RANKS = 128  # of which all are moved through their programs
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_ANY_SIZE = ("gather", "scatter", "all_to_all", "barrier")  # a rank sees its own part only


class Call(NamedTuple):
    """One communication of a program."""

    op: int
    communication: Communication


class Meeting(NamedTuple):
    """One group: its members, and whose program each runs (-1: not known)."""

    name: str
    members: tuple[int, ...]
    runs: tuple[int, ...]


@dataclass
class Book:
    """Calls of each program by the kind of group that they are made in."""

    programs: Mapping[int, RankProgram]
    calls: dict[tuple[int, object], list[Call]] = field(default_factory=dict)  # (program, kind of group)
    meetings: dict[object, list[Meeting]] = field(default_factory=dict)  # by kind of group

    def calls_of(self, program: int, kind: object) -> list[Call]:
        """The calls of a program of one kind, in order."""
        return self.calls.get((program, kind), [])


def _book(programs: Mapping[int, RankProgram], kind_of: Callable[[Communication], object]) -> Book:
    """The calls of these programs, by what kind of group they are made in; who meets there is left open."""
    book = Book(programs)
    for rank, program in programs.items():
        for number, op in enumerate(program.ops):
            if op.communication is not None:
                key = (rank, kind_of(op.communication))
                book.calls.setdefault(key, []).append(Call(number, op.communication))
    return book


def book_of(job: CapturedJob) -> Book:
    """Of a whole job: of groups whose members run the same programs in the same places one stands for all."""
    book = _book(job.programs, job.family_of)
    for kind, family in enumerate(job.families):
        seen: dict[tuple[int, ...], Meeting] = {}
        for members in family.groups:
            runs = tuple(job.runs[list(members)].tolist())
            seen.setdefault(runs, Meeting(family.name, members, runs))
        book.meetings[kind] = list(seen.values())
    return book


def book_of_some(programs: Mapping[int, RankProgram]) -> Book:
    """Of ranks of which nobody knows whom they stand for."""
    book = _book(programs, lambda call: (call.group, call.members))
    for call in (call.communication for calls in book.calls.values() for call in calls):
        if (call.group, call.members) not in book.meetings:
            runs = tuple(rank if rank in programs else -1 for rank in call.members)
            book.meetings[call.group, call.members] = [Meeting(call.group, call.members, runs)]
    return book


def disagreement(book: Book) -> Finding | None:
    """What does not fit first."""
    for kind, meetings in book.meetings.items():
        for meeting in meetings:
            finding = _collectives(book, kind, meeting) or _messages(book, kind, meeting)
            if finding:
                return finding
    return None


def _collectives(book: Book, kind: object, meeting: Meeting) -> Finding | None:
    lists = {
        run: [call for call in book.calls_of(run, kind) if not call.communication.is_message]
        for run in set(meeting.runs) - {-1}
    }
    if len(lists) < 2:
        return None
    places = {run: meeting.runs.index(run) for run in lists}
    first, *others = sorted(lists, key=lambda run: places[run])
    for other in others:
        mine, theirs = lists[first], lists[other]
        for number in range(max(len(mine), len(theirs))):
            own = mine[number] if number < len(mine) else None
            its = theirs[number] if number < len(theirs) else None
            why = _differs(own.communication if own else None, its.communication if its else None)
            if why:
                ranks = [meeting.members[places[run]] for run in (first, other)]
                texts = [_text(book, run, call) for run, call in ((first, own), (other, its))]
                line = _line(book, other, its) or _line(book, first, own)
                text = (
                    f"collective {number + 1} of the step in group {meeting.name!r} (ranks {_ranks(meeting.members)}):"
                    f" rank {ranks[0]} {texts[0]}, rank {ranks[1]} {texts[1]}: {why}"
                )
                return Finding(_KINDS.get(why, "order"), (ranks[1],), meeting.name, line, text)
    return None


_KINDS = {
    "a member that skips a collective makes the others wait for ever": "skipped",
    "they do not agree on the root": "root",
    "they do not agree on the reduction": "reduction",
    "they do not agree on the dtype": "dtype",
    "they do not agree on the shape": "shape",
}


def _line(book: Book, run: int, call: Call | None) -> str:
    return book.programs[run].ops[call.op].line if call is not None else ""


def _differs(communication: Communication | None, other: Communication | None) -> str:
    if communication is None or other is None:
        return "a member that skips a collective makes the others wait for ever"
    if communication.kind != other.kind:
        return "members must call the same collective in the same order"
    if communication.kind in _ROOTED and _root(communication) != _root(other):
        return "they do not agree on the root"
    if communication.is_control or other.is_control:
        return ""
    if communication.reduce_op != other.reduce_op:
        return "they do not agree on the reduction"
    if communication.dtype != other.dtype and communication.dtype and other.dtype:
        return "they do not agree on the dtype"
    if communication.kind not in _ANY_SIZE and communication.bytes != other.bytes:
        return "they do not agree on the shape"
    return ""


def _root(call: Communication) -> int:
    return call.members.index(call.peer) if call.peer in call.members else -1


def _text(book: Book, run: int, call: Call | None) -> str:
    if call is None:
        return "calls nothing"
    communication, op = call.communication, book.programs[run].ops[call.op]
    size = "" if communication.kind == "barrier" else f" of {communication.bytes:,} bytes"
    where = (f" at {op.line}" if op.line else "") + (f" in {op.module}" if op.module else "")
    reduction = f" ({communication.reduce_op})" if communication.reduce_op else ""
    return (
        f"calls {communication.kind}{reduction}{size}{' ' + communication.dtype if communication.dtype else ''}{where}"
    )


def _ranks(members: Sequence[int]) -> str:
    shown = ", ".join(map(str, members[:4]))
    return shown if len(members) <= 4 else f"{shown}, ... {members[-1]}"


def _messages(book: Book, kind: object, meeting: Meeting) -> Finding | None:
    sent: dict[tuple[int, int], list[Communication]] = {}
    received: dict[tuple[int, int], list[Communication]] = {}
    lines: dict[int, str] = {}  # of each message, by identity
    size = len(meeting.members)
    places = [place for place, run in enumerate(meeting.runs) if run >= 0]
    if not any(call.communication.is_message for run in set(meeting.runs) for call in book.calls_of(run, kind)):
        return None
    for place in places:
        for call in book.calls_of(meeting.runs[place], kind):
            if not call.communication.is_message:
                continue
            lines[id(call.communication)] = _line(book, meeting.runs[place], call)
            if call.communication.peer < 0:
                return None  # whoever sends: any pair may fit
            other = _other_place(call.communication, place, size)
            if meeting.runs[other] < 0:
                continue
            pair = (place, other) if call.communication.kind == "send" else (other, place)
            (sent if call.communication.kind == "send" else received).setdefault(pair, []).append(call.communication)
    for pair in dict.fromkeys((*sent, *received)):
        gives, takes = sent.get(pair, []), received.get(pair, [])
        sender, receiver = pair_ranks = (meeting.members[pair[0]], meeting.members[pair[1]])
        if len(gives) != len(takes):  # shapes are told before a first step, which begins elsewhere on each rank:
            gives, takes = (
                [call for call in of if not call.is_control] for of in (gives, takes)
            )  # findings.py has all
        if len(gives) != len(takes):
            line = next((lines[id(call)] for call in (*gives, *takes)), "")
            text = (
                f"in group {meeting.name!r} rank {sender} sends {len(gives)} message{'s' * (len(gives) != 1)} a step to"
                f" rank {receiver}, which receives {len(takes)}{' at ' + line if line else ''}"
            )
            return Finding("message", pair_ranks, meeting.name, line, text)
        for number, (give, take) in enumerate(zip(_by_tag(gives), _by_tag(takes), strict=True)):
            if give.bytes != take.bytes and not (give.is_control or take.is_control):
                at = [f" at {lines[id(call)]}" if lines[id(call)] else "" for call in (give, take)]
                text = (
                    f"in group {meeting.name!r} message {number + 1} from rank {sender} to rank {receiver} has"
                    f" {give.bytes:,} bytes {give.dtype}{at[0]}, and is received as {take.bytes:,}"
                    f" bytes {take.dtype}{at[1]}"
                )
                line = lines[id(give)] or lines[id(take)]
                return Finding("message", pair_ranks, meeting.name, line, text)
    return None


def _by_tag(messages: Sequence[Communication]) -> list[Communication]:
    return sorted(messages, key=lambda communication: communication.tag)


def _other_place(call: Communication, place: int, size: int) -> int:
    return (place + call.members.index(call.peer) - call.position) % size


# ------------------------------------------------------------------------------------------------------- who waits


@dataclass
class _Mover:
    """A rank on its way through its program."""

    rank: int
    run: int
    at: int = 0
    counts: dict[object, int] = field(default_factory=dict)
    meetings: dict[int, tuple[object, ...]] = field(default_factory=dict)  # op -> what it is one end of


def deadlock(job: CapturedJob, *, eager_sends: bool = False) -> Finding | None:
    """Who waits for whom for ever; None where nobody does.

    `eager_sends`: a send is done when it is begun, as of small messages on a CPU.
    """
    book = book_of(job)
    moved = {rank: _Mover(rank, int(job.runs[rank])) for rank in _chosen(job, book)}
    group_of = _groups_of(job, moved)
    kind_of = {(run, call.op): kind for (run, kind), calls in book.calls.items() for call in calls}
    came: dict[tuple[object, ...], set[int]] = {}
    needed: dict[tuple[object, ...], frozenset[int]] = {}

    def begin(mover: _Mover, number: int, call: Communication) -> None:
        kind = kind_of[mover.run, number]
        members = group_of[kind][mover.rank]
        if call.is_message:
            if call.peer < 0 or call.is_control:
                return
            other = members[_other_place(call, members.index(mover.rank), len(members))]
            ends = (mover.rank, other) if call.kind == "send" else (other, mover.rank)
            key: tuple[object, ...] = (kind, *ends, call.tag)
            side = (*key, call.kind)
            count = mover.counts[side] = mover.counts.get(side, -1) + 1
            meeting, who = (*key, count), {mover.rank, other} & moved.keys()
        else:
            key = (kind, members)
            count = mover.counts[key] = mover.counts.get(key, -1) + 1
            meeting, who = (*key, count), moved.keys() & set(members)
        came.setdefault(meeting, set()).add(mover.rank)
        needed[meeting] = frozenset(who)
        if not (eager_sends and call.kind == "send"):
            mover.meetings[number] = meeting

    def waits_for(mover: _Mover) -> tuple[int, set[int]] | None:
        op = job.programs[mover.run].ops[mover.at]
        if op.kind == "wait":
            for earlier in op.after:
                meeting = mover.meetings.get(earlier)
                if meeting is not None and needed[meeting] - came[meeting]:
                    return earlier, set(needed[meeting] - came[meeting])
        return None

    def move(mover: _Mover) -> bool:
        ops, start = job.programs[mover.run].ops, mover.at
        while mover.at < len(ops) and waits_for(mover) is None:
            call = ops[mover.at].communication
            if call is not None:
                begin(mover, mover.at, call)
            mover.at += 1
        return mover.at > start

    going = True
    while going:
        going = False
        for mover in moved.values():
            going = move(mover) or going
    stuck = {
        rank: waits
        for rank, mover in moved.items()
        if mover.at < len(job.programs[mover.run].ops) and (waits := waits_for(mover)) is not None
    }
    if not stuck:
        return None
    circle = _circle(stuck)
    first = stuck[circle[0]][0]
    op = job.programs[moved[circle[0]].run].ops[first]
    group = job.families[kind_of[moved[circle[0]].run, first]].name  # type: ignore[call-overload]
    text = "; ".join(_waiting(job, moved[rank], stuck) for rank in circle)
    return Finding("deadlock", tuple(circle), group, op.line, text)


def _circle(stuck: Mapping[int, tuple[int, set[int]]]) -> list[int]:
    """Ranks of which each waits for the next, a few at most."""
    rank, seen = min(stuck), []
    while rank not in seen:
        seen.append(rank)
        after = sorted(stuck[rank][1] & stuck.keys())
        if not after:
            break
        rank = after[0]
    return seen[seen.index(rank) :][:3]


def _waiting(job: CapturedJob, mover: _Mover, stuck: Mapping[int, tuple[int, set[int]]]) -> str:
    number, missing = stuck[mover.rank]
    op = job.programs[mover.run].ops[number]
    assert op.communication is not None
    where = (f" at {op.line}" if op.line else "") + (f" in {op.module}" if op.module else "")
    kind = f"a {op.communication.kind} ({op.phase}{where})"
    return f"rank {mover.rank} waits in {kind} for rank {', '.join(map(str, sorted(missing)[:3]))}"


def _chosen(job: CapturedJob, book: Book) -> list[int]:
    if job.world_size <= MOST_RANKS:
        return list(range(job.world_size))
    chosen = set(job.programs)
    for kind, meetings in book.meetings.items():
        for meeting in meetings:
            carries = any(
                call.communication.is_message for run in set(meeting.runs) for call in book.calls_of(run, kind)
            )
            if carries and len(chosen) + len(meeting.members) <= 4 * MOST_RANKS:
                chosen.update(meeting.members)
    return sorted(chosen)


def _groups_of(job: CapturedJob, ranks: Mapping[int, object]) -> dict[object, dict[int, tuple[int, ...]]]:
    """By kind of group: the group of each rank."""
    groups: dict[object, dict[int, tuple[int, ...]]] = {}
    for kind, family in enumerate(job.families):
        groups[kind] = {rank: members for members in family.groups for rank in members if rank in ranks}
    return groups
