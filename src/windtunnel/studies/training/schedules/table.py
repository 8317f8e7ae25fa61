"""A pipeline schedule as a table: what each rank does, in program order, and what each action waits for.

Every schedule is a set of actions (rank, kind, chunk, micro-batch) and, inside a rank, an order. Nothing in it is a
time: when an action starts follows from the order, from the dependencies and from the prices, and is the engine's
business. The dependencies are those of the chain rule:

    FORWARD(v, m)          <- FORWARD(v-1, m)
    BACKWARD(v, m)         <- FORWARD(v, m), BACKWARD(v+1, m)
    BACKWARD_INPUT(v, m)   <- FORWARD(v, m), BACKWARD_INPUT(v+1, m)
    BACKWARD_WEIGHT(v, m)  <- BACKWARD_INPUT(v, m)

with v the place of a model piece in the chain of pieces (its virtual stage) and m the micro-batch. A (v, m) is worked
on by exactly one rank, also where two ranks hold the same piece (DualPipe), so (v, m) is a key.

A schedule file does not order actions by hand: it gives each action a sort key inside its rank (a slot number), and
`table` sorts. For 1F1B, say, the forward of micro-batch i is in slot i and its backward in slot i + warm-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Scalar = TypeVar("Scalar", bound=np.generic)

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]


class Kind(IntEnum):
    """What an action computes."""

    FORWARD = 0
    BACKWARD = 1  # input and weight gradients together
    BACKWARD_INPUT = 2
    BACKWARD_WEIGHT = 3

    @property
    def words(self) -> str:
        """`backward-input`."""
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, eq=False)
class Schedule:
    """The actions of all ranks, sorted by rank and, inside a rank, in program order. Arrays are read-only.

    Compared and hashed by identity: `schedule(...)` gives the same object for the same arguments.
    """

    name: str
    stages: int  # pipeline ranks
    chunks: int  # model pieces per rank
    micro_batches: int
    rank: Ints  # [actions]
    kind: Ints  # [actions], of Kind
    chunk: Ints  # [actions]
    micro_batch: Ints  # [actions]
    overlap: Ints  # [actions], the action that runs at the same time on the same rank (DualPipe's F&B), else -1
    rank_offset: Longs  # [stages + 1], rank r owns actions rank_offset[r] : rank_offset[r + 1]
    virtual_stage: Ints  # [stages, chunks], the place of each piece in its chain

    @property
    def n_virtual(self) -> int:
        """Length of the chain of model pieces."""
        return int(self.virtual_stage.max()) + 1

    @cached_property
    def stage_of(self) -> Ints:
        """The virtual stage of each action, [actions]."""
        return _frozen(self.virtual_stage[self.rank, self.chunk], np.int32)

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of actions that it has."""
        return tuple(Kind(kind) for kind in np.flatnonzero(np.bincount(self.kind)).tolist())

    @cached_property
    def first_forward(self) -> Longs:
        """The action that first runs each piece forward, [stages, chunks]; -1 for none."""
        return self._last_of(np.flatnonzero(self.kind == Kind.FORWARD)[::-1])

    @cached_property
    def last_backward(self) -> Longs:
        """The action that last runs each piece backward, to its weights' gradients, [stages, chunks]; -1 for none."""
        return self._last_of(np.flatnonzero(self._makes_gradients))

    @cached_property
    def first_backward(self) -> Longs:
        """The action that first does so, [stages, chunks]; -1 for none."""
        return self._last_of(np.flatnonzero(self._makes_gradients)[::-1])

    @property
    def _makes_gradients(self) -> NDArray[np.bool_]:
        return np.isin(self.kind, (Kind.BACKWARD, Kind.BACKWARD_WEIGHT))

    def _last_of(self, actions: Longs) -> Longs:
        """The last of these actions for each piece of each rank."""
        last = np.full(self.stages * self.chunks, -1, np.int64)
        last[self.rank[actions].astype(np.int64) * self.chunks + self.chunk[actions]] = actions
        return _frozen(last.reshape(self.stages, self.chunks), np.int64)

    @cached_property
    def crossing(self) -> tuple[Longs, Longs]:
        """Actions that need what another rank computes, and which of its actions that is."""
        pointer, needs = self.depends()
        consumer = np.repeat(np.arange(len(self.rank)), np.diff(pointer))
        across = self.rank[consumer] != self.rank[needs]
        return _frozen(consumer[across], np.int64), _frozen(needs[across], np.int64)

    def of_rank(self, rank: int) -> slice:
        """The actions of a rank."""
        return slice(int(self.rank_offset[rank]), int(self.rank_offset[rank + 1]))

    def holders(self, stage: int) -> list[int]:
        """Ranks that hold a virtual stage: two where the schedule runs in both directions."""
        return np.flatnonzero((self.virtual_stage == stage).any(axis=1)).tolist()

    def depends(self) -> tuple[Longs, Longs]:
        """Which actions' outputs each action needs, as CSR: action i needs dep_idx[dep_ptr[i] : dep_ptr[i + 1]].

        The order inside a rank is not repeated here. An action that the table lacks cannot be named: `check` finds it.
        """
        return self._depends

    @cached_property
    def _depends(self) -> tuple[Longs, Longs]:
        kind, micro_batches, last = self.kind, self.micro_batches, self.n_virtual - 1
        size = (last + 1) * micro_batches
        key = self.stage_of.astype(np.int64) * micro_batches + self.micro_batch
        index = np.arange(len(kind), dtype=np.int64)
        forward, backward = kind == Kind.FORWARD, (kind == Kind.BACKWARD) | (kind == Kind.BACKWARD_INPUT)
        forward_at, backward_at = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
        forward_at[key[forward]] = index[forward]
        backward_at[key[backward]] = index[backward]

        # two columns per action, -1 for none: the neighbour in the chain, and the rank's own earlier action
        needs = np.full((len(kind), 2), -1, np.int64)
        fed = forward & (self.stage_of > 0)
        needs[fed, 0] = forward_at[key[fed] - micro_batches]
        led = backward & (self.stage_of < last)
        needs[led, 0] = backward_at[key[led] + micro_batches]
        needs[backward, 1] = forward_at[key[backward]]
        weight = kind == Kind.BACKWARD_WEIGHT
        needs[weight, 1] = backward_at[key[weight]]
        there = needs >= 0
        pointer = np.zeros(len(kind) + 1, np.int64)
        np.cumsum(there.sum(axis=1), out=pointer[1:])
        return _frozen(pointer, np.int64), _frozen(needs[there], np.int64)

    def describe(self, action: int) -> str:
        """One action in words, for messages."""
        kind = Kind(int(self.kind[action])).words
        return (
            f"rank {self.rank[action]}: {kind} of micro-batch {self.micro_batch[action]} on chunk {self.chunk[action]}"
            f" (stage {self.stage_of[action]} of {self.n_virtual})"
        )


