"""Builds a graph op by op: for segments, examples and tests of up to some thousand ops (about a microsecond per op)."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.graph.program import DTYPES, Graph, OpKind

COLUMNS = ("kind", "stream", "dep_ptr", "dep_idx", "label", "category", "flops", "bytes")

Name = TypeVar("Name")


class GraphBuilder:
    """Collects streams and ops, then `build()` freezes them. Op indices are handed out in call order from 0."""

    def __init__(self) -> None:
        self._streams: dict[tuple[int, str], int] = {}
        self._labels: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._rendezvous: dict[int, Hashable] = {}  # op -> its key, where it has one
        # Of each op, in columns of numpy's own types: lists are slow to turn into arrays, and tuples of ops would keep
        # the garbage collector busy.
        self._kind = array("B")
        self._stream = array("i")
        self._dep_idx = array("i")
        self._dep_ptr = array("q", [0])
        self._label = array("i")
        self._category = array("H")
        self._flops = array("d")
        self._bytes = array("d")
        self._duration_ns = array("q")

    @property
    def n_ops(self) -> int:
        """Ops so far: the index of the next one."""
        return len(self._kind)

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
        op = len(self._kind)
        self._dep_idx.extend(after)
        self._dep_ptr.append(len(self._dep_idx))
        self._kind.append(kind)
        self._stream.append(stream)
        self._label.append(self._labels.setdefault(label, len(self._labels)))
        self._category.append(self._categories.setdefault(category, len(self._categories)))
        self._flops.append(flops)
        self._bytes.append(bytes)
        self._duration_ns.append(duration_ns)
        if rendezvous is not None:
            self._rendezvous[op] = rendezvous
        return op

    def repeat(self, first: int, times: int) -> None:
        """Append the ops from `first` on so many times more, each time after ops as far back as they were.

        Ops with a rendezvous are not repeated: which of them would start together is not for a builder to say.
        """
        if any(op >= first for op in self._rendezvous):
            raise ValueError("ops with a rendezvous cannot be repeated")
        n, begins = len(self._kind) - first, self._dep_ptr[first]
        for column in (self._kind, self._stream, self._label, self._category, self._duration_ns):
            column += column[first:] * times
        self._flops += self._flops[first:] * times
        self._bytes += self._bytes[first:] * times
        copies = np.arange(1, times + 1)[:, None]
        index, ends = np.array(self._dep_idx[begins:]), np.array(self._dep_ptr[first + 1 :])
        self._dep_idx.frombytes((index + copies * n).astype(np.int32).tobytes())
        self._dep_ptr.frombytes((ends + copies * len(index)).tobytes())

    def copy_of(self, other: GraphBuilder, first: int, end: int) -> int:
        """Append another builder's ops from `first` to `end`, each after ops as far back as they were there.

        None of them has a rendezvous. Returns by how much their numbers are higher here.
        """
        moved = len(self._kind) - first
        begins, ends = other._dep_ptr[first], other._dep_ptr[end]
        further = len(self._dep_idx) - begins
        self._dep_idx.extend([op + moved for op in other._dep_idx[begins:ends]])
        self._dep_ptr.extend([at + further for at in other._dep_ptr[first + 1 : end + 1]])
        self._kind += other._kind[first:end]
        self._flops += other._flops[first:end]
        self._bytes += other._bytes[first:end]
        self._duration_ns += other._duration_ns[first:end]
        _renamed(self._stream, self._streams, other._stream[first:end], other._streams)
        _renamed(self._label, self._labels, other._label[first:end], other._labels)
        _renamed(self._category, self._categories, other._category[first:end], other._categories)
        return moved

    def build(self, multiplicity: Sequence[int] | None = None) -> Graph:
        """Freeze. `multiplicity[p]`: real ranks that program p stands for (default 1 each)."""
        ranks = [rank for rank, _ in self._streams]
        n_programs = max(ranks, default=-1) + 1 if multiplicity is None else len(multiplicity)
        groups = _numbered(self._rendezvous.values())
        rendezvous = np.full(self.n_ops, -1, np.int32)
        for op, key in self._rendezvous.items():
            rendezvous[op] = groups[key]
        return Graph(
            **{name: np.array(getattr(self, f"_{name}"), DTYPES[name]) for name in COLUMNS},
            stream_rank=np.array(ranks, dtype=np.int32),
            rendezvous=rendezvous,
            multiplicity=np.array([1] * n_programs if multiplicity is None else multiplicity, dtype=np.int64),
            labels=tuple(self._labels) or ("",),
            categories=tuple(self._categories) or ("",),
            stream_names=tuple(name for _, name in self._streams),
        )

    def lists(self) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[int], list[str]]:
        """What a graph would hold, without making one: kinds, streams, pointers into and index of what each op waits
        for, durations in ns, names of the streams."""
        names = [name for _, name in self._streams]
        return self._kind, self._stream, self._dep_ptr, self._dep_idx, self._duration_ns, names

    def duration_ns(self) -> NDArray[np.int64]:
        """int64[n]: the durations that were given to `op`."""
        return np.array(self._duration_ns, dtype=np.int64)


def _renamed(column: array[int], names: dict[Name, int], more: array[int], others: dict[Name, int]) -> None:
    """Append another table's numbers of names as this table's, which takes in those that are new."""
    their_names, place = list(others), np.zeros(len(others), column.typecode)
    for number in dict.fromkeys(more):
        place[number] = names.setdefault(their_names[number], len(names))
    column.frombytes(place[np.array(more)].tobytes())


def _numbered(keys: Iterable[Hashable]) -> dict[object, int]:
    """Keys in the order in which they first come, numbered from 0."""
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}
