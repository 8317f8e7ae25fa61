"""The replay of a small graph, and whose its time is, without compiled code: a process that asks little loads none.

The same rules as `compiled/kernels.py` in plain lists: what can start starts, rates of the touched programs are set
anew, and on to the next instant at which an op of a class starts or ends. The integers are the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine.events import EventQueue
from windtunnel.physics.graph.program import Graph


@dataclass
class WarmUp:
    """Ops of graphs that a process reads without compiled code, which takes a second to load."""

    ops: int = 40_000

    def takes(self, ops: int) -> bool:
        """Whether a graph of so many ops is interpreted; counts them."""
        if ops > self.ops:
            self.ops = 0
            return False
        self.ops -= ops
        return True


warm_up = WarmUp()

MALFORMED = -1  # an index points outside its array, a duration is negative


def is_malformed(graph: Graph, duration_ns: NDArray[np.int64]) -> bool:
    """Whether an index of the graph points outside its array, or a duration is negative."""
    n, ptr = graph.n_ops, graph.dep_ptr
    indices = ((graph.stream, graph.n_streams), (graph.stream_rank, graph.n_programs), (graph.dep_idx, n))
    outside = any(len(array) and not 0 <= array.min() <= array.max() < limit for array, limit in indices)
    beyond = int(graph.rendezvous.max(initial=-1)) >= n or int(duration_ns.min(initial=0)) < 0
    return bool(outside or beyond or ptr[0] != 0 or ptr[n] != len(graph.dep_idx) or np.any(np.diff(ptr) < 0))


class Interpreted:
    """A replay under way. Class 0 of `kind_class`: an op that neither slows nor is slowed."""

    def __init__(
        self, graph: Graph, duration_ns: NDArray[np.int64], kind_class: NDArray[np.uint8], factor: NDArray[np.float64]
    ) -> None:
        self._stream, self._rank = graph.stream.tolist(), graph.stream_rank.tolist()
        self._group, self._duration = graph.rendezvous.tolist(), duration_ns.tolist()
        self._class, self._factor = kind_class.tolist(), factor.tolist()
        n, streams = graph.n_ops, graph.n_streams
        self.start, self.end = [-1] * n, [-1] * n
        self.now = 0
        self._after: list[list[int]] = [[] for _ in range(n)]  # op -> ops that wait for its end
        self._missing = np.diff(graph.dep_ptr).tolist()  # op -> ends that it waits for
        self._ready = [0] * n
        for op, before in zip(
            np.repeat(np.arange(n), np.diff(graph.dep_ptr)).tolist(), graph.dep_idx.tolist(), strict=True
        ):
            self._after[before].append(op)
        last = [-1] * streams
        self._members: defaultdict[int, list[int]] = defaultdict(list)  # rendezvous -> its ops
        for op, stream in enumerate(self._stream):
            if last[stream] >= 0:
                self._after[last[stream]].append(op)
                self._missing[op] += 1
            last[stream] = op
            if self._group[op] >= 0:
                self._members[self._group[op]].append(op)
        self._absent = {group: len(members) for group, members in self._members.items()}
        # Of the one op with a class that is under way on a stream.
        self._active, self._running = [-1] * streams, [False] * streams
        self._key, self._work, self._since = [-1] * streams, [0.0] * streams, [0] * streams
        self._rate, self._own = [1.0] * streams, [1.0] * streams
        self._streams_of: list[list[int]] = [[] for _ in range(graph.n_programs)]
        for stream, program in enumerate(self._rank):
            self._streams_of[program].append(stream)
        self._count = [[0] * len(self._factor) for _ in range(graph.n_programs)]  # ops that run, by class
        self._dirty: set[int] = set()  # programs where what runs has changed
        self._touched: set[int] = set()  # rendezvous of which a member started, ended or changed its rate
        self._events: EventQueue[int] = EventQueue()  # streams

    def run(self) -> int:
        """Replay all; returns the number of ops that ran."""
        self._go_on([op for op, missing in enumerate(self._missing) if not missing])
        while True:
            self._set_rates()
            instant = self._events.next_ns()
            if instant is None:
                return sum(time >= 0 for time in self.end)
            self.now = instant
            ended: list[int] = []  # ops that may start now
            while self._events.next_ns() == instant:
                _, stream, _ = self._events.pop()
                if self._key[stream] != instant:  # its rate has changed since
                    continue
                op, program = self._active[stream], self._rank[stream]
                self._dirty.add(program)
                if not self._running[stream]:
                    self._begin(stream, op)
                    continue
                self.end[op] = self.now
                self._running[stream], self._active[stream], self._key[stream] = False, -1, -1
                self._count[program][self._class[op]] -= 1
                if self._group[op] >= 0:
                    self._touched.add(self._group[op])  # without this member the others may go faster
                ended += self._ended(op)
            self._go_on(ended)

    def _ended(self, op: int) -> list[int]:
        """The ops that waited for this one alone."""
        free, end, ready, missing = [], self.end[op], self._ready, self._missing
        for later in self._after[op]:
            if end > ready[later]:
                ready[later] = end
            missing[later] -= 1
            if not missing[later]:
                free.append(later)
        return free

    def _go_on(self, free: list[int]) -> None:
        """Start ops that wait for nothing; those of class 0 are done at once, and may lead on to times after now."""
        groups, classes, durations, ready = self._group, self._class, self._duration, self._ready
        start, end, now = self.start, self.end, self.now
        while free:
            op = free.pop()
            group = groups[op]
            if group < 0:  # for the most part
                members = [op]
                time, rated = ready[op], classes[op]
            else:
                self._absent[group] -= 1
                if self._absent[group]:
                    continue
                members = self._members[group]
                time = max([ready[member] for member in members])
                rated = max([classes[member] for member in members])
            for member in members:
                start[member] = time
                if rated and durations[member]:
                    stream = self._stream[member]
                    self._active[stream], self._key[stream] = member, time
                    if time <= now:
                        self._begin(stream, member)
                    else:
                        self._events.push(time, stream)
                    self._dirty.add(self._rank[stream])
                else:
                    end[member] = time + durations[member]
                    free += self._ended(member)

    def _begin(self, stream: int, op: int) -> None:
        """An op of a class runs from now."""
        self._running[stream], self._rate[stream] = True, 1.0
        self._work[stream], self._since[stream] = self._duration[op], self.now
        self._key[stream] = self.now + self._duration[op]
        self._count[self._rank[stream]][self._class[op]] += 1
        self._events.push(self._key[stream], stream)

    def _set_rates(self) -> None:
        """New rates where the set of running ops has changed; a rendezvous goes at the lowest of its members'."""
        running, active = self._running, self._active
        for program in self._dirty:
            count = self._count[program]
            beside = [other for other in range(1, len(count)) if count[other]]
            for stream in self._streams_of[program]:
                if not running[stream]:
                    continue
                op = active[stream]
                own, extra = self._class[op], 0.0
                factor = self._factor[own]
                for other in beside:
                    if count[other] > (other == own):
                        extra += factor[other]
                self._own[stream] = 1.0 / (1.0 + extra)
                if self._group[op] < 0:
                    self._set(stream, self._own[stream])
                else:
                    self._touched.add(self._group[op])
        for group in self._touched:
            here = [self._stream[op] for op in self._members[group] if self._active[self._stream[op]] == op]
            lowest = min([1.0, *(self._own[stream] for stream in here)])
            for stream in here:
                self._set(stream, lowest)
        self._dirty.clear()
        self._touched.clear()

    def _set(self, stream: int, rate: float) -> None:
        if rate == self._rate[stream]:
            return
        done = (self.now - self._since[stream]) * self._rate[stream]
        self._work[stream] = max(0.0, self._work[stream] - done)
        self._since[stream], self._rate[stream] = self.now, rate
        self._key[stream] = self.now + int(self._work[stream] / rate + 0.5)
        self._events.push(self._key[stream], stream)


