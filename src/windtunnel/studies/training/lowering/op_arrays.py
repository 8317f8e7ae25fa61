"""Op arrays of a step under construction: blocks of many ops at once, single ops in between."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

COLUMNS = ("kind", "stream", "label", "category", "duration", "interference", "rendezvous", "nic", "sender", "receiver")
ABSENT = {"rendezvous": -1, "sender": -1, "receiver": -1}  # what stands where nothing is given; 0 elsewhere


class OpArrays:
    """Blocks of many ops, and single ops that are turned into a block when one follows."""

    def __init__(self) -> None:
        self.n = 0
        self._blocks: dict[str, list[NDArray[np.int64]]] = {name: [] for name in COLUMNS}
        self._bytes: list[NDArray[np.float64]] = []
        self._singles: list[tuple[int, ...]] = []
        self._single_bytes: list[float] = []
        self._dep_op: list[NDArray[np.int64]] = []
        self._dep_on: list[NDArray[np.int64]] = []
        self._single_deps: list[tuple[int, int]] = []

    def add(self, count: int, columns: Mapping[str, object], bytes_total: float = 0.0) -> int:
        """Append `count` ops, scalars broadcast; returns the index of the first."""
        self._flush()
        first = self.n
        for name, parts in self._blocks.items():
            value = np.asarray(columns.get(name, ABSENT.get(name, 0)), dtype=np.int64)
            parts.append(np.broadcast_to(value, (count,)))
        self._bytes.append(np.full(count, bytes_total))
        self.n += count
        return first

    def append(
        self,
        kind: int,
        stream: int,
        label: int,
        category: int,
        duration: int,
        interference: int,
        *,
        rendezvous: int = -1,
        nic: int = 0,
        bytes_total: float = 0.0,
    ) -> int:
        """Append one op that sends nothing to a rank by name; returns its index."""
        self._singles.append((kind, stream, label, category, duration, interference, rendezvous, nic, -1, -1))
        self._single_bytes.append(bytes_total)
        self.n += 1
        return self.n - 1

    def depend(self, op: NDArray[np.int64], on: NDArray[np.int64]) -> None:
        """Ops wait for ops, element by element."""
        self._dep_op.append(op)
        self._dep_on.append(on)

    def wait(self, op: int, on: int) -> None:
        """One op waits for one op."""
        self._single_deps.append((op, on))

    def _flush(self) -> None:
        if self._singles:
            block = np.array(self._singles, dtype=np.int64)
            for number, parts in enumerate(self._blocks.values()):
                parts.append(block[:, number])
            self._bytes.append(np.array(self._single_bytes))
            self._singles, self._single_bytes = [], []

    def columns(self) -> dict[str, NDArray[np.int64]]:
        """int64[n] of each column."""
        self._flush()
        return {name: np.concatenate(parts) for name, parts in self._blocks.items()}

    def bytes(self) -> NDArray[np.float64]:
        """float64[n]: bytes moved by each op."""
        self._flush()
        return np.concatenate(self._bytes)

    def dependencies(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """CSR of what each op waits for, as `Graph` wants it."""
        single = np.array(self._single_deps, dtype=np.int64).reshape(-1, 2)
        op = np.concatenate([*self._dep_op, single[:, 0]])
        on = np.concatenate([*self._dep_on, single[:, 1]])
        pointer = np.zeros(self.n + 1, np.int64)
        np.cumsum(np.bincount(op, minlength=self.n), out=pointer[1:])
        return pointer, on[np.argsort(op, kind="stable")].astype(np.int32)
