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

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import InputFileError
from windtunnel.studies.traces.operation_table.operation_table import (
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
    OperationTable,
)

_SAME_INSTANT_S = 5e-5  # starts closer than this are not in a known order
_COMPUTE = (FORWARD, BACKWARD)
STREAMS = ("compute", *SENDS_AND_RECEIVES, "data", "tail")
_TAIL = ("", GC, LAYERNORM, EMBEDDING, SEPARATE, CLIP, OPTIMIZER)  # in the order in which they run


@dataclass(frozen=True, eq=False)
class Pattern:
    """The k ops of a replica: where each runs and what it waits for. Indices count the ops of the table."""

    stream: NDArray[np.int32]  # [k] stage * len(STREAMS) + index into STREAMS
    order: NDArray[np.int64]  # [k] ops, those of one stream in the order in which they run
    waits: tuple[tuple[int, int], ...]  # (op, op that must have ended)
    meets: tuple[tuple[int, ...], ...]  # ops of one replica that start together
    across_replicas: NDArray[np.bool_]  # [k] a rendezvous of all replicas too


Ops = dict[str, list[int]]  # of one stage, by kind, in the order in which they started


def find_pattern(path: Path, table: OperationTable, usual: tuple[int, int]) -> Pattern:
    """The pattern that the (step, replica) `usual` of a table ran.

    Raises InputFileError: `path` has sends or receives without partner, or computes without their receives.
    """
    kind, seq, stage, start_s = table.kind, table.seq, table.stage, table.start_s[usual]
    # By name where start and number are the same: those who published the tables sort them so.
    by_name = np.argsort(np.argsort(KINDS))[kind]
    in_order = np.lexsort((by_name, seq, start_s))
    search = _Search(path, table, usual)
    for s in range(table.n_stages):
        search.stage(s, in_order[stage[in_order] == s].tolist())
    streams = np.array([_stream_of(KINDS[number]) for number in kind], dtype=np.int32) + stage * len(STREAMS)
    tail_rank = np.array([_TAIL.index(KINDS[number]) if KINDS[number] in _TAIL else 0 for number in kind])
    meets = search.partners()
    for name in (EMBEDDING, CLIP):
        # One op per stage each; only the first and the last stage hold the embedding.
        rounds: dict[int, list[int]] = {}
        for op in np.flatnonzero(kind == KINDS.index(name)).tolist():
            rounds.setdefault(int(seq[op]), []).append(op)
        meets += [tuple(members) for members in rounds.values()]
    return Pattern(
        stream=streams,
        order=np.lexsort((by_name, seq, np.where(tail_rank > 0, 0.0, start_s), tail_rank, streams)),
        waits=tuple(search.waits),
        meets=tuple(meets),
        across_replicas=np.isin(kind, [KINDS.index(name) for name in (GATHER, SCATTER, SEPARATE, CLIP)]),
    )


def _stream_of(name: str) -> int:
    if name in _COMPUTE:
        return 0
    if name in SENDS_AND_RECEIVES:
        return STREAMS.index(name)
    return STREAMS.index("data" if name in (GATHER, SCATTER) else "tail")


