"""What would go wrong if the ranks of a script ran together: all their calls compared, set-up included.

Each rank that was run leaves a log of its calls of `torch.distributed`, with the script's line of each. Members of a
group must make the same collectives in the same order; who sends must fit who receives; every rank must make the same
groups in the same order. `agreement.py` compares what classes of ranks do in the captured step; here only ranks that
were run are compared, but in every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from windtunnel.studies.programs.communication import MESSAGES
from windtunnel.studies.programs.program_file import numbers_of, runs_of

HANG, CRASH, CORRUPT = "hang", "crash", "silent corruption"
LATER = "hang where a group is made behind it, or NCCL splits its communicator (device_id)"
MOST_FINDINGS = 20
MOST_AHEAD = 64  # calls that a member may leave out at once, to be told so
SET_UP = ("new_group", "init_process_group", "split_group")  # calls that every rank of the world makes
AT_ONCE = "device_id"  # given to `init_process_group`: NCCL makes its communicators then and there
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_ANY_SIZE = ("gather", "scatter", "all_to_all", "barrier")  # a rank sees its own part only


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a job."""

    kind: str  # skipped, order, group, shape, dtype, reduction, root, splits, message, set-up, deadlock, race, ...
    ranks: tuple[int, ...]  # those that differ from the others, or that meet
    group: str
    line: str  # of the script: "train.py:41"
    text: str
    effect: str = HANG

    @property
    def is_fatal(self) -> bool:
        """Whether the real job would hang or crash."""
        return self.effect in (HANG, CRASH)

    def to_dict(self) -> dict[str, object]:
        """As plain data."""
        return {**asdict(self), "ranks": list(self.ranks)}


class GroupEntry(NamedTuple):
    """A group, as a log names it."""

    name: str
    members: tuple[int, ...]
    ordinal: int  # of the groups with these members

    def text(self, world: int) -> str:
        """For a person: `tp (ranks 0, 1)`."""
        whole = self.members == tuple(range(world))
        name = "world" if whole and self.name in ("", "default_pg") else self.name
        return f"{name} (ranks {ranks_text(self.members)})" if name else f"ranks {ranks_text(self.members)}"


class CallEntry(NamedTuple):
    """One call."""

    step: int  # from 0, the first also holds the set-up
    group: int  # its number in the log
    kind: str  # of a communication, or one of SET_UP
    bytes: int = 0
    dtype: str = ""
    reduce_op: str = ""
    place: int = -1  # in the group, of the root or of the other end of a message
    tag: int = 0
    sent: tuple[int, ...] = ()
    received: tuple[int, ...] = ()
    control: bool = False
    guessed: bool = False  # a whole number that nobody knows was made up before: sizes may rest on it
    line: str = ""
    module: str = ""
    about: str = ""  # of a call of SET_UP: ranks of the group, or backend
    is_aside: bool = False  # by a thread beside the main one: in no step for certain

    def words(self) -> str:
        """What is called, for a person."""
        if self.kind in SET_UP:
            return f"{self.kind}({self.about})"
        size = "" if not self.bytes else f" of {self.bytes:,} bytes"
        reduction = f" ({self.reduce_op})" if self.reduce_op else ""
        return f"{self.kind}{reduction}{size}{' ' + self.dtype if self.dtype else ''}"

    def at(self) -> str:
        """Where it is called, for a person."""
        place = f" at {self.line}" if self.line else ""
        return place + (f" in {self.module}" if self.module else "")


