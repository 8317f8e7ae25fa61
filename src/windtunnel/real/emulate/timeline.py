"""The last step as a timeline for Perfetto: the real rank as it ran, virtual peers as they were replayed.

One process per rank; one thread for what its host computes and where it waits, one for each group that it communicates
in. A communication's bar begins when its last member is there; before that it is drawn as waiting for members.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from windtunnel.files import trace
from windtunnel.real.emulate.observe import ObservedStep
from windtunnel.real.emulate.peers.cohort import Watched
from windtunnel.studies.programs.communication import Communication

_US = 1e6


def events_of_real(rank: int, step: ObservedStep) -> Iterator[dict[str, object]]:
    """What the real rank did."""
    lanes = _Lanes(rank)
    at = step.begin_s
    for call, entered, left in sorted(step.waits, key=lambda wait: wait[1]):
        if entered > at:
            yield lanes.bar("host", "compute", at, entered, "compute")
        if left > entered:
            yield lanes.bar("host", f"wait for {step.calls[call].kind}", entered, left, "wait")
        at = max(at, left)
    if step.ended > at:
        yield lanes.bar("host", "compute", at, step.ended, "compute")
    for communication, (begin, done) in zip(step.calls, step.spans, strict=True):
        if done > begin:
            yield lanes.bar(group_text(communication), call_text(communication), begin, done, "communication")
    yield from lanes.names(f"rank {rank} (real)")


def events_of_peer(rank: int, watched: Iterable[Watched], what: str) -> Iterator[dict[str, object]]:
    """What a virtual peer did in the replay; `what` it is: "slow by 1.2", "stage 3"."""
    lanes = _Lanes(rank)
    for event in watched:
        if event.what != "communication":
            name = event.what if event.call is None else f"wait for {event.call.kind}"
            if event.ended > event.begin_s:
                yield lanes.bar("host", name, event.begin_s, event.ended, event.what)
            continue
        assert event.call is not None
        if math.isnan(event.finish):
            continue
        if event.start > event.begin_s:
            yield lanes.bar(group_text(event.call), "waits for its members", event.begin_s, event.start, "wait")
        yield lanes.bar(group_text(event.call), call_text(event.call), event.start, event.finish, "communication")
    yield from lanes.names(f"rank {rank} (virtual{', ' + what if what else ''})")


def from_first(events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Times from the first event on."""
    listed = list(events)
    first = min((event["ts"] for event in listed if event["ph"] == "X"), default=0.0)
    for event in listed:
        yield {**event, "ts": round(event["ts"] - first, 3)} if event["ph"] == "X" else event


def call_text(call: Communication) -> str:
    """A communication in words: `all_reduce 4.2 MB`."""
    return f"{call.kind} {size_text(call.bytes)}" if call.bytes else call.kind


def group_text(call: Communication) -> str:
    """`group 3, 8 ranks`."""
    return f"group {call.group}, {len(call.members)} ranks"


def size_text(bytes_total: float) -> str:
    """A size in words: `4.2 MB`."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_total >= size:
            return f"{bytes_total / size:.3g} {unit}"
    return f"{bytes_total:.0f} B"


class _Lanes:
    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.known: dict[str, int] = {"host": 0}

    def bar(self, lane: str, name: str, begin: float, ended: float, category: str) -> dict[str, object]:
        thread = self.known.setdefault(lane, len(self.known))
        return trace.bar(name, category, self.rank, thread, begin * _US, round((ended - begin) * _US, 3))

    def names(self, title: str) -> Iterator[dict[str, object]]:
        yield from trace.names("process", title, self.rank, 0)
        for lane, thread in self.known.items():
            yield from trace.names("thread", lane, self.rank, thread)
