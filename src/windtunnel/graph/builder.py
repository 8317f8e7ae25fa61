"""Builds a graph op by op: for segments, examples and tests of up to some thousand ops (about a microsecond per op)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from windtunnel.graph.program import Graph, OpKind


class GraphBuilder:
    """Collects streams and ops, then `build()` freezes them. Op indices are handed out in call order from 0."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, str], int] = {}
        self._labels: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._groups: dict[Hashable, int] = {}
        self._kind: list[int] = []
        self._stream: list[int] = []
        self._dep_ptr: list[int] = [0]
        self._dep_idx: list[int] = []
        self._rendezvous: list[int] = []
        self._label: list[int] = []
        self._category: list[int] = []
        self._flops: list[float] = []
        self._bytes: list[float] = []
        self._duration_ns: list[int] = []

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
        self._kind.append(kind)
        self._stream.append(stream)
        self._dep_idx.extend(after)
        self._dep_ptr.append(len(self._dep_idx))
        groups, labels, categories = self._groups, self._labels, self._categories
        self._rendezvous.append(-1 if rendezvous is None else groups.setdefault(rendezvous, len(groups)))
        self._label.append(labels.setdefault(label, len(labels)))
        self._category.append(categories.setdefault(category, len(categories)))
        self._flops.append(flops)
        self._bytes.append(bytes)
        self._duration_ns.append(duration_ns)
        return len(self._kind) - 1

    def build(self, multiplicity: Sequence[int] | None = None) -> Graph:
        """Freeze. `multiplicity[p]`: real ranks that program p stands for (default 1 each)."""
        ranks = [rank for rank, _ in self._streams]
        n_programs = max(ranks, default=-1) + 1 if multiplicity is None else len(multiplicity)
        return Graph(
            kind=np.array(self._kind, dtype=np.uint8),
            stream=np.array(self._stream, dtype=np.int32),
            stream_rank=np.array(ranks, dtype=np.int32),
            dep_ptr=np.array(self._dep_ptr, dtype=np.int64),
            dep_idx=np.array(self._dep_idx, dtype=np.int32),
            rendezvous=np.array(self._rendezvous, dtype=np.int32),
            label=np.array(self._label, dtype=np.int32),
            category=np.array(self._category, dtype=np.uint16),
            flops=np.array(self._flops, dtype=np.float64),
            bytes=np.array(self._bytes, dtype=np.float64),
            multiplicity=np.array([1] * n_programs if multiplicity is None else multiplicity, dtype=np.int64),
            labels=tuple(self._labels) or ("",),
            categories=tuple(self._categories) or ("",),
            stream_names=tuple(name for _, name in self._streams),
        )

    def duration_ns(self) -> NDArray[np.int64]:
        """int64[n]: the durations that were given to `op`."""
        return np.array(self._duration_ns, dtype=np.int64)
