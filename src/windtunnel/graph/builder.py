"""Builds a graph op by op: for segments, examples and tests of up to some thousand ops (about a microsecond per op)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph.program import Graph, OpKind


class GraphBuilder:
    """Collects streams and ops, then `build()` freezes them. Op indices are handed out in call order from 0."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, str], int] = {}
        self._dep_idx: list[int] = []
        # Of each op: kind, stream, where its part of `_dep_idx` ends, rendezvous, label, category, FLOPs, bytes, ns.
        self._ops: list[tuple[OpKind, int, int, Hashable, str, str, float, float, int]] = []

    def stream(self, rank: int, name: str) -> int:
        """The global id of the stream `name` of program `rank`; made on first use."""
        return self._streams.setdefault((rank, name), len(self._streams))

    def op(
        self,
        kind: OpKind,
        stream: int,
        *,
        after: Iterable[int] = (),
        duration_ns: int = 0,
        label: str = "",
        category: str = "",
        flops: float = 0.0,
        bytes: float = 0.0,
        rendezvous: Hashable | None = None,
    ) -> int:
        """Append an op to the end of a stream and return its index.

        `after`: ops (also later ones) that must have ended. `rendezvous`: any key; ops that share it start together.
        """
        self._dep_idx.extend(after)
        self._ops.append(
            (kind, stream, len(self._dep_idx), rendezvous, label, category, flops, bytes, duration_ns)
        )  # fmt: skip
        return len(self._ops) - 1

    def build(self, multiplicity: Sequence[int] | None = None) -> Graph:
        """Freeze. `multiplicity[p]`: real ranks that program p stands for (default 1 each)."""
        ranks = [rank for rank, _ in self._streams]
        n_programs = max(ranks, default=-1) + 1 if multiplicity is None else len(multiplicity)
        kind, stream, ends, rendezvous, label, category, flops, size, _ = self._columns()
        labels, categories = _numbered(label), _numbered(category)
        groups = _numbered(key for key in rendezvous if key is not None)
        return Graph(
            kind=np.array(kind, dtype=np.uint8),
            stream=np.array(stream, dtype=np.int32),
            stream_rank=np.array(ranks, dtype=np.int32),
            dep_ptr=np.array((0, *ends), dtype=np.int64),
            dep_idx=np.array(self._dep_idx, dtype=np.int32),
            rendezvous=np.array([-1 if key is None else groups[key] for key in rendezvous], dtype=np.int32),
            label=np.array([labels[name] for name in label], dtype=np.int32),
            category=np.array([categories[name] for name in category], dtype=np.uint16),
            flops=np.array(flops, dtype=np.float64),
            bytes=np.array(size, dtype=np.float64),
            multiplicity=np.array([1] * n_programs if multiplicity is None else multiplicity, dtype=np.int64),
            labels=tuple(labels) or ("",),
            categories=tuple(categories) or ("",),
            stream_names=tuple(name for _, name in self._streams),
        )

    def _columns(self) -> tuple[tuple[Any, ...], ...]:
        return tuple(zip(*self._ops, strict=True)) if self._ops else ((),) * 9

    def lists(self) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int], list[str]]:
        """What a graph would hold, without making one: kinds, streams, pointers into and index of what each op waits
        for, durations in ns, names of the streams."""
        kind, stream, ends, *_, duration = self._columns()
        return kind, stream, (0, *ends), self._dep_idx, duration, [name for _, name in self._streams]

    def duration_ns(self) -> NDArray[np.int64]:
        """int64[n]: the durations that were given to `op`."""
        return np.array(self._columns()[-1], dtype=np.int64)


def _numbered(keys: Iterable[Hashable]) -> dict[Any, int]:
    """Keys in the order in which they first come, numbered from 0."""
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}