@dataclass
class CallLog:
    """All calls of one rank up to the end of its last whole step."""

    rank: int
    groups: list[GroupEntry] = field(default_factory=list)
    entries: list[CallEntry] = field(default_factory=list)
    is_partial: bool = False  # the rank was still running: what comes after is not known
    cut: int = 0  # steps after which the rest was left out; 0: nothing was
    is_loose: bool = False  # calls of other threads are from steps that were left out too, or were not waited for

    def to_plain(self) -> dict[str, object]:
        """As JSON takes it."""
        groups = [[group.name, runs_of(group.members), group.ordinal] for group in self.groups]
        entries = [list(entry) for entry in self.entries]
        head = {"rank": self.rank, "is_partial": self.is_partial, "cut": self.cut, "is_loose": self.is_loose}
        return {**head, "groups": groups, "entries": entries}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> CallLog:
        """What `to_plain` gave."""
        groups = [GroupEntry(name, numbers_of(runs), ordinal) for name, runs, ordinal in data["groups"]]
        at = (CallEntry._fields.index("sent"), CallEntry._fields.index("received"))
        entries = [CallEntry._make(tuple(v) if i in at else v for i, v in enumerate(row)) for row in data["entries"]]
        return cls(data["rank"], groups, entries, data["is_partial"], data["cut"], data["is_loose"])

    def up_to(self, step: int) -> CallLog:
        """The calls of so many steps."""
        return replace(self, entries=[entry for entry in self.entries if entry.step < step or entry.is_aside])


def compare(logs: Mapping[int, CallLog], world: int) -> list[Finding]:
    """What does not fit between the ranks that were run, the first in time first; of steps that no log lacks."""
    cut = min((log.cut for log in logs.values() if log.cut), default=0)
    if cut:
        logs = {rank: log.up_to(cut) for rank, log in logs.items()}
    findings: list[tuple[int, Finding]] = []
    findings += _set_up(logs, world)
    for group, calls in _by_group(logs).items():
        collectives = {rank: [c for c in of if c.kind not in MESSAGES] for rank, of in calls.items()}
        findings += _collectives(group, collectives, logs, world)
        findings += _splits(group, collectives, world)
        findings += _messages(group, calls, world)
    findings.sort(key=lambda pair: pair[0])
    distinct: dict[tuple[str, tuple[int, ...]], Finding] = {}
    for _, finding in findings:
        distinct.setdefault((finding.line, finding.ranks), finding)
    # Ranks that are the cause of what others see.
    wrong = {finding.ranks for finding in distinct.values() if _is_cause(finding)}
    causes = [finding for finding in distinct.values() if _is_cause(finding) or finding.ranks not in wrong]
    return causes[:MOST_FINDINGS]


def _is_cause(finding: Finding) -> bool:
    return finding.kind in ("group", "set-up") and finding.is_fatal


def _by_group(logs: Mapping[int, CallLog]) -> dict[GroupEntry, dict[int, list[CallEntry]]]:
    """Of each group with two or more members that were run: the calls of each of these."""
    calls_of: dict[tuple[tuple[int, ...], int], tuple[GroupEntry, dict[int, list[CallEntry]]]] = {}
    for rank, log in logs.items():
        own: list[list[CallEntry]] = []
        for group in log.groups:
            _, calls = calls_of.setdefault((group.members, group.ordinal), (group, {}))
            own.append(calls.setdefault(rank, []))
        for entry in log.entries:
            if entry.kind not in SET_UP:
                own[entry.group].append(entry)
    for (members, _), (_, calls) in calls_of.items():
        for rank in members:
            if rank in logs:
                calls.setdefault(rank, [])  # a member that never calls there
    return {group: calls for group, calls in calls_of.values() if len(calls) > 1}


