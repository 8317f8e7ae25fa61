"""The ops of several ranks as one `Trace`: clocks aligned, communication met, pipeline stages found.

Transfer time of a meeting is the *shortest* recorded duration among its members: the last to arrive does not wait, and
durations need no common clock. Clocks matter only for when each rank's recording began; that offset is taken from the
ends of common collectives (`clocks`).

Stages: the ranks that send to each other, directly or through others, form a pipeline; its ranks in ascending order are
its stages. Only where all pipelines have the same length, else no stages are named.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError
from windtunnel.physics.graph.program import Graph, OpKind
from windtunnel.studies.traces.clocks import clock_offsets
from windtunnel.studies.traces.matching import match
from windtunnel.studies.traces.rank_ops import RankOps
from windtunnel.studies.traces.trace import Trace

_SKEW_S = 0.05
_OTHER_RUN_S = 600.0
_LONGEST_NS = 1e17  # three years
_MOST_CATEGORIES = 250
_UNLIKE_SHARE = 0.1
_COMMUNICATION = (OpKind.COLLECTIVE, OpKind.SEND, OpKind.RECV)


def join_ranks(source: str, ranks: Sequence[RankOps]) -> Trace:
    """One trace of all `ranks`, which have distinct rank numbers. Raises InputFileError: no op in any of them."""
    ranks = sorted(ranks, key=lambda rank_ops: rank_ops.rank)
    sizes = [len(rank.kind) for rank in ranks]
    n = sum(sizes)
    if n == 0:
        raise InputFileError(ranks[0].path, "holds no op that takes time", "record with GPU activities")
    base = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    notes = _merged(ranks) + _different_steps(ranks)
    matching = match(ranks)
    notes += matching.notes
    start = np.array([t for rank in ranks for t in rank.start_ns], dtype=np.int64)
    duration = np.array([t for rank in ranks for t in rank.duration_ns], dtype=np.int64)
    worker = np.repeat(np.arange(len(ranks), dtype=np.int32), sizes)
    kind = np.array([k for rank in ranks for k in rank.kind], dtype=np.uint8)

    rendezvous = np.full(n, -1, np.int32)
    for number, meeting in enumerate(matching.meetings):
        for at, op in meeting:
            rendezvous[base[at] + op] = number
    for at, rank in enumerate(ranks):
        mine = worker == at
        if mine.any() and float((start + duration)[mine].max()) - float(start[mine].min()) > _LONGEST_NS:
            raise InputFileError(rank.path, "has events years apart", "leave out the events with damaged times")
    start = _aligned(ranks, start, duration, worker, rendezvous, notes)
    began = int(start.min())
    measured_ns = int((start + duration).max()) - began
    tied = rendezvous >= 0
    shortest = np.full(len(matching.meetings), np.iinfo(np.int64).max)
    np.minimum.at(shortest, rendezvous[tied], duration[tied])
    transfer = duration.copy()
    transfer[tied] = shortest[rendezvous[tied]]
    for at, rank in enumerate(ranks):
        for op in rank.openings:
            where = base[at] + op
            transfer[where] = start[where] + duration[where] - began  # the recording began earlier elsewhere

    waits = _waits(ranks, base)
    dep_ptr = np.zeros(n + 1, np.int64)
    np.cumsum(np.bincount(waits[:, 0], minlength=n), out=dep_ptr[1:])
    stream_base = np.concatenate([[0], np.cumsum([len(rank.stream_names) for rank in ranks])])
    stream_worker = np.repeat(np.arange(len(ranks), dtype=np.int32), np.diff(stream_base))
    categories, category = _numbered([c for rank in ranks for c in rank.category])
    labels, label = _numbered([text for rank in ranks for text in rank.label])
    graph = Graph(
        kind=kind,
        stream=np.concatenate(
            [
                np.array(rank.stream, dtype=np.int32) + np.int32(s)
                for rank, s in zip(ranks, stream_base[:-1], strict=True)
            ]
        ).astype(np.int32),
        stream_rank=stream_worker,
        dep_ptr=dep_ptr,
        dep_idx=waits[:, 1].astype(np.int32),
        rendezvous=rendezvous,
        label=label.astype(np.int32),
        category=np.minimum(category, _MOST_CATEGORIES).astype(np.uint16),
        flops=np.zeros(n),
        bytes=np.zeros(n),
        multiplicity=np.ones(len(ranks), np.int64),
        labels=labels,
        categories=categories[:_MOST_CATEGORIES] + (("other",) if len(categories) > _MOST_CATEGORIES else ()),
        stream_names=tuple(name for rank in ranks for name in rank.stream_names),
    )
    replica, stage = _pipelines(ranks)
    peers = _peers(ranks, notes)
    unlike = np.bincount(peers)[peers] == 1
    busy = kind != OpKind.HOST
    if len(ranks) > 1 and transfer[unlike & busy].sum() > _UNLIKE_SHARE * transfer[busy].sum():
        share = transfer[unlike & busy].sum() / transfer[busy].sum()
        notes.append(f"{share:.0%} of the work is like no other rank's or step's: the ideal takes it as recorded")
    return Trace(
        source=source,
        graph=graph,
        duration_ns=transfer,
        peers=peers,
        is_communication=np.isin(kind, [int(k) for k in _COMMUNICATION]),
        worker=worker,
        step=np.zeros(n, np.int32),
        worker_names=tuple(f"rank {rank.rank}" for rank in ranks),
        replica=replica,
        stage=stage,
        steps=(0,),
        measured_ns=np.array([measured_ns], dtype=np.int64),
        worker_rank=np.array([rank.rank for rank in ranks], dtype=np.int64),
        notes=tuple(notes),
    )


def _aligned(
    ranks: Sequence[RankOps],
    start: NDArray[np.int64],
    duration: NDArray[np.int64],
    worker: NDArray[np.int32],
    rendezvous: NDArray[np.int32],
    notes: list[str],
) -> NDArray[np.int64]:
    """Starts on one clock; ranks that no communication ties to the others are taken to begin with them."""
    if len(ranks) == 1:
        return np.asarray(start - start.min())
    first = np.array([start[worker == at].min() if (worker == at).any() else 0 for at in range(len(ranks))])
    relative = start - first[worker]  # nanoseconds since the epoch do not fit a float
    tied = np.flatnonzero(rendezvous >= 0)
    since = clock_offsets(
        worker[tied], rendezvous[tied].astype(np.int64), (relative + duration)[tied] / 1e9, len(ranks)
    )
    loose = int(np.count_nonzero(np.isnan(since)))
    if loose:
        notes.append(
            f"{loose} ranks share no matched communication with the others, first rank "
            f"{ranks[int(np.argmax(np.isnan(since)))].rank}: taken to begin when the others do"
        )
    # Who is ahead in relative time began to record earlier; what then remains of the first stamps is the clock's error.
    later = -np.nan_to_num(since)
    begins = np.rint((later - later.min()) * 1e9).astype(np.int64)
    stamped = np.flatnonzero(~np.isnan(since))
    if len(stamped):
        clock = first - begins
        ahead = np.zeros(len(ranks))
        ahead[stamped] = (clock[stamped] - clock[stamped[0]]) / 1e9
        ahead[stamped] -= np.median(ahead[stamped])
        skewed = np.abs(ahead) > _SKEW_S
        if skewed.any():
            at = int(np.argmax(np.abs(ahead)))
            notes.append(
                f"clocks of {np.count_nonzero(skewed)} of {len(ranks)} ranks put right, by when their common "
                f"communication ends: rank {ranks[at].rank} was {ahead[at]:+.3f} s off"
                + (", so much that the files may be of different runs" if abs(ahead[at]) > _OTHER_RUN_S else "")
            )
    return np.asarray(relative + begins[worker], dtype=np.int64)


def _waits(ranks: Sequence[RankOps], base: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[deps, 2], sorted by op."""
    parts = [
        np.array(rank.waits, dtype=np.int64).reshape(-1, 2) + base[at] for at, rank in enumerate(ranks) if rank.waits
    ]
    if not parts:
        return np.zeros((0, 2), np.int64)
    waits = np.concatenate(parts)
    return waits[np.argsort(waits[:, 0], kind="stable")]