def table(
    name: str,
    micro_batches: int,
    virtual_stage: ArrayLike,
    *,
    rank: ArrayLike,
    key: ArrayLike,
    kind: ArrayLike,
    chunk: ArrayLike,
    micro_batch: ArrayLike,
    with_next: ArrayLike | None = None,
) -> Schedule:
    """Sort actions by (rank, key), keys distinct in a rank, into a `Schedule`. `with_next` marks overlapped pairs."""
    piece = np.atleast_2d(np.asarray(virtual_stage))
    stages, chunks = piece.shape
    ranks = np.asarray(rank, dtype=np.int64)
    keys = np.asarray(key, dtype=np.int64)
    order = np.argsort(ranks * (int(keys.max()) + 1) + keys, kind="stable")
    offset = np.zeros(stages + 1, np.int64)
    np.cumsum(np.bincount(ranks, minlength=stages), out=offset[1:])
    overlap = np.full(len(ranks), -1, np.int32)
    if with_next is not None:
        first = np.flatnonzero(np.asarray(with_next)[order])
        overlap[first], overlap[first + 1] = first + 1, first
    return Schedule(
        name=name,
        stages=stages,
        chunks=chunks,
        micro_batches=micro_batches,
        rank=_frozen(ranks[order], np.int32),
        kind=_frozen(np.asarray(kind)[order], np.int32),
        chunk=_frozen(np.asarray(chunk)[order], np.int32),
        micro_batch=_frozen(np.asarray(micro_batch)[order], np.int32),
        overlap=_frozen(overlap, np.int32),
        rank_offset=_frozen(offset, np.int64),
        virtual_stage=_frozen(piece, np.int32),
    )


def stacked(*columns: tuple[Kind, ArrayLike, ArrayLike, ArrayLike, ArrayLike]) -> dict[str, NDArray[np.int64]]:
    """Arguments of `table` from groups (kind, rank, key, chunk, micro-batch), each broadcast over its own grid."""
    parts = []
    for kind, *arrays in columns:
        grid = np.broadcast_arrays(np.int64(kind), *arrays)
        parts.append(np.stack([np.ravel(a) for a in grid]))
    joined = np.concatenate(parts, axis=1).astype(np.int64)
    return dict(zip(("kind", "rank", "key", "chunk", "micro_batch"), joined, strict=True))


def in_line(stages: int, chunks: int = 1) -> NDArray[np.int64]:
    """Pieces dealt round robin: chunk c of rank r is piece c * stages + r (Megatron's order)."""
    return np.arange(stages)[:, None] + stages * np.arange(chunks)[None, :]


def in_v(stages: int) -> NDArray[np.int64]:
    """Two pieces per rank, there and back: rank r holds r and 2 * stages - 1 - r, so rank 0 has first and last."""
    down = np.arange(stages)
    return np.stack([down, 2 * stages - 1 - down], axis=1)


def _frozen(array: NDArray[np.generic], dtype: type[Scalar]) -> NDArray[Scalar]:
    result = np.ascontiguousarray(array, dtype=dtype)
    if result is array or result.base is not None:
        result = result.copy()
    result.flags.writeable = False
    return result
