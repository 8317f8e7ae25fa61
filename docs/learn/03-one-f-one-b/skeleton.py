"""Lab 3: the 1F1B pipeline schedule. Fill in the functions; README.md explains them.

A model is cut into `stages` pieces, one a rank, in order. A step runs `micro_batches` through all of them, forward and
then backward. Times are in seconds.
"""

from __future__ import annotations

from typing import NamedTuple


class DeadlockError(Exception):
    """Ranks wait for each other for ever."""


class Action(NamedTuple):
    """One pass of one micro-batch through one rank's piece."""

    kind: str  # "F" or "B"
    micro_batch: int


def gpipe(stages: int, micro_batches: int, rank: int) -> list[Action]:
    """What a rank does, in order, under GPipe: all forwards, then all backwards, both from micro-batch 0 on."""
    raise NotImplementedError


def one_f_one_b(stages: int, micro_batches: int, rank: int) -> list[Action]:
    """What a rank does, in order, under 1F1B."""
    raise NotImplementedError


def most_in_flight(actions: list[Action]) -> int:
    """Most micro-batches whose activations a rank keeps at once: forward is done, backward is not."""
    raise NotImplementedError


def ends_s(orders: list[list[Action]], forward_s: float, backward_s: float) -> list[list[float]]:
    """When each action of each rank ends, in the shape of `orders` (one list a rank, first stage first).

    A rank runs its list in order. An action starts as soon as its rank is free and what it needs has ended; sending
    takes no time. Raises DeadlockError.
    """
    raise NotImplementedError


def bubble_share(stages: int, micro_batches: int) -> float:
    """Idle time of a rank over the time of its work, by the closed form."""
    raise NotImplementedError
