"""Kueue: quotas of queues that borrow from their cohorts, and preemption to get them back.

A cycle: the first job of every queue; those that need not borrow first, then by priority and time; each is admitted if
its queue's quota, with what cohorts lend (`books.py`), holds it. Then the next of every queue, until none is left; a
job that is not admitted waits (and blocks its queue under StrictFIFO). One that finds no quota may stop others
(`preemption.py`).

`fair_sharing` (a setting of Kueue's, a parameter here): the first job of the queue that would borrow the smallest share
comes first, cohort by cohort from the leaves, and shares say who is stopped.

A job of no queue is none of Kueue's and starts where it fits. A stopped job goes on where it was, `--restart` later.
Quotas are the ClusterQueues and Cohorts of the file. Decisions cost no time, unless `qps` says how many of them Kueue
can write in a second (`pace.py`). Source: Kueue v1beta1 and v1beta2, its concepts and KEP 79, 168, 1337, 1714. Not
here: flavors, topology, admission checks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

from windtunnel.studies.fleet.board import Board, Lines, Move
from windtunnel.studies.fleet.jobs.trace import WHOEVER, Cohort, Quota
from windtunnel.studies.fleet.policies.kueue.books import Books, Node, Share
from windtunnel.studies.fleet.policies.kueue.pace import Pace, paced, root_of
from windtunnel.studies.fleet.policies.kueue.preemption import FINAL, INITIAL, LOWER, Preemption
from windtunnel.studies.fleet.policies.kueue.state import Line, State
from windtunnel.studies.fleet.running import NS, Rank, Running
from windtunnel.studies.fleet.traits import FAILING, Traits


@dataclass(frozen=True)
class Kueue(Lines):
    """`per_node` 0: GPUs are a count. `quotas` by queue; `strategies` of fair sharing: one, then the other.

    `qps`, `burst`: of Kueue's `clientConnection`, 0 for no limit; `hashing` of equal jobs is used only there.
    """

    per_node: int
    quotas: Mapping[str, Quota]
    fair_sharing: bool = False
    cohorts: tuple[Cohort, ...] = ()
    strategies: tuple[str, ...] = (FINAL, INITIAL)
    qps: float = 0.0
    burst: int = 100
    hashing: bool = True

    def rank(self, job: Running) -> Rank:
        """The order of each queue."""
        return -job.priority, job.submit_ns, job.index

    def line(self, job: Running) -> Hashable:
        """Jobs of one queue and size wait in one line."""
        return job.queue if job.queue in self.quotas else "", job.gpus

    def choose(self, board: Board) -> Iterator[Move]:
        """What starts and stops now."""
        state, stopped = self._state(board), set[int]()
        if state.pace is not None:
            yield from self._without_queue(state.without_queue(board), board)
            yield from paced(self, board, state)
            board.given.clear()
            return
        waiting: dict[str, list[Line]] = {}
        for line in state.lines(board, stopped):
            waiting.setdefault(line.queue, []).append(line)
        yield from self._without_queue(waiting.pop("", []), board)
        queues = state.books.queues
        while heads := _heads(waiting):
            kept: list[tuple[Node, int]] = []  # in this cycle for jobs that others may take it from
            for job in self.in_turn(list(heads), state.books):
                node, placement = queues[job.queue], None
                for victim in self.victims(job, state):
                    state.give(victim)
                    stopped.add(victim.index)
                    yield victim, None
                if job.gpus <= node.available:
                    placement = board.gang(job.gpus, self.per_node)
                if placement is not None:
                    state.take(job)
                    yield job, placement
                    continue
                heads[job].full = True
                room = self.kept(job, node)
                if room > 0:
                    node.add(room)
                    kept.append((node, room))
                if self.quotas[job.queue].strict:
                    waiting[job.queue].clear()
            for node, room in kept:
                node.add(-room)
        board.given.clear()

    def delay_ns(self, job: Running, board: Board) -> int:
        """Until its admission is written."""
        state = board.memory
        return 0 if state.pace is None else int(state.pace.begins_ns.pop(job.index, board.moment.ns) - board.moment.ns)

    def restore(self, board: Board, memory: object) -> None:
        """Its pace goes on at another snapshot; the books follow from what runs."""
        assert isinstance(memory, State)
        if memory.pace is None:
            return
        state = self._state(board)
        state.pace = deepcopy(memory.pace)
        for job in [each for jobs in memory.running.values() for each in jobs.values()]:
            if job.index not in board.running:
                state.pace.ended(job.index, root_of(state.books.queues[job.queue]), board.moment.ns)

    def _without_queue(self, lines: Sequence[Line], board: Board) -> Iterator[Move]:
        """Jobs of no queue start where they fit, by rank."""
        while heads := _heads({"": lines}):
            (job,) = heads
            placement = board.gang(job.gpus, self.per_node)
            if placement is None:
                heads[job].full = True
            else:
                yield job, placement

    def _state(self, board: Board) -> State:
        """What it remembers, with the jobs that have ended since."""
        state: State | None = board.memory
        if state is None:
            pace = Pace(round(NS / self.qps), round(self.burst * NS / self.qps)) if self.qps else None
            state = board.memory = State(Books(self.quotas.values(), self.cohorts), pace)
            for job in board.running.values():
                if job.queue in self.quotas:
                    state.take(job)
        else:
            for job, _ in board.given:
                state.give(job)
                if state.pace is not None and job.queue in self.quotas:
                    state.pace.ended(job.index, root_of(state.books.queues[job.queue]), board.moment.ns)
        board.given.clear()
        return state

    def kept(self, job: Running, node: Node) -> int:
        """GPUs that nobody else is given in this cycle: what a queue could not reclaim from all, it keeps."""
        quota = self.quotas[job.queue]
        if quota.reclaim == WHOEVER or node.parent is None or not self._may_preempt(job, node):
            return 0
        if node.used + job.gpus <= node.quota:
            return min(job.gpus, node.quota - node.used)
        if quota.borrowing_limit is None:
            return job.gpus
        return min(job.gpus, node.quota + quota.borrowing_limit - node.used)

    def _may_preempt(self, job: Running, node: Node) -> bool:
        """Whether stopping others is thought of: within a part of the tree, or where it may be done to borrow."""
        quota = self.quotas[job.queue]
        if job.gpus > node.most:
            return False
        borrows = quota.borrow_within != "Never" or (self.fair_sharing and quota.reclaim != "Never")
        return job.gpus <= quota.nominal or borrows or node.reach(job.gpus)[1]

    def in_turn(self, heads: Sequence[Running], books: Books) -> Iterator[Running]:
        """First jobs of queues, in the order of a cycle."""
        if not self.fair_sharing:
            yield from sorted(heads, key=lambda job: (books.queues[job.queue].reach(job.gpus)[0], self.rank(job)))
            return
        left = {job.queue: job for job in heads}
        while left:
            chances = [self._first(node, left, books) for node in books.roots]
            job = min((each for each in chances if each is not None), key=self.rank)
            del left[job.queue]
            yield job

    def _first(self, node: Node, heads: Mapping[str, Running], books: Books) -> Running | None:
        """Of the first jobs below a node the one whose branch would borrow least."""
        if node is books.queues.get(node.name):
            return heads.get(node.name)
        best: tuple[Share, Rank] | None = None
        found: Running | None = None
        for child in (*node.cohorts, *node.queues):
            job = self._first(child, heads, books)
            if job is None:
                continue
            queue = books.queues[job.queue]
            queue.add(job.gpus)
            turn = child.share, self.rank(job)
            queue.add(-job.gpus)
            if best is None or turn < best:
                best, found = turn, job
        return found

    def victims(self, job: Running, state: State) -> list[Running]:
        """The jobs that are stopped for this one; none where it fits, or where stopping all would not do."""
        quota, node = self.quotas[job.queue], state.books.queues[job.queue]
        if job.gpus <= node.available or (quota.within not in LOWER and quota.reclaim == "Never"):
            return []
        if not self._may_preempt(job, node):
            return []
        preemption = Preemption(self.quotas, state)
        return preemption.by_share(job, self.strategies) if self.fair_sharing else preemption.by_policy(job)


def _heads(waiting: Mapping[str, Sequence[Line]]) -> dict[Running, Line]:
    """The first job of each queue, and its line."""
    found = {}
    for lines in waiting.values():
        heads = [(job.rank, line, job) for line in lines if (job := line.head) is not None]
        if heads:
            _, line, job = min(heads, key=lambda each: each[0])
            found[job] = line
    return found


POLICY = Traits(
    name="kueue",
    asks="lines",
    priorities=True,
    make=lambda site, options: Kueue(
        0 if options.pool else site.per_node,
        {quota.name: quota for quota in options.quotas},
        cohorts=options.cohorts,
    ),
    needs=frozenset({"duration", "quota"}),
    capacity=FAILING,
    source="Kueue, kueue.sigs.k8s.io",
)
