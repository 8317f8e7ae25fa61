"""Lab 2: the ring all-reduce, as messages and as a formula. Fill in the functions; README.md explains them.

Ranks are numbered from 0 and sit on a ring: the neighbour of rank r is (r + 1) % ranks. Every buffer is cut into as
many chunks as there are ranks. Times are in seconds, sizes in bytes unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Message(NamedTuple):
    """One chunk on its way from a rank to its neighbour."""

    source: int
    target: int
    chunk: int
    adds: bool  # the target adds it to its own chunk; False: the target overwrites its own chunk


class Protocol(NamedTuple):
    """One way in which NCCL moves data inside a node."""

    base_s: float
    hop_s: float  # of each step
    seconds_per_byte: float


def chunks(length: int, ranks: int) -> list[slice]:
    """Cut `length` elements into `ranks` neighbouring pieces, in order, whose lengths differ by at most one."""
    raise NotImplementedError


def schedule(ranks: int) -> list[list[Message]]:
    """The messages of each step. In a step every rank sends one chunk to its neighbour, all at the same time.

    First ranks - 1 steps of reduce-scatter (`adds`), then ranks - 1 steps of all-gather.
    """
    raise NotImplementedError


def all_reduce(buffers: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """What every rank holds after the schedule ran on `buffers` ([length] each, one a rank), which stay as they are."""
    raise NotImplementedError


def bytes_sent(ranks: int, bytes_total: float) -> float:
    """Bytes that each rank sends in all to reduce a buffer of `bytes_total`."""
    raise NotImplementedError


def ring_s(ranks: int, bytes_total: float, protocol: Protocol, extra_steps: float = 0.0) -> float:
    """Time of a ring under one protocol. `extra_steps`: chunks of local work that the ring does not hide."""
    raise NotImplementedError


def fastest_s(ranks: int, bytes_total: float, protocols: Sequence[Protocol], extra_steps: float = 0.0) -> float:
    """Time under the protocol that is fastest at this size."""
    raise NotImplementedError


def bus_bandwidth(ranks: int, bytes_total: float, seconds: float) -> float:
    """What nccl-tests prints as busbw, bytes per second: the rate that each link really carried."""
    raise NotImplementedError