def split_time(graph: Graph, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64], horizon: int) -> NDArray[np.int64]:
    """int64[programs, 4, categories + 1]: as `compiled/time_kernels.py` splits [0, horizon] of each program."""
    nobody = len(graph.categories)
    result = np.zeros((graph.n_programs, 4, nobody + 1), np.int64)
    claims = [0 if kind == 0 else 1 if kind <= 3 else 2 for kind in graph.kind.tolist()]
    category, start, end = graph.category.tolist(), start_ns.tolist(), end_ns.tolist()
    queues: list[list[int]] = [[] for _ in range(graph.n_streams)]  # ops of a stream, the first one last
    for op, stream in reversed([*enumerate(graph.stream.tolist())]):
        queues[stream].append(op)
    streams_of: list[list[list[int]]] = [[] for _ in range(graph.n_programs)]
    for stream, program in enumerate(graph.stream_rank.tolist()):
        streams_of[program].append(queues[stream])
    for program, streams in enumerate(streams_of):
        now = 0
        while now < horizon:
            until, running, coming = horizon, [], []
            for queue in streams:
                while queue and end[queue[-1]] <= now:
                    queue.pop()
                if queue:
                    op = queue[-1]
                    if start[op] <= now:
                        until = min(until, end[op])
                        running.append((claims[op], start[op], op))
                    else:
                        until = min(until, start[op])
                        coming.append((start[op], (claims[op] + 2) % 3, op))
            if running:
                claim, _, op = min(running)
                result[program, claim, category[op]] += until - now
            else:
                result[program, 3, category[min(coming)[2]] if coming else nobody] += until - now
            now = until
    return result
