"""The order that streams and events put ops in, noted while a script runs.

On one stream ops run in the order they were issued; nothing needs saying. Waiting for a stream or an event means: the
next op of the waiting stream comes after the last op that was issued on the other before it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field

_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Moment:
    """What must be over when an event has happened: ops, by number."""

    ops: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Stream:
    last: int = -1
    pending: set[int] = field(default_factory=set)  # what its next op must wait for


class StreamOrder:
    """Streams are numbers, in the order they were made; 0 is the default one."""

    def __init__(self, count: Callable[[], int], synchronised: Callable[[str, set[int]], None]) -> None:
        self._count, self._synchronised = count, synchronised
        self._streams: dict[int, _Stream] = {0: _Stream()}
        self._current = 0

    def _of(self, stream: int) -> _Stream:
        entry = self._streams.get(stream)
        if entry is None:
            entry = self._streams[stream] = _Stream()
        return entry

    def current_stream(self) -> int:
        """The stream that ops are issued on."""
        return self._current

    def use(self, stream: int) -> None:
        """Issue ops on another stream from now on."""
        self._of(stream)
        self._current = stream

    def issued(self, stream: int, op: int) -> None:
        """An op went to a stream."""
        self._of(stream).last = op

    def take(self) -> Set[int]:
        """What the next op of the current stream must wait for; asked once for each op."""
        stream = self._streams[self._current]
        if not stream.pending:
            return _NOTHING
        pending, stream.pending = stream.pending, set()
        return pending

    def moment(self, stream: int) -> Moment:
        """An event recorded on a stream now."""
        of = self._of(stream)
        return Moment(frozenset(of.pending | ({of.last} if of.last >= 0 else set())))

    def wait(self, stream: int, moment: Moment) -> None:
        """The stream goes on only after `moment`."""
        of = self._of(stream)
        of.pending |= {op for op in moment.ops if op != of.last}

    def synchronise(self, what: str, moment: Moment | None = None) -> None:
        """The host waits, for a moment or for everything."""
        ops = moment.ops if moment is not None else {s.last for s in self._streams.values() if s.last >= 0}
        self._synchronised(what, set(ops))
