"""Whom Kueue stops for a job that finds no quota: by its queue's policies, or by fair shares.

By policies: jobs of queues that hold what the job's own subtree of cohorts could give it (it has the advantage of the
tree), those of other queues that borrow, those of its own queue; each kind by lower priority, then newer start. A job
may need others to be stopped while its queue borrows (`borrowWithinCohort`), or must then stay in its nominal quota.

By shares: of the queue with the largest share, cohort by cohort from the root, while the shares of the two branches
below their common cohort stay in order: LessThanOrEqualToFinalShare, then LessThanInitialShare.

Each without whom there is room is kept. Source: Kueue, its concept of preemption, KEP 1714.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from windtunnel.studies.fleet.clock.running import Running
from windtunnel.studies.fleet.jobs.trace import WHOEVER, Quota
from windtunnel.studies.fleet.policies.kueue.books import Node
from windtunnel.studies.fleet.policies.kueue.state import State

LOWER = ("LowerPriority", "LowerOrNewerEqualPriority")
FINAL, INITIAL = "LessThanOrEqualToFinalShare", "LessThanInitialShare"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job that may be stopped. `below`: the cohort that both queues share; `alone`: only without borrowing."""

    job: Running
    below: Node | None = None
    alone: bool = False


def order(job: Running) -> tuple[float, int, int]:
    """Which of several is stopped first."""
    return job.priority, -job.placed_ns, job.index