def _set_up(logs: Mapping[int, CallLog], world: int) -> list[tuple[int, Finding]]:
    """Groups are made by all ranks of the world, in the same order."""
    calls = {rank: [entry for entry in log.entries if entry.kind in SET_UP] for rank, log in logs.items()}
    parted = _first_difference(
        calls,
        logs,
        lambda call_entry, other: "" if (call_entry.kind, call_entry.about) == (other.kind, other.about) else "?",
    )
    if parted is None:
        return []
    number, usual, odd, _ = parted
    mine, its = _entry(calls, usual, number), _entry(calls, odd, number)
    call = mine if its is None else its
    assert call is not None
    effect = HANG
    if mine is None or its is None:
        who, callers = (odd, usual) if its is None else (usual, odd)
        verb = "does not" if len(who) == 1 else "do not"
        text = (
            f"{_ranks_call(callers)} {call.words()}{call.at()}, and {_subject(who)} {verb}: every rank of the world"
            " must make every group, in the same order, its own or not"
        )
        if call.kind == "new_group" and not _waits(logs, callers, who):
            text += "; as it is, no group is made behind it and none of them is in it, so no rank waits"
            effect = LATER
    else:
        text = (
            f"{_ranks_call(odd)} {its.words()}{its.at()} where {_ranks_call(usual)} {mine.words()}{mine.at()}:"
            " every rank must make the same groups in the same order"
        )
    return [(call.step, Finding("set-up", odd, f"world (ranks {ranks_text(range(world))})", call.line, text, effect))]


def _waits(logs: Mapping[int, CallLog], callers: Sequence[int], others: Sequence[int]) -> bool:
    """Whether ranks that make their last groups alone wait for the others: these are members, or a communicator that
    was set up at once (`device_id`) is split.
    """
    used = {(group.members, group.ordinal) for rank in callers for group in logs[rank].groups}
    mine = {rank: {(group.members, group.ordinal) for group in logs[rank].groups} for rank in others}
    if any(rank in key[0] and key not in mine[rank] for key in used for rank in others):
        return True
    return any(AT_ONCE in entry.about for entry in logs[callers[0]].entries if entry.kind == "init_process_group")


def _collectives(
    group: GroupEntry, calls: Mapping[int, list[CallEntry]], logs: Mapping[int, CallLog], world: int
) -> list[tuple[int, Finding]]:
    parted = _first_difference(calls, logs, _differs)
    if parted is None:
        return []
    number, usual, odd, why = parted
    mine, its = _entry(calls, usual, number), _entry(calls, odd, number)
    kind = _KINDS.get(why, "order")
    where, cause = group.text(world), why
    elsewhere = _elsewhere(group, calls, logs, usual, odd, number)
    if elsewhere is not None:
        at = logs[odd[0]].groups[elsewhere.group]
        text = (
            f"{_ranks_call(odd)} {elsewhere.words()}{elsewhere.at()} in group {at.text(world)} where"
            f" {_ranks_call(usual)} it in group {where}: members must call in the same group"
        )
        return [(elsewhere.step, Finding("group", odd, at.text(world), elsewhere.line, text))]
    missing = _calls_before(calls[usual[0]][number:], its)
    added = _calls_before(calls[odd[0]][number:], mine)
    if missing <= min(added, MOST_AHEAD):
        kind, cause = "skipped", _SKIPS
    elif added <= MOST_AHEAD:
        kind, cause = "extra", _SKIPS
    first, second = (
        f"{_ranks_call(who)} {call_entry.words()}{call_entry.at()}"
        if call_entry is not None
        else f"{_ranks_call(who)} nothing more"
        for who, call_entry in ((odd, its), (usual, mine))
    )
    call = mine if kind == "skipped" else its
    assert call is not None
    step, line = call.step, call.line
    text = f"collective {number + 1} of group {where}, in {_step(step)}: {first} where {second}: {cause}"
    apart = _lines_apart(calls[odd[0]][:number], calls[usual[0]][:number], step)
    if apart is not None:
        place, theirs, ours = apart
        text += f"; collective {place + 1} they call alike, {_subject(odd)} at {theirs} and {_subject(usual)} at {ours}"
    return [(step, Finding(kind, odd, where, line, text))]


def _calls_before(calls: Sequence[CallEntry], wanted: CallEntry | None) -> int:
    """How many of these calls come before the wanted one; of more than one, at another line and in the same step."""
    if wanted is None:
        return 0
    for number, call in enumerate(calls[: MOST_AHEAD + 1]):
        near = number == 1 or (number > 1 and calls[0].line != wanted.line and call.step == calls[0].step)
        if near and _is_same(call, wanted):
            return number
    return MOST_AHEAD + 1


