"""What a step executes: ops in flat arrays, one program per rank class.

An op occupies one *stream* of one *program* (rank class). It may start when the op before it on its stream has ended,
when every op that it depends on has ended, and, if it belongs to a *rendezvous*, when every other member of that
rendezvous may start too: a collective begins when its last member arrives.

A graph holds no durations: the same graph is priced many times, so durations travel beside it as `int64[n]`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class OpKind(IntEnum):
    """What occupies the stream. The values are stored in `Graph.kind` and are part of the file format."""

    COMPUTE = 0
    COLLECTIVE = 1
    SEND = 2
    RECV = 3
    HOST = 4
    ALLOC = 5
    FREE = 6


DTYPES = {
    "kind": np.uint8,
    "stream": np.int32,
    "stream_rank": np.int32,
    "dep_ptr": np.int64,
    "dep_idx": np.int32,
    "rendezvous": np.int32,
    "label": np.int32,
    "category": np.uint16,
    "flops": np.float64,
    "bytes": np.float64,
    "multiplicity": np.int64,
}


@dataclass(frozen=True, eq=False)
class Graph:
    """The programs of all rank classes, concatenated. n ops; ops of one stream run in array order.

    Construction checks dtypes and contiguity only (microseconds); kernels check indices before they follow them.
    """

    kind: NDArray[np.uint8]  # [n] OpKind
    stream: NDArray[np.int32]  # [n] global stream id
    stream_rank: NDArray[np.int32]  # [streams] program that the stream belongs to
    dep_ptr: NDArray[np.int64]  # [n+1] CSR: op i waits for dep_idx[dep_ptr[i]:dep_ptr[i+1]]
    dep_idx: NDArray[np.int32]
    rendezvous: NDArray[np.int32]  # [n] -1, or an id below n: ops with the same id start together
    label: NDArray[np.int32]  # [n] index into labels
    category: NDArray[np.uint16]  # [n] index into categories
    flops: NDArray[np.float64]  # [n]
    bytes: NDArray[np.float64]  # [n]
    multiplicity: NDArray[np.int64]  # [programs] real ranks that each program stands for
    labels: tuple[str, ...] = ("",)
    categories: tuple[str, ...] = ("",)
    stream_names: tuple[str, ...] = ()  # [streams], or empty

    def __post_init__(self) -> None:
        for name, dtype in DTYPES.items():
            array = getattr(self, name)
            # The compiled kernels take these very types; a silent cast per replay would cost more than the replay.
            assert array.dtype == dtype, f"Graph.{name} must be {dtype.__name__}, not {array.dtype}"
            assert array.flags.c_contiguous, f"Graph.{name} must be contiguous"

    @property
    def n_ops(self) -> int:
        """Number of ops over all programs."""
        return len(self.kind)

    @property
    def n_streams(self) -> int:
        """Number of streams over all programs."""
        return len(self.stream_rank)

    @property
    def n_programs(self) -> int:
        """Number of rank classes."""
        return len(self.multiplicity)

    @property
    def program(self) -> NDArray[np.int32]:
        """int32[n]: the program of each op."""
        return self.stream_rank[self.stream]

    @property
    def previous(self) -> NDArray[np.int32]:
        """int32[n]: the op before each on its stream; -1 for the first."""
        order = np.argsort(self.stream, kind="stable")
        previous = np.full(self.n_ops, -1, np.int32)
        same = self.stream[order[1:]] == self.stream[order[:-1]]
        previous[order[1:][same]] = order[:-1][same]
        return previous

    def copies(self, count: int, rendezvous: NDArray[np.int64], multiplicity: NDArray[np.int64]) -> Graph:
        """So many copies of all programs, side by side. `rendezvous`: [count, n] which of their ops start together."""
        which = np.arange(count, dtype=np.int64)[:, None]
        tiled: dict[str, Any] = {
            name: np.tile(getattr(self, name), count) for name in ("kind", "label", "category", "flops", "bytes")
        }
        return replace(
            self,
            **tiled,
            stream=(self.stream + which * self.n_streams).ravel().astype(np.int32),
            stream_rank=(self.stream_rank + which * self.n_programs).ravel().astype(np.int32),
            dep_ptr=np.append(0, self.dep_ptr[1:] + which * len(self.dep_idx)).astype(np.int64),
            dep_idx=(self.dep_idx + which * self.n_ops).ravel().astype(np.int32),
            rendezvous=rendezvous.ravel().astype(np.int32),
            multiplicity=multiplicity,
            stream_names=self.stream_names * count,
        )

    def name(self, op: int) -> str:
        """How messages speak of an op: its index, label, program and stream."""
        stream = int(self.stream[op])
        shown = self.stream_names[stream] if self.stream_names else str(stream)
        label = self.labels[int(self.label[op])] or OpKind(int(self.kind[op])).name.lower()
        return f"op {op} '{label}' (program {int(self.stream_rank[stream])}, stream {shown})"