class Preemption:
    """The jobs that run, by queue, and who may stop whom."""

    def __init__(self, quotas: Mapping[str, Quota], state: State) -> None:
        self.quotas, self.books, self.running = quotas, state.books, state.running

    def by_policy(self, job: Running) -> list[Running]:
        """Whom the queue's policies let it stop, as few as will do; none where all would not do."""
        quota, node = self.quotas[job.queue], self.books.queues[job.queue]
        trees, others = self._of_others(job)
        own = [Candidate(each) for each in self._in_queue(job)]
        candidates = [*trees, *others, *own]
        forbidden = quota.borrow_within == "Never"
        if not (trees or others) or (forbidden and node.used >= node.quota):
            attempts: tuple[bool, ...] = (True,)
        else:
            attempts = (False, True) if forbidden and not trees else (True, False)
        for borrows in attempts:
            stopped: list[Running] = []
            for candidate in candidates:
                if candidate.job.queue != job.queue and not self._still(candidate, borrows):
                    continue
                self._remove(candidate.job, stopped)
                if self._fits(job, borrows=borrows):
                    return self._needed(job, stopped, borrows=borrows)
            self._restore(stopped)
        return []

    def _in_queue(self, job: Running) -> list[Running]:
        within = self.quotas[job.queue].within
        if within not in LOWER:
            return []

        def may(other: Running) -> bool:
            newer = other.priority == job.priority and other.submit_ns > job.submit_ns
            return other.priority < job.priority or (newer and within == LOWER[1])

        return sorted(filter(may, self.running.get(job.queue, {}).values()), key=order)

    def _of_others(self, job: Running) -> tuple[list[Candidate], list[Candidate]]:
        """Those over whom the job has the advantage of the tree, and the others."""
        quota, node = self.quotas[job.queue], self.books.queues[job.queue]
        candidates: tuple[list[Candidate], list[Candidate]] = [], []
        if node.parent is None or quota.reclaim == "Never":
            return candidates
        advantage, skip = node.used + job.gpus <= node.quota, node
        gpus = max(job.gpus - max(node.local - node.used, 0), 0)
        for cohort in node.above():
            for queue in self._borrowing(cohort, skip):
                if queue is node:
                    continue
                for other in self.running.get(queue.name, {}).values():
                    if quota.reclaim == WHOEVER or other.priority < job.priority:
                        alone = not advantage and not self._while_borrowing(job, other)
                        candidates[not advantage].append(Candidate(other, cohort, alone))
            advantage = advantage or cohort.used + gpus <= cohort.quota
            gpus = max(gpus - max(cohort.local - cohort.used, 0), 0)
            skip = cohort
        for each in candidates:
            each.sort(key=lambda candidate: order(candidate.job))
        return candidates

    def _borrowing(self, cohort: Node, skip: Node) -> Iterator[Node]:
        """Queues below a cohort that use more than their quota, in subtrees that do."""
        for each in cohort.cohorts:
            if each is not skip and each.used > each.quota:
                yield from self._borrowing(each, skip)
        yield from (queue for queue in cohort.queues if queue.used > queue.quota)

    def _while_borrowing(self, job: Running, other: Running) -> bool:
        """Whether one of another queue may be stopped by a job whose queue borrows then."""
        quota = self.quotas[job.queue]
        most = quota.borrow_priority
        lower = quota.borrow_within != "Never" and other.priority < job.priority
        return lower and (most is None or other.priority <= most)

    def _still(self, candidate: Candidate, borrows: bool) -> bool:
        """Whether a candidate's queue, and the cohorts up to the shared one, use more than their quota."""
        node = self.books.queues[candidate.job.queue]
        if (borrows and candidate.alone) or node.used <= node.quota:
            return False
        for cohort in node.above():
            if cohort is candidate.below:
                break
            if cohort.used <= cohort.quota:
                return False
        return True

    # By shares

    def by_share(self, job: Running, strategies: Sequence[str]) -> list[Running]:
        """Whom fair shares let it stop, as few as will do; none where all would not do."""
        node, quota = self.books.queues[job.queue], self.quotas[job.queue]
        left = {job.queue: self._in_queue(job)}
        if node.parent is not None and quota.reclaim != "Never":
            root = [*node.above()][-1]
            for queue in self._all_queues(root):
                if queue is not node and queue.used > queue.quota:
                    who = self.running.get(queue.name, {}).values()
                    may = [each for each in who if quota.reclaim == WHOEVER or each.priority < job.priority]
                    left[queue.name] = sorted(may, key=order)
        node.add(job.gpus)
        stopped: list[Running] = []
        again: dict[str, list[Running]] = {}
        done = self._first(job, left, again, stopped, strategies[0])
        if not done and len(strategies) > 1:
            done = self._second(job, again, stopped)
        node.add(-job.gpus)
        if done:
            return self._needed(job, stopped, borrows=True)
        self._restore(stopped)
        return []

    def _first(
        self, job: Running, left: dict[str, list[Running]], again: dict[str, list[Running]], stopped: list[Running],
        strategy: str,
    ) -> bool:  # fmt: skip
        """By one strategy; who does not pass it goes to `again`. Returns whether the job fits."""
        node, exhausted = self.books.queues[job.queue], set[str]()
        while (queue := self._next(node, left, exhausted)) is not None:
            candidates = left[queue.name]
            if queue is node or node.used <= node.quota:  # its own, or what its nominal quota is owed
                self._remove(candidates.pop(0), stopped)
                if self._fits_with(job):
                    return True
                continue
            ours, theirs = self._branches(node, queue)
            share, before = ours.share, theirs.share
            while candidates:
                other = candidates.pop(0)
                queue.add(-other.gpus)
                passes = share <= theirs.share if strategy == FINAL else share < before
                if passes:
                    stopped.append(other)
                    if self._fits_with(job):
                        return True
                    break
                queue.add(other.gpus)
                again.setdefault(queue.name, []).append(other)
        return False

    def _second(self, job: Running, again: dict[str, list[Running]], stopped: list[Running]) -> bool:
        """One of each queue, where the share stays below what theirs was."""
        node, exhausted = self.books.queues[job.queue], set[str]()
        while (queue := self._next(node, again, exhausted)) is not None:
            ours, theirs = self._branches(node, queue)
            if ours.share < theirs.share:
                self._remove(again[queue.name].pop(0), stopped)
                if self._fits_with(job):
                    return True
            again[queue.name] = []
        return False

    def _next(self, node: Node, left: Mapping[str, list[Running]], exhausted: set[str]) -> Node | None:
        """The queue to look at next: the largest share, from the root down."""
        if node.parent is None:
            return node if left.get(node.name) else None
        path = [*node.above()]
        root = path[-1]
        while root.name not in exhausted:
            queue = self._largest(root, node, path, left, exhausted)
            if queue is not None:
                return queue
        return None

    def _largest(
        self, cohort: Node, node: Node, path: Sequence[Node], left: Mapping[str, list[Running]], exhausted: set[str]
    ) -> Node | None:
        best: Node | None = None
        for queue in cohort.queues:
            waiting = left.get(queue.name)
            if not waiting or not (queue.borrows or queue is node):
                continue
            if (
                best is None
                or queue.share > best.share
                or (queue.share == best.share and self._turn(waiting[0], node) < self._turn(left[best.name][0], node))
            ):
                best = queue
        inner: Node | None = None
        for each in cohort.cohorts:
            if each.name in exhausted:
                continue
            if not each.borrows and each not in path:
                exhausted.add(each.name)
            elif inner is None or each.share >= inner.share:
                inner = each
        if best is None and inner is None:
            exhausted.add(cohort.name)
            return None
        if inner is not None and (best is None or inner.share >= best.share):
            return self._largest(inner, node, path, left, exhausted)
        return best

    @staticmethod
    def _turn(job: Running, node: Node) -> tuple[object, ...]:
        return job.queue == node.name, *order(job)

    def _branches(self, node: Node, other: Node) -> tuple[Node, Node]:
        """Of two queues the last nodes below the cohort that they share."""
        ours, theirs = [node, *node.above()], [other, *other.above()]
        while len(ours) > 1 and len(theirs) > 1 and ours[-2] is theirs[-2]:
            ours.pop()
            theirs.pop()
        return ours[-2], theirs[-2]

    def _all_queues(self, cohort: Node) -> Iterator[Node]:
        yield from cohort.queues
        for each in cohort.cohorts:
            yield from self._all_queues(each)

    # Books

    def _remove(self, job: Running, stopped: list[Running]) -> None:
        self.books.queues[job.queue].add(-job.gpus)
        stopped.append(job)

    def _restore(self, stopped: Sequence[Running]) -> None:
        for job in stopped:
            self.books.queues[job.queue].add(job.gpus)

    def _fits(self, job: Running, *, borrows: bool) -> bool:
        node = self.books.queues[job.queue]
        return job.gpus <= node.available and (borrows or node.used + job.gpus <= node.quota)

    def _fits_with(self, job: Running) -> bool:
        """The same while the books have the job already."""
        node = self.books.queues[job.queue]
        node.add(-job.gpus)
        fits = job.gpus <= node.available
        node.add(job.gpus)
        return fits

    def _needed(self, job: Running, stopped: Sequence[Running], *, borrows: bool) -> list[Running]:
        """Those without whom there is no room. The books are as before then."""
        needed = [stopped[-1]]
        for other in reversed(stopped[:-1]):
            node = self.books.queues[other.queue]
            node.add(other.gpus)
            if not self._fits(job, borrows=borrows):
                node.add(-other.gpus)
                needed.append(other)
        self._restore(needed)
        return needed[::-1]
