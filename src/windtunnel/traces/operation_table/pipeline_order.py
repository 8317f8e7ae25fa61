"""What the ops of one replica and step wait for: the dependency model of an operation table.

The schedule is static, so one (step, replica) serves as the pattern for all. Per stage (Lin et al., OSDI'25, section 3
and artifact):

    compute     forwards and backwards in the order in which they started
    p2p         one stream for each of forward/backward send/receive, in order of start
                a receive feeds its compute, and is posted when the compute of its kind before that has ended;
                a send follows its compute; the first backward send and receive are posted after the forward before
                the last one of the warm-up
    data        parameter gathers and gradient scatters in order of start; a chunk's first forward needs its gather;
                with overlap, a chunk's first scatter needs its last backward
    tail        gc, layer-norm gradients, embedding gradients, [scatters without overlap], separate gradients, clip,
                optimizer

Sends meet receives by order between two stages: the k-th forward send of stage s and the k-th forward receive of stage
s + 1, cyclic, and the reverse for backwards. Profilers also record sends and receives that were never launched: before
the first or after the last compute of their kind, or at the ends of the model. Those meet nobody.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError
from windtunnel.traces.operation_table.operation_table import (
    BACKWARD,
    CLIP,
    EMBEDDING,
    FORWARD,
    GATHER,
    GC,
    KINDS,
    LAYERNORM,
    OPTIMIZER,
    SCATTER,
    SENDS_AND_RECEIVES,
    SEPARATE,
)

_SAME_INSTANT_S = 5e-5  # starts closer than this are not in a known order
_COMPUTE = (FORWARD, BACKWARD)
STREAMS = ("compute", *SENDS_AND_RECEIVES, "data", "tail")


@dataclass(frozen=True, eq=False)
class Pattern:
    """The k ops of a replica: where each runs and what it waits for. Indices count the ops of the table."""

    stream: NDArray[np.int32]  # [k] stage * len(STREAMS) + index into STREAMS
    order: NDArray[np.int64]  # [k] ops, those of one stream in the order in which they run
    waits: tuple[tuple[int, int], ...]  # (op, op that must have ended)
    meets: tuple[tuple[int, ...], ...]  # ops of one replica that start together
    across_replicas: NDArray[np.bool_]  # [k] a rendezvous of all replicas too


@dataclass
class _Draft:
    """What is found while the stages are looked at in turn."""

    waits: list[tuple[int, int]] = field(default_factory=list)
    launched: dict[tuple[str, int], list[int]] = field(default_factory=dict)  # (kind, stage) -> ops with a partner


def find_pattern(
    path: Any,
    stage: NDArray[np.int32],
    kind: NDArray[np.int32],
    seq: NDArray[np.int32],
    chunk: NDArray[np.int32],
    model_chunk: NDArray[np.int32],
    start_s: NDArray[np.float64],
    duration_s: NDArray[np.float64],
) -> Pattern:
    """The pattern of one replica and step; arrays are [k].

    Raises:
        InputFileError: `path` has sends or receives without partner, or computes without their receives.
    """
    end_s = start_s + duration_s
    n_stages = int(stage.max()) + 1
    # By name where start and number are the same: those who published the tables sort them so.
    by_name = np.argsort(np.argsort(KINDS))[kind]
    in_order = np.lexsort((by_name, seq, start_s))
    draft = _Draft()
    overlapped = bool((kind == KINDS.index(SEPARATE)).any())
    for s in range(n_stages):
        ops: dict[str, list[int]] = {name: [] for name in KINDS}
        for op in in_order[stage[in_order] == s].tolist():
            ops[KINDS[kind[op]]].append(op)
        computes = [op for op in in_order[stage[in_order] == s].tolist() if KINDS[kind[op]] in _COMPUTE]
        if not ops[FORWARD] or not ops[BACKWARD]:
            raise InputFileError(path, f"stage {s} has no {BACKWARD if ops[FORWARD] else FORWARD}", "give whole steps")
        for name in SENDS_AND_RECEIVES:
            _pipeline(path, draft, name, s, n_stages, ops, seq, start_s, end_s, model_chunk)
        _first_backward(draft, ops, computes, kind, seq)
        _gathers(draft, ops, chunk, seq)
        last_compute = max(computes, key=lambda op: end_s[op])
        _tail(draft, ops, last_compute, overlapped, seq)
        if overlapped:
            _scatters(draft, ops, chunk, seq, end_s)
    streams = np.array([_stream_of(KINDS[number]) for number in kind], dtype=np.int32) + stage * len(STREAMS)
    tail_rank = np.array([_TAIL.index(KINDS[number]) if KINDS[number] in _TAIL else 0 for number in kind])
    meets = _partners(path, draft, n_stages)
    for name in (EMBEDDING, CLIP):
        # One op per stage each; only the first and the last stage hold the embedding.
        rounds: dict[int, list[int]] = {}
        for op in np.flatnonzero(kind == KINDS.index(name)).tolist():
            rounds.setdefault(int(seq[op]), []).append(op)
        meets += [tuple(members) for members in rounds.values()]
    return Pattern(
        stream=streams,
        order=np.lexsort((by_name, seq, np.where(tail_rank > 0, 0.0, start_s), tail_rank, streams)),
        waits=tuple(draft.waits),
        meets=tuple(meets),
        across_replicas=np.isin(kind, [KINDS.index(name) for name in (GATHER, SCATTER, SEPARATE, CLIP)]),
    )


_TAIL = ("", GC, LAYERNORM, EMBEDDING, SEPARATE, CLIP, OPTIMIZER)  # in the order in which they run


def _stream_of(name: str) -> int:
    if name in _COMPUTE:
        return 0
    if name in SENDS_AND_RECEIVES:
        return STREAMS.index(name)
    return STREAMS.index("data" if name in (GATHER, SCATTER) else "tail")


def _pipeline(
    path: Any,
    draft: _Draft,
    name: str,
    stage: int,
    n_stages: int,
    ops: dict[str, list[int]],
    seq: NDArray[np.int32],
    start_s: NDArray[np.float64],
    end_s: NDArray[np.float64],
    model_chunk: NDArray[np.int32],
) -> None:
    """Tie the sends or receives `name` of one stage to its computes, and note those that have a partner."""
    direction, action = name.split("-")
    by_seq = sorted(ops[direction + "-compute"], key=lambda op: int(seq[op]))
    if action == "recv":
        last_start = max(start_s[op] for op in by_seq)
        active = [op for op in ops[name] if start_s[op] <= last_start + _SAME_INSTANT_S]
    else:
        first_end = min(end_s[op] for op in by_seq)
        active = [op for op in ops[name] if end_s[op] >= first_end - _SAME_INSTANT_S]
    missing = len(by_seq) - len(active)
    skipped = 0
    if missing:
        at_an_end = stage in (0, n_stages - 1)
        if not at_an_end or (active and missing != 1):
            raise InputFileError(
                path,
                f"stage {stage} has {len(active)} ops '{name}' for {len(by_seq)} of '{direction}-compute'",
                "the profile lost some; give complete steps",
            )
        skipped = 1 if action == "recv" and active else 0
    n_chunks = int(model_chunk.max()) + 1
    toward = 1 if (direction == "forward") == (action == "send") else -1
    for at, op in enumerate(active):
        compute = by_seq[at + skipped]
        if action == "send":
            draft.waits.append((op, compute))
        else:
            draft.waits.append((compute, op))
            if at + skipped > 0:
                draft.waits.append((op, by_seq[at + skipped - 1]))
        if 0 <= int(model_chunk[compute]) + toward < n_chunks:
            draft.launched.setdefault((name, stage), []).append(op)


def _first_backward(
    draft: _Draft,
    ops: dict[str, list[int]],
    computes: list[int],
    kind: NDArray[np.int32],
    seq: NDArray[np.int32],
) -> None:
    backward = KINDS.index(BACKWARD)
    at = next(i for i, op in enumerate(computes) if kind[op] == backward)
    if at >= 2:
        for name in ("backward-recv", "backward-send"):
            draft.waits += [(op, computes[at - 2]) for op in _numbered(ops[name], seq)[:1]]


def _numbered(ops: list[int], seq: NDArray[np.int32]) -> list[int]:
    return sorted(ops, key=lambda op: int(seq[op]))


def _gathers(draft: _Draft, ops: dict[str, list[int]], chunk: NDArray[np.int32], seq: NDArray[np.int32]) -> None:
    """The first forward of a chunk needs the last parameter gather of that chunk."""
    last = {int(chunk[op]): op for op in _numbered(ops[GATHER], seq)}
    for of_chunk, gather in last.items():
        first = next((op for op in ops[FORWARD] if chunk[op] == of_chunk), None)
        if first is not None:
            draft.waits.append((first, gather))


def _scatters(
    draft: _Draft,
    ops: dict[str, list[int]],
    chunk: NDArray[np.int32],
    seq: NDArray[np.int32],
    end_s: NDArray[np.float64],
) -> None:
    """The first gradient scatter of a chunk needs the last backward of that chunk."""
    first: dict[int, int] = {}
    for op in _numbered(ops[SCATTER], seq):
        first.setdefault(int(chunk[op]), op)
    for of_chunk, scatter in first.items():
        backwards = [op for op in ops[BACKWARD] if chunk[op] == of_chunk]
        if backwards:
            draft.waits.append((scatter, max(backwards, key=lambda op: end_s[op])))


def _tail(
    draft: _Draft, ops: dict[str, list[int]], last_compute: int, overlapped: bool, seq: NDArray[np.int32]
) -> None:
    """Everything after the last compute follows one after the other; gradients scatter within, or before, that."""
    chain = [op for name in (GC, LAYERNORM, EMBEDDING) for op in ops[name]]
    after = [op for name in (SEPARATE, CLIP, OPTIMIZER) for op in ops[name]]
    scatters = _numbered(ops[SCATTER], seq)
    first = (chain or ([] if overlapped else scatters) or after)[:1]
    draft.waits += [(op, last_compute) for op in first]
    if not scatters:
        return
    if overlapped:
        past_gc = [op for op in [*chain, *after] if op not in ops[GC]]
        draft.waits += [(op, scatters[-1]) for op in past_gc[:1]]
        return
    if chain:
        draft.waits.append((scatters[0], chain[-1]))
    draft.waits += [(op, scatters[-1]) for op in after[:1]]


def _partners(path: Any, draft: _Draft, n_stages: int) -> list[tuple[int, ...]]:
    """The k-th launched send between two stages with the k-th launched receive."""
    meets: list[tuple[int, ...]] = []
    for direction, toward in (("forward", 1), ("backward", -1)):
        for stage in range(n_stages):
            peer = (stage + toward) % n_stages
            sends = draft.launched.get((f"{direction}-send", stage), [])
            receives = draft.launched.get((f"{direction}-recv", peer), [])
            if len(sends) != len(receives):
                raise InputFileError(
                    path,
                    f"stage {stage} sends {len(sends)} '{direction}-send' to stage {peer}, which receives "
                    f"{len(receives)}",
                    "the profile lost some; give complete steps",
                )
            meets += list(zip(sends, receives, strict=True))
    return meets
