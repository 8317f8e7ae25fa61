"""What a policy of lines sees: jobs that wait, in a line for each size, those that run, and free GPUs by their number.

    policy.rank(job)       where a job stands that comes to wait; the same while it waits
    policy.choose(board)   yields (job, nodes) to start it there, or (job, None) to stop it, (job, ()) to turn it away,
                           or end it: each is carried out before the next is asked for. `board.wake_ns`: when to
                           ask again

So a decision costs what it changes, not what there is (`queue_policy.py`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Generator, Hashable, Iterator, Sequence
from heapq import heapify, heappop, heapreplace
from operator import attrgetter
from typing import Any

from windtunnel.studies.fleet.clock.decision import Placement
from windtunnel.studies.fleet.clock.running import Moment, Rank, Running

Move = tuple[Running, Placement | None]
by_rank = attrgetter("rank")


class Board:
    """Waiting and running jobs, and free GPUs. `nodes`: GPUs of each node that is up."""

    unit = 1  # of a GPU: `UNITS` where jobs may ask for parts (`parts/devices.py`)

    def __init__(
        self, nodes: Sequence[int], moment: Moment, line: Callable[[Running], Hashable] = attrgetter("gpus")
    ) -> None:
        self.moment, self.line = moment, line
        self.free = list(nodes)
        self.free_gpus = sum(nodes)
        self.capacity = self.free_gpus
        self.by_free: list[list[int]] = [
            [] for _ in range(max(nodes, default=0) // self.unit + 1)
        ]  # nodes by free GPUs, rising
        for node, count in enumerate(nodes):
            self.by_free[count // self.unit].append(node)
        self.lines: dict[Hashable, list[tuple[Rank, Running]]] = {}
        self.waiting = 0
        self.running: dict[int, Running] = {}
        self.wake_ns: int | None = None
        self.whole_gpus = self.capacity
        self.memory: Any = None  # of its policy
        self.order: object = None  # of running jobs, as its policy keeps it; None: to be made anew
        self.released: list[
            tuple[Running, Placement]
        ] = []  # by jobs that ended or stopped, for a policy that clears it
        self.touched: set[int] = set()  # nodes whose free GPUs changed, for a policy that clears it

    def wait(self, job: Running) -> None:
        """A job with its rank joins its line."""
        insort(self.lines.setdefault(self.line(job), []), (job.rank, job), key=lambda entry: entry[0])
        self.waiting += 1

    def leave(self, job: Running) -> None:
        """A job that waits leaves its line."""
        line = self.lines[self.line(job)]
        del line[bisect_left(line, job.rank, key=lambda entry: entry[0])]
        self.waiting -= 1

    def take(self, job: Running, placement: Placement) -> None:
        """A job that has left its line gets GPUs."""
        self._hold(placement, -1)
        self.running[job.index] = job

    def give(self, job: Running, placement: Placement) -> None:
        """A job's GPUs are free again."""
        self._hold(placement, 1)
        del self.running[job.index]
        self.released.append((job, placement))

    def resize(self, node: int, before: int, gpus: int) -> None:
        """A node has another number of GPUs, and what is gone was free."""
        while len(self.by_free) <= gpus // self.unit:
            self.by_free.append([])
        self.capacity += gpus - before
        self._hold(((node, gpus - before),), 1)

    def _hold(self, placement: Placement, sign: int) -> None:
        for node, count in placement:
            self.touched.add(node)
            before = self.free[node]
            nodes = self.by_free[before // self.unit]
            del nodes[bisect_left(nodes, node)]
            after = self.free[node] = before + sign * count
            assert after >= 0, "a decision gave a node more than it has"
            insort(self.by_free[after // self.unit], node)
            self.free_gpus += sign * count

    def queue(self) -> Generator[Running, bool, None]:
        """All lines as one, by rank. What is started meanwhile leaves it; sent a true value it skips a line."""
        heads = [(line[0][0], 0, line) for line in self.lines.values() if line]
        heapify(heads)
        while heads:
            _, at, line = heads[0]
            job = line[at][1]
            skip = yield job
            if at < len(line) and line[at][1] is job:  # it was not started
                at += 1
            if skip or at >= len(line):
                heappop(heads)
            else:
                heapreplace(heads, (line[at][0], at, line))

    def gang(self, gpus: int, per_node: int, among: Container[int] | None = None) -> Placement | None:
        """Where a gang goes, or None where it does not fit.

        Up to a node on the fitting node with least free GPUs, more on free nodes and the rest on another; ties to the
        lowest number. `per_node` 0: GPUs are a count. `among`: only on these nodes, the largest of `per_node`.
        """
        if gpus > self.free_gpus:
            return None
        if not per_node:
            return self._spread(gpus, iter(range(len(self.free))))
        whole, rest = divmod(gpus, per_node)
        idle = self._with(per_node, among)
        if len(idle) < whole:
            return None
        chosen = [(node, per_node) for node in idle[:whole]]
        if rest:
            for count in range(rest, per_node + 1, self.unit):
                nodes = self._with(count, among)[whole if count == per_node else 0 :]
                if nodes:
                    return (*chosen, (nodes[0], rest))
            return None
        return tuple(chosen)

    def room(self, job: Running, per_node: int) -> Placement | None:
        """Where a job goes as a gang, or None where it does not fit."""
        return self.gang(job.gpus, per_node)

    def anywhere(self, job: Running) -> Placement | None:
        """Where a job goes that fits in the free GPUs, on any nodes."""
        return self.most_free_first(job.gpus)

    def _with(self, free: int, among: Container[int] | None = None) -> list[int]:
        """Nodes with so many free GPUs."""
        nodes = self.by_free[free // self.unit] if free < len(self.by_free) * self.unit else []
        return nodes if among is None else [node for node in nodes if node in among]

    def most_free_first(self, gpus: int) -> Placement:
        """GPUs from the node with most free, the first of equals, until there are enough."""
        return self._spread(gpus, (node for nodes in reversed(self.by_free) for node in nodes))

    def _spread(self, gpus: int, order: Iterator[int]) -> Placement:
        chosen: list[tuple[int, int]] = []
        while gpus > 0:
            node = next(order)
            count = min(self.free[node], gpus)
            if count:
                chosen.append((node, count))
                gpus -= count
        return tuple(chosen)

    def whatever_fits(self, running: Sequence[Running], free: int | None = None) -> Iterator[Move]:
        """Walking running and waiting jobs by rank, whatever fits runs and what no longer does stops.

        `running`: those that run, by rank, each of which is up to date; where nothing changes ahead of some rank, those
        behind it, and `free`, the GPUs that are left for them. New places are sought in the order of the walk.
        """
        free = self.capacity if free is None else free
        start: list[Running] = []
        stop: list[Running] = []
        queue = self.queue()
        head = next(queue, None)
        for job in running:
            rank = job.rank
            while head is not None and head.rank < rank:
                if fits := head.gpus <= free:
                    start.append(head)
                    free -= head.gpus
                head = next_in_queue(queue, size=not fits)
            if job.gpus <= free:
                free -= job.gpus
            else:
                stop.append(job)
        while head is not None:
            if fits := head.gpus <= free:
                start.append(head)
                free -= head.gpus
            head = next_in_queue(queue, size=not fits)
        for job in stop:
            yield job, None
        for job in start:
            yield job, self.anywhere(job)


def next_in_queue(queue: Generator[Running, bool, None], *, size: bool = False) -> Running | None:
    """The next job of a queue; `size`: none of this one's size is asked for any more."""
    try:
        return queue.send(size)
    except StopIteration:
        return None