def _numbered(texts: Sequence[str]) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    numbers: dict[str, int] = {}
    number_of = np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int64)
    return tuple(numbers), number_of


def _peers(ranks: Sequence[RankOps], notes: list[str]) -> NDArray[np.int32]:
    """Peers do the same work at the same place: the k-th of its kind in each step of each rank.

    Where ranks or steps do not have as many of a kind, all of that kind are peers.
    """
    places: list[tuple[Hashable, int] | None] = []
    counts: dict[Hashable, dict[tuple[int, int], int]] = {}
    for at, rank in enumerate(ranks):
        for peer, step in zip(rank.peer, rank.step, strict=True):
            if peer is None:
                places.append(None)
                continue
            key = (peer, step < 0)
            by_part = counts.setdefault(key, {})
            k = by_part.get((at, step), 0)
            by_part[at, step] = k + 1
            places.append((key, k))
    n_parts = len({(at, step) for at, rank in enumerate(ranks) for step in set(rank.step) if step >= 0})
    if n_parts <= 1 and len(ranks) == 1:
        notes.append("one rank and one step: no op has a peer to be compared with, so the ideal is what was recorded")
    regular = {
        key
        for key, by_part in counts.items()
        if len(set(by_part.values())) == 1 and len(by_part) == (len(ranks) if _outside(key) else n_parts)
    }
    numbers: dict[Hashable, int] = {}
    peers = np.empty(len(places), np.int32)
    for op, place in enumerate(places):
        peer_key: Hashable = ("alone", op) if place is None else place if place[0] in regular else place[0]
        peers[op] = numbers.setdefault(peer_key, len(numbers))
    return peers


