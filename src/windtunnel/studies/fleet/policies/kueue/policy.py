"""Kueue: quotas of queues that borrow from their cohorts, and preemption to get them back.

A cycle: the first job of every queue; those that need not borrow first, then by priority and time; each is admitted if
its queue's quota, with what cohorts lend (`books.py`), holds it. Then the next of every queue, until none is left; a
job that is not admitted waits (and blocks its queue under StrictFIFO). One that finds no quota may stop others
(`preemption.py`).

`fair_sharing` (a setting of Kueue's, a parameter here): the first job of the queue that would borrow the smallest share
comes first, cohort by cohort from the leaves, and shares say who is stopped.

Where a queue has several flavors, each first job is given one when the cycle begins (`flavors.py`); one that no longer
gets it is the first of its queue again in the next.

A job of no queue is none of Kueue's and starts where it fits. A stopped job goes on where it was, `--restart` later.
Quotas are the ClusterQueues and Cohorts of the file. Decisions cost no time, unless `qps` says how many of them Kueue
can write in a second (`pace.py`). Racks and blocks are in `topology.py`. Source: Kueue v1beta1 and v1beta2, its
concepts and KEP 79, 168, 1337, 1714. Admission checks take their time while the quota is held; none is ever refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING

from windtunnel.studies.fleet.clock.board import Board, Move
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.outcome import ON_FLAVOR
from windtunnel.studies.fleet.policies.kueue.books import MARK, Books, Node
from windtunnel.studies.fleet.policies.kueue.flavors import by_flavor, places_of
from windtunnel.studies.fleet.policies.kueue.pace import paced
from windtunnel.studies.fleet.policies.kueue.rules import Rules
from windtunnel.studies.fleet.policies.kueue.state import ANYWHERE, Line, Pace, State
from windtunnel.studies.fleet.policies.kueue.topology import Topology
from windtunnel.studies.fleet.traits import FAILING, Traits

if TYPE_CHECKING:
    from windtunnel.studies.fleet.options import Options
    from windtunnel.studies.fleet.site import Site


@dataclass(frozen=True)
class Kueue(Rules):
    """The cycles on a board."""

    def choose(self, board: Board) -> Iterator[Move]:
        """What starts and stops now."""
        state, stopped = self._state(board), set[int]()
        if state.pace is not None:
            yield from self._without_queue(state.without_queue(board), board)
            yield from paced(self, board, state)
            board.released.clear()
            return
        waiting: dict[str, list[Line]] = {}
        for line in state.lines(board, stopped):
            waiting.setdefault(self.quotas[line.queue].head_of if line.queue else "", []).append(line)
        yield from self._without_queue(waiting.pop("", []), board)
        queues, tried = state.books.queues, dict[int, int]()
        while heads := _heads(waiting):
            reserved: list[tuple[Node, int]] = []  # in this cycle for jobs that others may take it from
            assigned = self.assigned(heads, state, tried) if self.choosing else {}
            for job in [each for each in heads if each.queue not in queues] if self.choosing else ():
                self._wait(job, heads[job], waiting)
            for job in self.in_turn([each for each in heads if not heads[each].full], state.books):
                node, placement = queues[job.queue], None
                choice = assigned.get(job.index)
                again = choice is not None and self.lost(job, choice, node)
                for victim in () if again else self.victims(job, state):
                    state.give(victim)
                    stopped.add(victim.index)
                    yield victim, None
                if job.gpus <= node.available:
                    placement = self.place(job, board)
                    again = placement is None and choice is not None and self.left(job, choice, tried)
                if placement is not None:
                    state.take(job)
                    yield job, placement
                    continue
                room = 0 if again else self.reserved(job, node)
                if room > 0:
                    node.add(room)
                    reserved.append((node, room))
                if not again:
                    self._wait(job, heads[job], waiting)
                job.queue = job.queue.partition(MARK)[0]
            for node, room in reserved:
                node.add(-room)
        board.released.clear()

    def _wait(self, job: Running, line: Line, waiting: Mapping[str, list[Line]]) -> None:
        """A job waits, with all that wait behind it."""
        line.full = True
        quota = self.quotas[job.queue]
        if quota.strict:
            waiting[quota.head_of].clear()

    def delay_ns(self, job: Running, board: Board) -> int:
        """Until its admission is written, and its queue's checks are ready."""
        state, now_ns = board.memory, board.moment.ns
        written_ns = 0 if state.pace is None else int(state.pace.begins_ns.pop(job.index, now_ns) - now_ns)
        quota, own_s = self.quotas.get(job.queue), job.owner.checks_s
        checks_s = own_s if own_s is not None else self.checks_s if quota is not None and quota.checks else 0.0
        return written_ns + round(checks_s * NS)

    def further(self, board: Board, jobs: Sequence[Running]) -> dict[str, object]:
        """GPU-hours of jobs by the flavor on which they ran last."""
        hours: dict[str, float] = {}
        for index, flavor in (board.memory.flavors if board.memory else {}).items():
            key = f"{ON_FLAVOR}{flavor}"
            hours[key] = hours.get(key, 0.0) + jobs[index].gpu_ns / board.unit / NS / 3600
        return {key: round(value, 6) for key, value in hours.items()}

    def restore(self, board: Board, memory: object) -> None:
        """Its pace goes on at another snapshot; the books follow from what runs, and from its flavors."""
        assert isinstance(memory, State)
        for queue, jobs in memory.running.items():
            for index in jobs.keys() & board.running.keys():
                board.running[index].queue = queue
        if memory.pace is None:
            return
        state = self._state(board)
        state.pace = deepcopy(memory.pace)
        for queue, jobs in memory.running.items():
            for index in jobs.keys() - board.running.keys():
                state.pace.ended(index, state.books.tops[queue], board.moment.ns)

    def _without_queue(self, lines: Sequence[Line], board: Board) -> Iterator[Move]:
        """Jobs of no queue start where they fit, by rank."""
        while heads := _heads({"": lines}):
            (job,) = heads
            placement = self.place(job, board)
            if placement is None:
                heads[job].full = True
            else:
                yield job, placement

    def _state(self, board: Board) -> State:
        """What it remembers, with the jobs that have ended since."""
        state: State | None = board.memory
        if state is None:
            pace = None
            if self.qps:
                pace = Pace(round(NS / self.qps), round(self.burst * NS / self.qps), board.capacity)
            state = board.memory = State(Books(self.quotas.values(), self.cohorts), pace)
            for job in board.running.values():
                if job.queue in self.quotas:
                    self.settle(job)
                    state.take(job)
        else:
            for job, _ in board.released:
                state.give(job)
                if state.pace is not None:
                    root = state.books.tops[job.queue] if job.queue in self.quotas else ANYWHERE
                    state.pace.ended(job.index, root, board.moment.ns)
        board.released.clear()
        return state


def _heads(waiting: Mapping[str, Sequence[Line]]) -> dict[Running, Line]:
    """The first job of each queue, and its line."""
    line_of = {}
    for lines in waiting.values():
        heads = [(job.rank, line, job) for line in lines if (job := line.head) is not None]
        if heads:
            _, line, job = min(heads, key=lambda each: each[0])
            line_of[job] = line
    return line_of


def kueue_of(site: Site, options: Options, *, fair_sharing: bool = False) -> Kueue:
    """Kueue with the quotas of a trace on a site."""
    quotas, cohorts = by_flavor(options.quotas, options.cohorts)
    places = {} if options.pool else places_of(site, options.quotas)
    per_node, topology = 0 if options.pool else site.per_node, Topology.of(dict(site.topology))
    return Kueue(per_node, quotas, fair_sharing, cohorts, topology=topology, places=places)


POLICY = Traits(
    name="kueue",
    asks="lines",
    priorities=True,
    make=kueue_of,
    needs=frozenset({"duration", "quota"}),
    capacity=FAILING,
    parts=True,
    compatible=True,
)
