"""Spot machines as they came and went, minute by minute.

Two forms of CSV are read: events, `time_s,event,node` with event `add` or `remove`; and counts, `minute,added,removed`.
An event counts in the interval in which it falls, and a decision is taken after the events of its interval. Time begins
with the first event's interval, so stamps may count from anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from windtunnel.errors import InputFileError
from windtunnel.files.table import read_table

FORMS = "give time_s,event,node or minute,added,removed"
INTERVALS_MOST = 1_000_000  # of a trace that is wanted interval by interval: almost two years of minutes


class Minute(NamedTuple):
    """One decision interval."""

    before: int  # nodes before its events
    added: int
    removed: int

    @property
    def nodes(self) -> int:
        """Nodes after its events."""
        return self.before + self.added - self.removed


@dataclass(frozen=True, slots=True)
class SpotTrace:
    """Availability of one pool of nodes."""

    minutes: tuple[Minute, ...]
    first: int = 0  # number of the first minute
    interval_s: float = 60.0


@dataclass(frozen=True, slots=True)
class _Counts:
    """Nodes that come and go, by the number of the interval."""

    added: Counter[int]
    removed: Counter[int]
    first: int
    last: int
    before: int
    interval_s: float


def read_trace(path: Path, interval_s: float = 60.0) -> SpotTrace:
    """The trace in a CSV, every interval of it.

    Raises InputFileError where it is of neither form, more nodes go than there are, or it has too many intervals.
    """
    counts = _read(path, interval_s)
    if counts.interval_s != interval_s:
        text = f"has a row a minute, and the tables have a decision every {interval_s:g} s"
        raise InputFileError(path, text, "give time_s,event,node")
    span = range(counts.first, counts.last + 1)
    if len(span) > INTERVALS_MOST:
        text = f"lasts {len(span):,} intervals of {counts.interval_s:g} s"
        raise InputFileError(path, text, f"give a part of at most {INTERVALS_MOST:,}")
    return SpotTrace(tuple(_minutes(path, counts, span)), counts.first, counts.interval_s)


def read_steps(path: Path) -> tuple[int, tuple[tuple[float, int, int], ...]]:
    """(nodes after the first second with events, (seconds from it, added, removed) of each later one).

    A row of counts is an interval of a minute. Raises InputFileError as `read_trace`, but for any length.
    """
    counts = _read(path, 1.0)
    places = sorted({counts.first, *counts.added, *counts.removed})
    minutes = _minutes(path, counts, places)
    steps = (
        ((place - counts.first) * counts.interval_s, minute.added, minute.removed)
        for place, minute in zip(places[1:], minutes[1:], strict=True)
        if minute.added or minute.removed
    )
    return minutes[0].nodes, tuple(steps)


def _read(path: Path, interval_s: float) -> _Counts:
    rows = [row for _, row in read_table(path, FORMS).rows()]
    columns = set(rows[0]) if rows else set()
    try:
        if {"time_s", "event"} <= columns:
            return _counted(rows, interval_s)
        if {"minute", "added", "removed"} <= columns:
            numbers = [int(row["minute"]) for row in rows]
            if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
                raise InputFileError(path, "skips a minute, or has one twice", "give every minute once, in order")
            plus = Counter({int(row["minute"]): int(row["added"]) for row in rows})
            minus = Counter({int(row["minute"]): int(row["removed"]) for row in rows})
            before = int(rows[0].get("nodes_before") or 0)
            return _Counts(plus, minus, numbers[0], numbers[-1], before, 60.0)
    except (ValueError, TypeError, OverflowError) as error:
        raise InputFileError(path, f"has a value that is no number ({error})", FORMS) from None
    raise InputFileError(path, "is no trace of spot machines", FORMS)


def _counted(rows: list[dict[str, str]], interval_s: float) -> _Counts:
    added: Counter[int] = Counter()
    removed: Counter[int] = Counter()
    for row in rows:
        at = int(float(row["time_s"]) // interval_s)
        if row["event"] == "add":
            added[at] += 1
        elif row["event"] == "remove":
            removed[at] += 1
        else:
            raise ValueError(f"event {row['event']!r}")
    places = {*added, *removed}
    return _Counts(added, removed, min(places), max(places), 0, interval_s)


def _minutes(path: Path, counts: _Counts, places: Iterable[int]) -> list[Minute]:
    minutes, before = [], counts.before
    for at in places:
        minute = Minute(before, counts.added[at], counts.removed[at])
        if minute.removed > minute.before + minute.added or min(minute.added, minute.removed) < 0:
            raise InputFileError(path, f"interval {at}: more nodes go than there are", "correct the trace")
        minutes.append(minute)
        before = minute.nodes
    return minutes
