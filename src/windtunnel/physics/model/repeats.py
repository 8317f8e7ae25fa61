"""Layers of a model that are alike: how often each is there, and the pattern that a longer model repeats."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar, cast

Entry = TypeVar("Entry")

KEPT = 64
_KNOWN: dict[int, tuple[tuple[object, ...], tuple[tuple[object, int], ...]]] = {}


def repeats_of(entries: tuple[Entry, ...]) -> tuple[tuple[Entry, int], ...]:
    """Each distinct entry and how often it is there.

    Remembered by the identity of the tuple, which is kept alive: a search asks a hundred thousand times.
    """
    known = _KNOWN.get(id(entries))
    if known is None:
        if len(_KNOWN) >= KEPT:
            _KNOWN.clear()
        # By identity, as equal layers of a model are one object: hashing each of 126 costs more than the sums.
        by_identity = {id(entry): entry for entry in entries}
        counts = tuple((by_identity[number], n) for number, n in Counter(map(id, entries)).items())
        known = _KNOWN[id(entries)] = (entries, counts)
    return cast("tuple[tuple[Entry, int], ...]", known[1])


def resized(entries: tuple[Entry, ...], n: int) -> tuple[Entry, ...]:
    """The first `n`, or more by the pattern that the last ones follow."""
    if n <= len(entries):
        return entries[:n]
    period = _period(entries)
    tail = entries[-period:]
    return entries + tuple(tail[i % period] for i in range(n - len(entries)))


def _period(entries: tuple[Entry, ...]) -> int:
    """The shortest pattern that the last entries show twice in a row; 1 where there is none."""
    for period in range(1, len(entries) // 2 + 1):
        if entries[-period:] == entries[-2 * period : -period]:
            return period
    return 1