def _lines_apart(own: Sequence[CallEntry], other: Sequence[CallEntry], step: int) -> tuple[int, str, str] | None:
    """The first calls of a step that are alike and stand at different lines: there the ranks may have parted."""
    for number, (mine, its) in enumerate(zip(own, other, strict=True)):
        if mine.step == step and mine.line and its.line and mine.line != its.line:
            return number, mine.line, its.line
    return None


_SKIPS = "a member that skips a collective makes the others wait for ever"
_ORDER = "members must call the same collective in the same order"
_KINDS = {
    "they do not agree on the root": "root",
    "they do not agree on the reduction": "reduction",
    "they do not agree on the dtype": "dtype",
    "they do not agree on the shape": "shape",
}


def _is_same(entry: CallEntry, other: CallEntry) -> bool:
    """Whether two ranks are at the same call of the script."""
    return entry.line == other.line and not _differs(entry, other)


def _differs(entry: CallEntry, other: CallEntry) -> str:
    if entry.kind != other.kind:
        return _ORDER
    if entry.kind in _ROOTED and entry.place != other.place:
        return "they do not agree on the root"
    if entry.reduce_op != other.reduce_op:
        return "they do not agree on the reduction"
    if entry.dtype != other.dtype and entry.dtype and other.dtype:
        return "they do not agree on the dtype"
    if entry.control or other.control:
        return ""
    if entry.kind not in _ANY_SIZE and entry.bytes != other.bytes:
        return "they do not agree on the shape"
    return ""


def _first_difference(
    calls: Mapping[int, Sequence[CallEntry]],
    logs: Mapping[int, CallLog],
    differs: Callable[[CallEntry, CallEntry], str],
) -> tuple[int, tuple[int, ...], tuple[int, ...], str] | None:
    """The number of the first call on which ranks part, those that do as most, those that do not, and how they part."""
    if len(calls) < 2:
        return None
    ranks = sorted(calls)
    for number in range(max(len(of) for of in calls.values())):
        parties: list[list[int]] = []
        entries = [_entry(calls, (rank,), number) for rank in ranks]
        aside = None in entries and all(entry.is_aside for entry in entries if entry is not None)
        for rank, own in zip(ranks, entries, strict=True):
            if (own is None and logs[rank].is_partial) or (aside and logs[rank].is_loose):
                continue
            for party in parties:
                other = _entry(calls, (party[0],), number)
                if own is other or (own is not None and other is not None and not differs(other, own)):
                    party.append(rank)
                    break
            else:
                parties.append([rank])
        if len(parties) > 1:
            usual = max(parties, key=lambda party: (len(party), -party[0]))
            odd = next(party for party in parties if party is not usual)
            mine, its = _entry(calls, usual, number), _entry(calls, odd, number)
            why = _SKIPS if mine is None or its is None else differs(mine, its)
            return number, tuple(usual), tuple(odd), why
    return None


def _entry(calls: Mapping[int, Sequence[CallEntry]], ranks: Sequence[int], number: int) -> CallEntry | None:
    of = calls[ranks[0]]
    return of[number] if number < len(of) else None


def _elsewhere(
    group: GroupEntry,
    calls: Mapping[int, Sequence[CallEntry]],
    logs: Mapping[int, CallLog],
    usual: Sequence[int],
    odd: Sequence[int],
    number: int,
) -> CallEntry | None:
    """What the odd rank calls in another group, right where others call the same in this one."""
    mine = _entry(calls, usual, number)
    if mine is None:
        return None
    log = logs[odd[0]]
    before = calls[odd[0]][number - 1] if number else None
    entries = [entry for entry in log.entries if entry.kind not in SET_UP]
    start = next((i + 1 for i, entry in enumerate(entries) if entry is before), 0)
    for entry in entries[start:]:
        at = log.groups[entry.group]
        if (at.members, at.ordinal) == (group.members, group.ordinal):
            return None
        if entry.kind == mine.kind and entry.bytes == mine.bytes and entry.line == mine.line:
            partners = [rank for rank in at.members if rank in logs and rank not in odd]
            return entry if any(not _calls_there(logs[rank], at, mine.line) for rank in partners) else None
    return None


