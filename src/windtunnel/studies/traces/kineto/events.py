"""Events of a Kineto trace that have usable times, and the training steps that the profiler annotated."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Mapping, Sequence
from math import nan
from typing import NamedTuple

_LARGEST_US = 4e15  # 2096 in microseconds since 1970: nanoseconds still fit in 63 bits


class Event(NamedTuple):
    """What lasts from one time to another on a thread or a stream."""

    start_ns: int
    end_ns: int
    name: str
    cat: str
    thread: Hashable
    args: dict[str, object]
    correlation: int  # of a call and the GPU work that it launched; -1: none


class Steps(NamedTuple):
    """The training steps, in order of start."""

    start_ns: list[int]
    number: list[int]

    def at(self, when_ns: int) -> int:
        """The step in which the host was, -1 before the first; all work is step 0 where none is annotated."""
        if not self.number:
            return 0
        at = bisect_right(self.start_ns, when_ns) - 1
        return self.number[at] if at >= 0 else -1


def event_of(item: Mapping[str, object]) -> Event | None:
    """An item of the trace with a category; None where its name or its times cannot be used."""
    name, args = item.get("name"), item.get("args")
    start, duration = _number(item.get("ts")), _number(item.get("dur"))
    if type(name) is not str or not (0 <= duration < _LARGEST_US and -_LARGEST_US < start < _LARGEST_US):
        return None
    args = args if type(args) is dict else {}
    correlation = args.get("correlation")
    begin, thread = round(start * 1000), (str(item.get("pid")), str(item.get("tid")))
    return Event(
        begin, begin + round(duration * 1000), name, str(item["cat"]), thread, args,
        correlation if type(correlation) is int else -1,
    )  # fmt: skip


def steps_of(items: Sequence[object]) -> Steps:
    """The steps that a trace annotates."""
    steps: list[tuple[int, int]] = []
    for item in items:
        if type(item) is dict and item.get("cat") == "user_annotation":
            head, _, number = str(item.get("name")).partition("#")
            if head == "ProfilerStep" and number.isdecimal() and len(number) < 12:
                start = _number(item.get("ts"))
                if abs(start) < _LARGEST_US:
                    steps.append((round(start * 1000), int(number)))
    steps.sort()
    return Steps([start for start, _ in steps], [number for _, number in steps])


def _number(value: object) -> float:
    """A JSON number, or one in quotes as some exporters write them; nan for anything else."""
    if type(value) is float or type(value) is int:
        return value
    try:
        return float(value) if type(value) is str else nan
    except ValueError:
        return nan
