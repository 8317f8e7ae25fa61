"""A state machine on a queue of events.

    handle(now_ns, event) -> actions        At: this event, then.   Cancel: no longer.

A machine does no I/O, reads no wall clock and draws no random number that it was not given a generator for. So what it
was handed is the whole run: a fresh machine that is handed the same asks for the same (a test).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic

from windtunnel.physics.engine.events import Event, EventQueue


@dataclass(frozen=True, slots=True)
class At(Generic[Event]):
    """Hand over `event` at `time_ns`. With a `key`, it takes the place of the pending event of the same key."""

    time_ns: int
    event: Event
    priority: int = 0  # of two events of one time the lesser comes first
    key: Hashable = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Forget the pending event of this key; nothing happens where there is none."""

    key: Hashable


Handler = Callable[[int, Event], Iterable[At[Event] | Cancel]]


def run(
    handle: Handler[Event],
    start: Iterable[At[Event]],
    *,
    until_ns: int | None = None,
) -> int:
    """Hand events to a machine until none is left or the next lies after `until_ns`; returns the clock's last time.

    `start`: the first events, e.g. all arrivals.
    """
    queue: EventQueue[Event] = EventQueue()
    ticket_of: dict[Hashable, int] = {}
    key_of: dict[int, Hashable] = {}

    def forget(key: Hashable) -> None:
        ticket = ticket_of.pop(key, None)
        if ticket is not None:
            del key_of[ticket]
            queue.cancel(ticket)

    def perform(actions: Iterable[At[Event] | Cancel]) -> None:
        for action in actions:
            if isinstance(action, Cancel):
                forget(action.key)
                continue
            if action.key is not None:
                forget(action.key)
            ticket = queue.push(action.time_ns, action.event, action.priority)
            if action.key is not None:
                ticket_of[action.key] = ticket
                key_of[ticket] = action.key

    perform(start)
    while (next_ns := queue.next_ns()) is not None and (until_ns is None or next_ns <= until_ns):
        now_ns, event, ticket = queue.pop()
        key = key_of.pop(ticket, None)
        if key is not None:
            del ticket_of[key]
        perform(handle(now_ns, event))
    return queue.now_ns