def _calls_there(log: CallLog, group: GroupEntry, line: str) -> bool:
    """Whether a rank calls in this group at this line too: then it is no mistake of the odd one."""
    numbers = {
        i
        for i, own_group in enumerate(log.groups)
        if (own_group.members, own_group.ordinal) == (group.members, group.ordinal)
    }
    return any(entry.group in numbers and entry.line == line for entry in log.entries)


def _splits(group: GroupEntry, calls: Mapping[int, Sequence[CallEntry]], world: int) -> list[tuple[int, Finding]]:
    """What each member of an all-to-all sends is what its peer expects."""
    ranks = sorted(calls)
    exchanges = {rank: [c for c in calls[rank] if c.kind == "all_to_all"] for rank in ranks}
    size = len(group.members)
    for number in range(min(len(of) for of in exchanges.values())):
        for sender in ranks:
            for receiver in ranks:
                gives, takes = exchanges[sender][number], exchanges[receiver][number]
                if gives.guessed or takes.guessed or sender == receiver:
                    continue
                a, b = group.members.index(sender), group.members.index(receiver)
                sent = gives.sent[b] if gives.sent else gives.bytes // size
                expected = takes.received[a] if takes.received else takes.bytes // size
                if sent != expected:
                    where = group.text(world)
                    text = (
                        f"all_to_all {number + 1} of group {where}, in {_step(gives.step)}: rank {sender} sends"
                        f" {sent:,} bytes to rank {receiver}{gives.at()}, which expects {expected:,}{takes.at()}"
                    )
                    line = gives.line or takes.line
                    return [(gives.step, Finding("splits", (sender, receiver), where, line, text, CRASH))]
    return []


def _messages(group: GroupEntry, calls: Mapping[int, Sequence[CallEntry]], world: int) -> list[tuple[int, Finding]]:
    """What is sent has the size and dtype with which it is received."""
    for sender in calls:
        place = group.members.index(sender)
        for receiver in calls:
            there = group.members.index(receiver)
            gives = [c for c in calls[sender] if c.kind == "send" and c.place == there]
            takes = [c for c in calls[receiver] if c.kind == "recv" and c.place == place]
            for number, (give, take) in enumerate(zip(_by_tag(gives), _by_tag(takes), strict=False)):
                alike = give.dtype == take.dtype and (give.bytes == take.bytes or give.control or take.control)
                if alike or (give.control and take.control):  # pickled objects, whose sizes may differ
                    continue
                where = group.text(world)
                text = (
                    f"message {number + 1} of group {where} from rank {sender} to rank {receiver}, in"
                    f" {_step(give.step)}: sent as {give.bytes:,} bytes {give.dtype}{give.at()}, received as"
                    f" {take.bytes:,} bytes {take.dtype}{take.at()}"
                )
                return [(give.step, Finding("message", (sender, receiver), where, give.line or take.line, text, CRASH))]
    return []


def _by_tag(messages: Iterable[CallEntry]) -> list[CallEntry]:
    return sorted(messages, key=lambda call_entry: call_entry.tag)


def _step(number: int) -> str:
    return f"step {number + 1}"


def _subject(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)}"


def _ranks_call(ranks: Sequence[int]) -> str:
    return f"{_subject(ranks)} call{'s' * (len(ranks) == 1)}"


def ranks_text(members: Sequence[int]) -> str:
    """`0, 1, 2, ... 7`."""
    shown = ", ".join(map(str, members[:4]))
    return shown if len(members) <= 4 else f"{shown}, ... {members[-1]}"
