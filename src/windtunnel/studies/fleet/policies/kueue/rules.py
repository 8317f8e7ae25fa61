"""What Kueue's policy is told, the order of its cycles, and whom they stop."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from windtunnel.studies.fleet.clock.board import Board
from windtunnel.studies.fleet.clock.decision import Owner, Placement
from windtunnel.studies.fleet.clock.queue_policy import QueuePolicy
from windtunnel.studies.fleet.clock.running import Rank, Running
from windtunnel.studies.fleet.jobs.flavors import NONE
from windtunnel.studies.fleet.jobs.trace import WHOEVER, Cohort, Quota
from windtunnel.studies.fleet.policies.kueue.books import MARK, Books, Node, Share
from windtunnel.studies.fleet.policies.kueue.flavors import (
    FIT,
    FROM_FIRST,
    NO_CANDIDATES,
    NO_FIT,
    PREEMPT,
    RECLAIM,
    Assignment,
    Place,
)
from windtunnel.studies.fleet.policies.kueue.preemption import FINAL, INITIAL, LOWER, Preemption
from windtunnel.studies.fleet.policies.kueue.state import State
from windtunnel.studies.fleet.policies.kueue.topology import FLAT, Topology

if TYPE_CHECKING:
    from windtunnel.studies.fleet.parts.profile import Part


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
    checks_s: float = 0.0  # of admission checks, for jobs of a queue that has some and of which no log says it
    topology: Topology = FLAT
    places: Mapping[str, Place] = field(default_factory=dict)
    known: dict[tuple[Hashable, ...], tuple[str, ...]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def choosing(self) -> bool:
        """Whether some queue has several flavors."""
        return any(quota.flavors for quota in self.quotas.values())

    def rank(self, job: Running) -> Rank:
        """The order of each queue."""
        return -job.priority, job.submit_ns, job.index

    def line(self, job: Running) -> Hashable:
        """Jobs of one queue, size and place in the topology wait in one line."""
        queue = self.quotas[job.queue].head_of if job.queue in self.quotas else ""
        return queue, job.gpus, job.owner.topology, job.owner.pod_gpus, job.part, job.owner.flavors

    def place(self, job: Running, board: Board) -> Placement | None:
        """Nodes for a job whose quota is there."""
        where = self.places.get(self._flavor(job.queue)) if self.per_node and self.places else None
        plain = not job.owner.topology or not self.per_node or len(self.topology.levels) < 2
        if plain or job.part is not None or job.gpus > board.free_gpus:
            if where is None or job.part is not None:
                return board.room(job, self.per_node)
            return board.gang(job.gpus, where.per_node, where.sizes)
        free = board.free if where is None else [n if at in where.sizes else 0 for at, n in enumerate(board.free)]
        return self.topology.place(job.gpus, job.owner, free, where.per_node if where else self.per_node)

    def _flavor(self, queue: str) -> str:
        return self.quotas[queue].flavor if queue in self.quotas else ""

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

    def usable(self, queue: str, gpus: int, owner: Owner, part: Part | None = None) -> tuple[str, ...]:
        """Flavors of a queue that a job may use, in their order: of its own list, with nodes that can hold it.

        One that asks for a topology uses a flavor with one, another only where the queue has no other.
        """
        key = queue, gpus, owner.flavors, owner.topology, owner.pod_gpus, part
        if key not in self.known:
            flavors = self.quotas[queue].flavors
            own_list = owner.flavors.split(",") if owner.flavors else flavors
            placed = {name for name, flavor in flavors.items() if flavor.spec.get("topologyName")}
            in_topology = bool(owner.topology) or placed == flavors.keys()
            right = (placed or flavors.keys()) if in_topology else flavors.keys() - placed
            fits = {name for name in right if part is not None or self._holds(name, gpus, owner)}
            self.known[key] = tuple(name for name in flavors if name in own_list and name in fits)
        return self.known[key]

    def never(self, jobs: Iterable[tuple[str, int, Owner, Part | str | None]]) -> Iterator[tuple[int, str]]:
        """Jobs (queue, GPUs, owner, part) that can never start, by their place, and why."""
        most = {name: node.most for name, node in Books(self.quotas.values(), self.cohorts).queues.items()}
        for at, (queue, gpus, owner, part) in enumerate(jobs):
            of = self.quotas.get(queue)
            if of is None or isinstance(part, str):
                if self.places and not self._holds("", gpus, owner) and part is None:
                    yield at, "asks {gpus} GPUs, more than nodes hold"
                continue
            names = (
                [f"{queue}{MARK}{name}" for name in self.usable(queue, gpus, owner, part)] if of.flavors else [queue]
            )
            if not names:
                words = f"{queue} ({', '.join(of.flavors)})"
                fits = f"asks {{gpus}} GPUs: they fit on nodes of no flavor of {words} that it may use"
                yield at, f"may use no flavor of {words}" if owner.flavors == NONE else fits
                continue
            if gpus > max(most[name] for name in names):
                yield at, "asks {gpus} GPUs, more than its queue may ever have" + " of a flavor" * bool(of.flavors)

    def _holds(self, flavor: str, gpus: int, owner: Owner) -> bool:
        where = self.places.get(flavor) if self.per_node else None
        if where is None or not owner.topology or len(self.topology.levels) < 2:
            return where is None or where.holds(gpus)
        free = [where.sizes.get(node, 0) for node in range(max(where.sizes, default=-1) + 1)]
        return bool(where.sizes) and self.topology.place(gpus, owner, free, where.per_node) is not None

    def settle(self, job: Running) -> None:
        """A job that runs, and of whose flavor nobody knows, is of the first that has its nodes."""
        if self.quotas[job.queue].flavors:
            names = self.usable(job.queue, job.gpus, job.owner, job.part) or tuple(self.quotas[job.queue].flavors)
            nodes = {node for node, _ in job.placement}
            of = (name for name in names if name not in self.places or nodes <= self.places[name].sizes.keys())
            job.queue += MARK + next(of, names[0])

    def assigned(self, heads: Iterable[Running], state: State, tried: Mapping[int, int]) -> dict[int, Assignment]:
        """A flavor for each of these jobs whose queue has several, by the job's index."""
        choices = {}
        for job in heads:
            if self.quotas[job.queue].flavors:
                choice = self.assign(job, state, tried.get(job.index, FROM_FIRST) + 1)
                if choice is not None:
                    choices[job.index] = choice
        return choices

    def lost(self, job: Running, choice: Assignment, node: Node) -> bool:
        """Whether others of the cycle took what a job was to have, and another flavor is left to look for."""
        several = len(self.quotas[self.quotas[job.queue].head_of].flavors) > 1
        return several and choice.mode == FIT and job.gpus > node.available

    def left(self, job: Running, choice: Assignment, tried: dict[int, int]) -> bool:
        """Whether flavors are left to try for a job that found no room in the topology of one."""
        tried.pop(job.index, None)
        if job.owner.topology and choice.last != FROM_FIRST:
            tried[job.index] = choice.last
        return job.index in tried

    def assign(self, job: Running, state: State, first: int = 0) -> Assignment | None:
        """The best flavor for a job from one of its queue's on, whose queue it is in then; None: it is in none."""
        queue, best, at = job.queue, None, first
        quota = self.quotas[queue]
        usable, names = self.usable(queue, job.gpus, job.owner, job.part), list(quota.flavors)
        for at in range(first, len(names)):
            if names[at] not in usable:
                continue
            job.queue = f"{queue}{MARK}{names[at]}"
            each = Assignment(job.queue, *self.outlook(job, state))
            ends = not each.goes_on(quota)
            if ends or each.better(best, quota):
                best = each
            if ends:
                break
        job.queue = best.queue if best else queue
        return best if best is None or at == len(names) - 1 else replace(best, last=at)

    def outlook(self, job: Running, state: State) -> tuple[int, int]:
        """How a job of a flavor's queue would get its quota, and on which level of the tree then."""
        node = state.books.queues[job.queue]
        if job.gpus > node.most:
            return NO_FIT, 0
        if job.gpus <= node.available:
            return FIT, node.reach(job.gpus)[0]
        return self.by_stopping(job, state) if self._may_preempt(job, node) else (NO_FIT, 0)

    def by_stopping(self, job: Running, state: State) -> tuple[int, int]:
        """The same where others would have to be stopped."""
        node, victims = state.books.queues[job.queue], self.victims(job, state)
        for victim in victims:
            state.books.queues[victim.queue].add(-victim.gpus)
        level = node.reach(job.gpus)[0]
        for victim in victims:
            state.books.queues[victim.queue].add(victim.gpus)
        own = any(victim.queue == job.queue for victim in victims)
        return (NO_CANDIDATES if not victims else PREEMPT if own else RECLAIM), level

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
        best: tuple[bool, Share, Rank] | None = None  # one that need not borrow of its flavor comes first
        choice: Running | None = None
        for child in (*node.cohorts, *node.queues):
            job = self._first(child, heads, books)
            if job is None:
                continue
            queue = books.queues[job.queue]
            queue.add(job.gpus)
            turn = child.used > child.quota, child.share, self.rank(job)
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