def _outside(key: Hashable) -> bool:
    """Whether work of this kind was done in no training step."""
    return isinstance(key, tuple) and key[-1] is True


def _merged(ranks: Sequence[RankOps]) -> list[str]:
    """Notes of the ranks; one that several share is said once."""
    by_text: dict[str, list[int]] = {}
    for rank in ranks:
        for note in rank.notes:
            by_text.setdefault(note, []).append(rank.rank)
    if len(ranks) == 1:
        return list(by_text)
    return [
        f"rank {sayers[0]}: {note}"
        if len(sayers) == 1
        else f"each of {len(sayers)} ranks, first rank {sayers[0]}: {note}"
        for note, sayers in by_text.items()
    ]


def _different_steps(ranks: Sequence[RankOps]) -> list[str]:
    """Says so where the ranks recorded different training steps."""
    steps = [sorted({step for step in rank.step if step >= 0}) for rank in ranks]
    other = next((at for at, mine in enumerate(steps) if mine and steps[0] and mine != steps[0]), None)
    if other is None:
        return []

    def words_of(at: int) -> str:
        return f"rank {ranks[at].rank} has {steps[at][0]} to {steps[at][-1]}"

    return [
        f"ranks recorded different steps: {words_of(0)}, {words_of(other)}; what only some did has no partner or peer"
    ]


def _pipelines(ranks: Sequence[RankOps]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(pipeline, stage) of every rank, or -1 throughout."""
    place = {rank.rank: at for at, rank in enumerate(ranks)}
    leader = list(range(len(ranks)))

    def root(at: int) -> int:
        while leader[at] != at:
            leader[at] = leader[leader[at]]
            at = leader[at]
        return at

    for rank in ranks:
        for item in rank.communications:
            if item.pair is not None and item.pair[0] in place and item.pair[1] in place:
                a, b = root(place[item.pair[0]]), root(place[item.pair[1]])
                leader[max(a, b)] = min(a, b)
    members: dict[int, list[int]] = {}
    for at in range(len(ranks)):
        members.setdefault(root(at), []).append(at)
    replica, stage = np.full(len(ranks), -1, np.int32), np.full(len(ranks), -1, np.int32)
    if {len(group) for group in members.values()} != {len(next(iter(members.values())))} or len(members) == len(ranks):
        return replica, stage
    for number, group in enumerate(members.values()):
        for place_in, at in enumerate(group):
            replica[at], stage[at] = number, place_in
    return replica, stage