class _Search:
    """What is found while the stages are looked at in turn."""

    def __init__(self, path: Path, table: OperationTable, usual: tuple[int, int]) -> None:
        self.path, self.n_stages = path, table.n_stages
        self.start_s, self.end_s = table.start_s[usual], table.start_s[usual] + table.duration_s[usual]
        self.chunk: list[int] = table.chunk.tolist()
        self.model_chunk: list[int] = table.model_chunk.tolist()
        self.seq: list[int] = table.seq.tolist()
        self.kind = [KINDS[number] for number in table.kind]
        self.overlapped = SEPARATE in self.kind
        self.waits: list[tuple[int, int]] = []
        self.launched: dict[tuple[str, int], list[int]] = {}  # (kind, stage) -> ops with a partner

    def stage(self, stage: int, in_order: list[int]) -> None:
        """What the ops of one stage wait for."""
        ops: Ops = {name: [] for name in KINDS}
        for op in in_order:
            ops[self.kind[op]].append(op)
        computes = [op for op in in_order if self.kind[op] in _COMPUTE]
        if not ops[FORWARD] or not ops[BACKWARD]:
            missing = BACKWARD if ops[FORWARD] else FORWARD
            raise InputFileError(self.path, f"stage {stage} has no {missing}", "give whole steps")
        for name in SENDS_AND_RECEIVES:
            self._pipeline(name, stage, ops)
        at = next(i for i, op in enumerate(computes) if self.kind[op] == BACKWARD)
        if at >= 2:  # the first backward send and receive
            for name in ("backward-recv", "backward-send"):
                self.waits += [(op, computes[at - 2]) for op in self._numbered(ops[name])[:1]]
        self._gathers(ops)
        self._tail(ops, max(computes, key=self.end_s.__getitem__))
        if self.overlapped:
            self._scatters(ops)

    def _numbered(self, ops: list[int]) -> list[int]:
        return sorted(ops, key=self.seq.__getitem__)

    def _pipeline(self, name: str, stage: int, ops: Ops) -> None:
        """Tie the sends or receives `name` of one stage to its computes, and note those that have a partner."""
        start_s, end_s = self.start_s, self.end_s
        direction, action = name.split("-")
        by_seq = self._numbered(ops[direction + "-compute"])
        if action == "recv":
            last_start = max(start_s[op] for op in by_seq)
            active = [op for op in ops[name] if start_s[op] <= last_start + _SAME_INSTANT_S]
        else:
            first_end = min(end_s[op] for op in by_seq)
            active = [op for op in ops[name] if end_s[op] >= first_end - _SAME_INSTANT_S]
        missing = len(by_seq) - len(active)
        skipped = 0
        if missing:
            at_an_end = stage in (0, self.n_stages - 1)
            if not at_an_end or (active and missing != 1):
                raise InputFileError(
                    self.path,
                    f"stage {stage} has {len(active)} ops '{name}' for {len(by_seq)} of '{direction}-compute'",
                    "the profile lost some; give complete steps",
                )
            skipped = 1 if action == "recv" and active else 0
        n_chunks = max(self.model_chunk) + 1
        toward = 1 if (direction == "forward") == (action == "send") else -1
        for at, op in enumerate(active, skipped):
            compute = by_seq[at]
            if action == "send":
                self.waits.append((op, compute))
            else:
                self.waits.append((compute, op))
                if at > 0:
                    self.waits.append((op, by_seq[at - 1]))
            if 0 <= self.model_chunk[compute] + toward < n_chunks:
                self.launched.setdefault((name, stage), []).append(op)

    def _gathers(self, ops: Ops) -> None:
        """The first forward of a chunk needs the last parameter gather of that chunk."""
        last = {self.chunk[op]: op for op in self._numbered(ops[GATHER])}
        for of_chunk, gather in last.items():
            first = next((op for op in ops[FORWARD] if self.chunk[op] == of_chunk), None)
            if first is not None:
                self.waits.append((first, gather))

    def _scatters(self, ops: Ops) -> None:
        """The first gradient scatter of a chunk needs the last backward of that chunk."""
        first = {self.chunk[op]: op for op in reversed(self._numbered(ops[SCATTER]))}
        for of_chunk, scatter in first.items():
            backwards = [op for op in ops[BACKWARD] if self.chunk[op] == of_chunk]
            if backwards:
                self.waits.append((scatter, max(backwards, key=self.end_s.__getitem__)))

    def _tail(self, ops: Ops, last_compute: int) -> None:
        """Everything after the last compute follows one after the other; gradients scatter within, or before, that."""
        chain = [op for name in (GC, LAYERNORM, EMBEDDING) for op in ops[name]]
        after = [op for name in (SEPARATE, CLIP, OPTIMIZER) for op in ops[name]]
        scatters = self._numbered(ops[SCATTER])
        first = (chain or ([] if self.overlapped else scatters) or after)[:1]
        self.waits += [(op, last_compute) for op in first]
        if not scatters:
            return
        if self.overlapped:
            past_gc = [op for op in [*chain, *after] if op not in ops[GC]]
            self.waits += [(op, scatters[-1]) for op in past_gc[:1]]
            return
        if chain:
            self.waits.append((scatters[0], chain[-1]))
        self.waits += [(op, scatters[-1]) for op in after[:1]]

    def partners(self) -> list[tuple[int, ...]]:
        """The k-th launched send between two stages with the k-th launched receive."""
        meets: list[tuple[int, ...]] = []
        for direction, toward in (("forward", 1), ("backward", -1)):
            for stage in range(self.n_stages):
                peer = (stage + toward) % self.n_stages
                sends = self.launched.get((f"{direction}-send", stage), [])
                receives = self.launched.get((f"{direction}-recv", peer), [])
                if len(sends) != len(receives):
                    raise InputFileError(
                        self.path,
                        f"stage {stage} sends {len(sends)} '{direction}-send' to stage {peer}, which receives "
                        f"{len(receives)}",
                        "the profile lost some; give complete steps",
                    )
                meets += list(zip(sends, receives, strict=True))
        return meets
