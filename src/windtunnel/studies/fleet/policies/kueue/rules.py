"""What Kueue's policy is told, the order of its cycles, and whom they stop."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from windtunnel.studies.fleet.clock.board import Board
from windtunnel.studies.fleet.clock.decision import Placement
from windtunnel.studies.fleet.clock.queue_policy import QueuePolicy
from windtunnel.studies.fleet.clock.running import Rank, Running
from windtunnel.studies.fleet.jobs.trace import WHOEVER, Cohort, Quota
from windtunnel.studies.fleet.policies.kueue.books import Books, Node, Share
from windtunnel.studies.fleet.policies.kueue.preemption import FINAL, INITIAL, LOWER, Preemption
from windtunnel.studies.fleet.policies.kueue.state import State
from windtunnel.studies.fleet.policies.kueue.topology import FLAT, Topology


@dataclass(frozen=True)
class Rules(QueuePolicy):
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
    topology: Topology = FLAT

    def rank(self, job: Running) -> Rank:
        """The order of each queue."""
        return -job.priority, job.submit_ns, job.index

    def line(self, job: Running) -> Hashable:
        """Jobs of one queue, size and place in the topology wait in one line."""
        queue = job.queue if job.queue in self.quotas else ""
        return queue, job.gpus, job.owner.topology, job.owner.pod_gpus, job.part

    def place(self, job: Running, board: Board) -> Placement | None:
        """Nodes for a job whose quota is there."""
        plain = not job.owner.topology or not self.per_node or len(self.topology.levels) < 2
        if plain or job.part is not None or job.gpus > board.free_gpus:
            return board.room(job, self.per_node)
        return self.topology.place(job.gpus, job.owner, board.free, self.per_node)

    def reserved(self, job: Running, node: Node) -> int:
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
            job = min((chance for chance in chances if chance is not None), key=self.rank)
            del left[job.queue]
            yield job

    def _first(self, node: Node, heads: Mapping[str, Running], books: Books) -> Running | None:
        """Of the first jobs below a node the one whose branch would borrow least."""
        if node is books.queues.get(node.name):
            return heads.get(node.name)
        best: tuple[Share, Rank] | None = None
        choice: Running | None = None
        for child in (*node.cohorts, *node.queues):
            job = self._first(child, heads, books)
            if job is None:
                continue
            queue = books.queues[job.queue]
            queue.add(job.gpus)
            turn = child.share, self.rank(job)
            queue.add(-job.gpus)
            if best is None or turn < best:
                best, choice = turn, job
        return choice

    def victims(self, job: Running, state: State) -> list[Running]:
        """The jobs that are stopped for this one; none where it fits, or where stopping all would not do."""
        quota, node = self.quotas[job.queue], state.books.queues[job.queue]
        if job.gpus <= node.available or (quota.within not in LOWER and quota.reclaim == "Never"):
            return []
        if not self._may_preempt(job, node):
            return []
        preemption = Preemption(self.quotas, state)
        return preemption.by_share(job, self.strategies) if self.fair_sharing else preemption.by_policy(job)
