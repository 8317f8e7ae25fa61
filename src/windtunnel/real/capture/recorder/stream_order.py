"""The order that streams and events put ops in, noted while a script runs.

On one stream ops run in the order they were issued; nothing needs saying. Waiting for a stream or an event means: the
next op of the waiting stream comes after the last op that was issued on the other before it was recorded.
Of each stream is known, too, up to which op every other stream is done before its next op: an op that takes what
another stream wrote later than that may come too early. Only streams that the script makes itself are looked at.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

_NOTHING: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Moment:
    """What must be over when an event has happened: ops, by number."""

    ops: frozenset[int] = frozenset()
    done: Mapping[int, int] = field(default_factory=dict)  # stream -> its last op that is


@dataclass(slots=True)
class _Stream:
    last: int = -1
    pending: set[int] = field(default_factory=set)  # what its next op must wait for
    done: dict[int, int] = field(default_factory=dict)  # other stream -> the last op of it that its next op comes after


class StreamOrder:
    """Streams are numbers, in the order they were made; 0 is the default one."""

    def __init__(self, count: Callable[[], int], synchronised: Callable[[str, set[int]], None]) -> None:
        self._count, self._synchronised = count, synchronised
        self._streams: dict[int, _Stream] = {0: _Stream()}
        self._current = 0
        self.made_by_script: set[int] = set()
        self._beside: dict[int, int] = {}  # ops on streams but the default one -> the stream
        self._exchanged: dict[int, Moment] = {}  # communications with a handle -> what is done when they are
        self._host: dict[int, int] = {}  # stream -> its last op that the host has waited for

    def _of(self, stream: int) -> _Stream:
        entry = self._streams.get(stream)
        if entry is None:
            entry = self._streams[stream] = _Stream(done={**self._host})
        return entry

    def current_stream(self) -> int:
        """The stream that ops are issued on."""
        return self._current

    def use(self, stream: int) -> None:
        """Issue ops on another stream from now on."""
        if threading.current_thread() is not threading.main_thread():
            self.made_by_script.clear()  # the real ones are a thread's own: here nobody knows whose ops are whose
        self._of(stream)
        self._current = stream

    def issued(self, stream: int, op: int) -> None:
        """An op went to a stream."""
        self._of(stream).last = op
        if self._current:
            self._beside[op] = self._current

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
        last = self._count() - 1
        return Moment(frozenset(of.pending | ({of.last} if of.last >= 0 else set())), {**of.done, stream: last})

    def wait(self, stream: int, moment: Moment) -> None:
        """The stream goes on only after `moment`."""
        of = self._of(stream)
        of.pending |= {op for op in moment.ops if op != of.last}
        _merge(of.done, moment.done)

    def synchronise(self, what: str, moment: Moment | None = None) -> None:
        """The host waits, for a moment or for everything."""
        if moment is None:
            ops = frozenset(s.last for s in self._streams.values() if s.last >= 0)
            moment = Moment(ops, dict.fromkeys(self._streams, self._count() - 1))
        self.host_waited(moment)
        if what:
            self._synchronised(what, set(moment.ops))

    # ---- what comes too early

    def forget(self, before: int) -> None:
        """Ops before this one are no longer looked at."""
        self._beside = {op: stream for op, stream in self._beside.items() if op >= before}
        self._exchanged = {op: moment for op, moment in self._exchanged.items() if op >= before}

    def host_waited(self, moment: Moment | None = None) -> None:
        """What is issued from now on comes after `moment`; without one, after all that the current stream has."""
        moment = moment or self.moment(self._current)
        for done in (self._host, *(stream.done for stream in self._streams.values())):
            _merge(done, moment.done)

    def exchanged(self, op: int) -> None:
        """A communication is issued on the current stream; its handle or future may be waited for on any, or asked."""
        if self.made_by_script:
            self._exchanged[op] = self.moment(self._current)

    def waited(self, ops: Iterable[int]) -> None:
        """The current stream waits for communications."""
        for op in ops:
            if op in self._exchanged:
                _merge(self._streams[self._current].done, self._exchanged[op].done)

    def is_unordered(self, op: int, base: int) -> bool:
        """Whether the current stream does not wait for this op of another; of the default one, for any from `base`."""
        stream = self._beside.get(op, 0)
        if stream == self._current or op in self._exchanged or self.made_by_script.isdisjoint((stream, self._current)):
            return False
        return self._streams[self._current].done.get(stream, -1) < op and (stream > 0 or op >= base)


def _merge(done: dict[int, int], other: Mapping[int, int]) -> None:
    for stream, op in other.items():
        done[stream] = max(op, done.get(stream, -1))
