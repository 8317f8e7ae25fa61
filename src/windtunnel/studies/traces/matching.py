"""Which communication ops of several ranks are one: by what they name, never by when they ran.

Collectives meet by (communicator, sequence number). Where the trace has no sequence numbers, the k-th of a communicator
on each rank is taken for the same, but only if all ranks have as many and agree on what each one is. The k-th send
meets the k-th receive of the same (communicator, source, destination, tag), if there are as many of both. Whatever does
not meet is counted, with one example; it keeps its recorded duration, waiting included.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from windtunnel.physics.graph.program import OpKind
from windtunnel.studies.traces.rank_ops import Communication, RankOps

_Member = tuple[int, Communication]  # index of the rank in the list, its op


@dataclass(frozen=True)
class Matching:
    """Groups of (index of the rank, op) that start together, and what found no partner."""

    meetings: tuple[tuple[tuple[int, int], ...], ...]
    notes: tuple[str, ...]


@dataclass
class _Tally:
    """Counts by reason, with the first example of each."""

    reasons: dict[str, tuple[int, str]]

    def add(self, reason: str, count: int, example: str) -> None:
        before, first = self.reasons.get(reason, (0, example))
        self.reasons[reason] = (before + count, first)

    def notes(self) -> tuple[str, ...]:
        return tuple(f"{count:,} {reason}, first {example}" for reason, (count, example) in self.reasons.items())


def match(ranks: Sequence[RankOps]) -> Matching:
    """Join the communication of `ranks`."""
    present = {rank.rank for rank in ranks}
    tally = _Tally({})
    collectives: dict[Hashable, dict[int, list[Communication]]] = {}
    pairs: dict[Hashable, dict[int, list[Communication]]] = {}
    absent: set[int] = set()
    for at, ops in enumerate(ranks):
        for item in ops.communications:
            if item.pair is None:
                collectives.setdefault(item.group, {}).setdefault(at, []).append(item)
                absent.update(rank for rank in item.ranks if rank not in present)
            else:
                # A pair of ranks has two ends, whatever the file order: 0 sends, 1 receives.
                end = 0 if ops.kind[item.op] == OpKind.SEND else 1
                pairs.setdefault((item.group, item.pair), {}).setdefault(end * len(ranks) + at, []).append(item)
    meetings: list[tuple[tuple[int, int], ...]] = []
    for by_rank in collectives.values():
        some = next(iter(by_rank.values()))[0]
        if not some.ranks and some.n_members > len(by_rank):
            tally.add(
                "communicators have members without trace here: waiting for those counts as transfer",
                1,
                f"that of {_where(ranks, min(by_rank), some)}, {len(by_rank)} of {some.n_members} ranks",
            )
        expected = [at for at, rank in enumerate(ranks) if rank.rank in some.ranks] or sorted(by_rank)
        meetings += _collectives(ranks, by_rank, expected, tally)
    for key, ends in pairs.items():
        meetings += _pairs(ranks, key, ends, present, tally)
    notes = list(tally.notes())
    if absent:
        notes.insert(
            0,
            f"{len(absent):,} ranks take part in collectives but have no trace here, first rank {min(absent)}: "
            "waiting for them counts as transfer",
        )
    return Matching(tuple(meetings), tuple(notes))


def _where(ranks: Sequence[RankOps], at: int, item: Communication) -> str:
    return f"'{ranks[at].label[item.op]}' of rank {ranks[at].rank}"


def _numbered(items: Sequence[Communication]) -> dict[int, Communication] | None:
    """By sequence number, if each has one of its own."""
    numbered = {item.sequence: item for item in items if item.sequence is not None}
    return {k: v for k, v in numbered.items() if k is not None} if len(numbered) == len(items) else None


def _collectives(
    ranks: Sequence[RankOps], by_rank: dict[int, list[Communication]], expected: Sequence[int], tally: _Tally
) -> list[tuple[tuple[int, int], ...]]:
    numbered = {at: _numbered(items) for at, items in by_rank.items()}
    everything = sum(map(len, by_rank.values()))
    first_at = min(by_rank)
    example = _where(ranks, first_at, by_rank[first_at][0])
    if any(sequence is None for sequence in numbered.values()):
        counts = {at: len(by_rank.get(at, ())) for at in expected}
        if len(set(counts.values())) > 1:
            most, least = max(counts, key=lambda at: counts[at]), min(counts, key=lambda at: counts[at])
            tally.add(
                "collectives without sequence number on ranks that do not have as many",
                everything,
                f"{example}: rank {ranks[most].rank} has {counts[most]}, rank {ranks[least].rank} {counts[least]}",
            )
            return []
        numbered = {at: dict(enumerate(items)) for at, items in by_rank.items()}
        for same in zip(*by_rank.values(), strict=False):
            if len({item.signature for item in same}) > 1:
                tally.add(
                    "collectives without sequence number on ranks that disagree on what they are",
                    everything,
                    _where(ranks, first_at, same[0]),
                )
                return []
    meetings: list[tuple[tuple[int, int], ...]] = []
    sequences = sorted({k for items in numbered.values() if items for k in items})
    for k in sequences:
        members = [(at, items[k]) for at, items in sorted(numbered.items()) if items and k in items]
        if len({item.signature for _, item in members}) > 1:
            tally.add(
                "collectives disagree with their partners on what they are", len(members), _where(ranks, *members[0])
            )
        elif len(members) < len(expected):
            lacking = next(at for at in expected if at not in {at for at, _ in members})
            tally.add(
                "collectives miss a partner",
                len(members),
                f"{_where(ranks, *members[0])}: rank {ranks[lacking].rank} has no number {k}",
            )
        elif len(members) > 1:
            meetings.append(tuple((at, item.op) for at, item in members))
    return meetings


def _pairs(
    ranks: Sequence[RankOps],
    key: Hashable,
    ends: dict[int, list[Communication]],
    present: set[int],
    tally: _Tally,
) -> list[tuple[tuple[int, int], ...]]:
    n = len(ranks)
    sends: list[_Member] = [(at % n, item) for at, items in sorted(ends.items()) if at < n for item in items]
    receives: list[_Member] = [(at % n, item) for at, items in sorted(ends.items()) if at >= n for item in items]
    some = (sends or receives)[0]
    source, destination, _ = some[1].pair or (-1, -1, 0)
    if source not in present or destination not in present:
        missing = destination if source in present else source
        tally.add(
            "sends and receives with ranks that have no trace here",
            len(sends) + len(receives),
            f"{_where(ranks, *some)} with rank {missing}",
        )
        return []
    # No sequence numbers here: a rank counts its sends and receives with all partners together.
    if len(sends) != len(receives):
        tally.add(
            "sends and receives without partner",
            len(sends) + len(receives),
            f"{_where(ranks, *some)}: {len(sends)} sends from rank {source} to {destination}, {len(receives)} receives",
        )
        return []
    return [((a, s.op), (b, r.op)) for (a, s), (b, r) in zip(sends, receives, strict=True)]
