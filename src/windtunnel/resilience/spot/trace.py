"""Spot machines as they came and went, minute by minute.

Two forms of CSV are read: events, `time_s,event,node` with event `add` or `remove`; and counts, `minute,added,removed`.
An event counts in the interval in which it falls, and a decision is taken after the events of its interval.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from windtunnel.errors import InputFileError
from windtunnel.input_file import read_rows

FORMS = "give time_s,event,node or minute,added,removed"


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


def read_trace(path: Path, interval_s: float = 60.0) -> SpotTrace:
    """The trace in a CSV. Raises InputFileError where it is of neither form, or more nodes go than there are."""
    rows = read_rows(path, FORMS)
    columns = set(rows[0]) if rows else set()
    try:
        if {"time_s", "event"} <= columns:
            added, removed, last = _counted(rows, interval_s)
            return SpotTrace(_minutes(path, added, removed, range(last + 1), 0), 0, interval_s)
        if {"minute", "added", "removed"} <= columns:
            numbers = [int(row["minute"]) for row in rows]
            if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
                raise InputFileError(path, "skips a minute, or has one twice", "give every minute once, in order")
            plus = Counter({int(row["minute"]): int(row["added"]) for row in rows})
            minus = Counter({int(row["minute"]): int(row["removed"]) for row in rows})
            before = int(rows[0].get("nodes_before") or 0)
            return SpotTrace(_minutes(path, plus, minus, range(numbers[0], numbers[-1] + 1), before), numbers[0])
    except (ValueError, TypeError) as error:
        raise InputFileError(path, f"has a value that is no number ({error})", FORMS) from None
    raise InputFileError(path, "is no trace of spot machines", FORMS)


def _counted(rows: list[dict[str, str]], interval_s: float) -> tuple[Counter[int], Counter[int], int]:
    added: Counter[int] = Counter()
    removed: Counter[int] = Counter()
    last = 0
    for row in rows:
        at = int(float(row["time_s"]) // interval_s)
        last = max(last, at)
        if row["event"] == "add":
            added[at] += 1
        elif row["event"] == "remove":
            removed[at] += 1
        else:
            raise ValueError(f"event {row['event']!r}")
    return added, removed, last


def _minutes(path: Path, added: Counter[int], removed: Counter[int], span: range, before: int) -> tuple[Minute, ...]:
    found = []
    for at in span:
        minute = Minute(before, added[at], removed[at])
        if minute.removed > minute.before + minute.added or min(minute.added, minute.removed) < 0:
            raise InputFileError(path, f"minute {at}: more nodes go than there are", "correct the trace")
        found.append(minute)
        before = minute.nodes
    return tuple(found)
