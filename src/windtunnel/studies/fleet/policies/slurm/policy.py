"""Slurm: jobs by priority on the nodes of their partitions, within limits, and backfill planned by time limits.

    main loop   at each event (not with `defer`): jobs in order; the first of a partition that does not fit stops that
                partition, and its nodes are left to it
    backfill    every `backfill_interval_s` after something happened: jobs in order, up to `depth` tests; each that
                cannot start reserves nodes until its limit; one further back starts only where it delays none of these

A start in the future is foreseen as Slurm does (`nodes.py`): running jobs end at their limits, those that end close
together at once; reservations hold whole nodes. A job at a limit of its QOS, user or account waits without reserving.
The policy sees limits, the clock the truth: a job that ends early is news at its end. A job without a limit is planned
for its partition's, else for a year; in a trace without any limit, for what it takes. Nodes are free `completing_s`
after a job ended.

Preemption: jobs of a lower QOS or tier are stopped, the lowest priority and the fewest nodes first, and those without
whom there is room are kept. REQUEUE loses what was done and may start again `requeue_after_s` later, CANCEL ends the
job, SUSPEND goes on where it was when nodes are free (Slurm: on the same ones).

Without slurm.conf: one partition, the log's priorities, no limits. Source: Slurm 22.05, whose defaults these are.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError
from windtunnel.studies.fleet.clock.board import Board, Move, by_rank
from windtunnel.studies.fleet.clock.decision import EMPTY, Placement
from windtunnel.studies.fleet.clock.queue_policy import QueuePolicy
from windtunnel.studies.fleet.clock.running import NS, Rank, Running
from windtunnel.studies.fleet.parts.devices import BoardOfParts
from windtunnel.studies.fleet.policies.slurm.backfill import Backfill
from windtunnel.studies.fleet.policies.slurm.cluster import CANCEL, REQUEUE, Cluster
from windtunnel.studies.fleet.policies.slurm.gres import Gres, on_board
from windtunnel.studies.fleet.policies.slurm.nodes import S_NS, Free, Units, bits
from windtunnel.studies.fleet.policies.slurm.preemption import mode_of, victims
from windtunnel.studies.fleet.policies.slurm.rules import Rules
from windtunnel.studies.fleet.policies.slurm.state import State
from windtunnel.studies.fleet.policies.slurm.whole import LEAST, can_run, run_whole
from windtunnel.studies.fleet.traits import FAILING, Traits

if TYPE_CHECKING:
    from windtunnel.studies.fleet.options import Options
    from windtunnel.studies.fleet.site import Site


@dataclass(frozen=True)
class Slurm(Rules, QueuePolicy):
    """The two loops on a board."""

    def rank(self, job: Running) -> Rank:
        """By the log; the queue is ordered anew when it is asked for."""
        return -job.priority, job.submit_ns, job.index

    def keeps_progress(self, job: Running) -> bool:
        """Whether a job that it stops goes on where it was."""
        return mode_of(self.cluster, job) != REQUEUE

    def run_whole(self, jobs: list[Running], nodes: list[int]) -> bool:
        """Many jobs run in compiled code, to the same starts."""
        if len(jobs) < LEAST or not can_run(self, jobs):
            return False
        run_whole(self, jobs, len(nodes))
        return True

    def choose(self, board: Board) -> Iterator[Move]:
        """What starts and stops now."""
        now_ns = board.moment.ns
        state = self._state(board)
        for index in [index for index, time_ns in state.doomed.items() if time_ns <= now_ns]:
            job = board.running[index]
            del state.doomed[index]
            yield from self._stop(job, board, state)
        board.wake_ns = None
        if not board.waiting or not board.capacity:
            state.waiting = board.waiting
            board.wake_ns = min(state.doomed.values(), default=None)
            return
        next_main_ns, next_pass_ns = self._turns(now_ns)
        passes = next_pass_ns == now_ns and state.changed
        main = not self.deferred and next_main_ns == now_ns and (state.news or not self.main_interval_s)
        if passes or main:
            queue = self._queue(board, state)
            if main:
                state.news = False
                yield from self._main(queue, board, state)
            if passes:
                state.changed = False
                yield from Backfill(self, queue, board, state, self.start, self.preempt).moves()
        state.waiting = board.waiting
        next_main_ns, next_pass_ns = self._turns(now_ns + 1)
        times = [next_pass_ns] if state.changed else []
        times += [next_main_ns] if state.news and self.main_interval_s and not self.deferred else []
        times += [each[0] for each in state.completing]
        times += [*state.not_before.values(), *state.doomed.values()]
        if self.recalculates and (board.running or state.completing):  # else nothing ends, whoever is first
            every_ns = round(self.cluster.calculated_every_s * NS)
            times.append(now_ns - now_ns % every_ns + every_ns)
        board.wake_ns = min((time for time in times if time > now_ns), default=None)

    def _turns(self, now_ns: int) -> tuple[int, int]:
        """When the main loop and backfill are next due, from a time on."""

        def due(interval_s: float, phase_s: float) -> int:
            interval_ns, phase_ns = round(interval_s * NS), round(phase_s * NS)
            return now_ns + (phase_ns - now_ns) % interval_ns if interval_ns else now_ns

        return due(self.main_interval_s, self.main_phase_s), due(self.backfill_interval_s, self.backfill_phase_s)

    def restore(self, board: Board, memory: object) -> None:
        """What it remembers, at another snapshot."""
        assert isinstance(memory, State)
        state = board.memory = deepcopy(memory)
        for index, (job, placement, _) in state.placed.items():
            now = board.running.get(index)
            if now is None or now.placement != placement:
                board.released.append((job, placement))
        board.touched = set(range(len(board.free)))

    # What happened since it was asked last

    def _state(self, board: Board) -> State:
        now_ns = board.moment.ns
        state: State | None = board.memory
        if state is None:
            if self.unit > 1:
                free: Free = Gres(self.cluster, len(board.free), self.per_node)
            else:
                nodes = list(board.free) if self.per_node else [1] * board.whole_gpus
                told = self.cluster if self.per_node else Cluster()
                free = Free(nodes, self.per_node or 1, told.node_cpus, told.sizes, told.by_weight, told.mixed)
            state = board.memory = State(free)
            for job in board.running.values():
                units = job.placement if self.per_node else state.free.choose(self.need(job), state.whole)
                assert units is not None
                self._take(job, job.placement, units, state)
                if not self.per_node:
                    state.free.add(units, -1)
            board.released.clear()
        before = state.changed
        state.changed = bool(board.released) or board.waiting != state.waiting
        self._release(board, state, self.completing_s)
        due = [placement for time_ns, placement in state.completing if time_ns <= now_ns]
        if due:
            state.completing = [each for each in state.completing if each[0] > now_ns]
            state.changed = True
            for placement in due:
                self._free(placement, board, state)
        self._update(board, state)
        for index in [index for index, time_ns in state.not_before.items() if time_ns <= now_ns]:
            del state.not_before[index]
            state.changed = True
        if self.recalculates:
            tick_ns = now_ns - now_ns % round(self.cluster.calculated_every_s * NS)
            if state.calculated_ns != tick_ns:
                state.calculated_ns, state.valued_ns = tick_ns, now_ns
                state.fairness.tick(board.running, now_ns, self.cluster)
                state.priorities.clear()
                state.changed = True
        state.news |= state.changed
        state.changed |= before
        return state

    def _release(self, board: Board, state: State, completing_s: float) -> None:
        """Jobs have ended or were stopped, and their nodes are free so long after."""
        now_ns = board.moment.ns
        for job, _ in board.released:
            if job.index not in state.placed:
                continue
            _, _, units = state.placed.pop(job.index)
            state.free.load(units, job.owner.cpus, -1)
            state.doomed.pop(job.index, None)
            for name, count, _, _ in self.limits(job):
                state.gpus[name] -= count
                state.jobs[name] -= 1
            for after_s, back in self.back_after(units, completing_s):
                if after_s:
                    state.completing.append((now_ns + round(after_s * NS), back))
                else:
                    self._free(back, board, state)
        board.released.clear()

    def back_after(self, units: Units, completing_s: float) -> Iterator[tuple[float, Units]]:
        """How long after its end which units of a job are free."""
        yield completing_s, units

    def _update(self, board: Board, state: State) -> None:
        """What is free, where something has changed."""
        if not self.per_node:
            self._count(board, state)
        elif board.touched and self.unit == 1:
            completing: dict[int, int] = {}
            for node, count in self._completing(state):
                completing[node] = completing.get(node, 0) + count
            for node in board.touched:
                state.free.set(node, board.free[node] - completing.get(node, 0))
        board.touched.clear()

    def _completing(self, state: State) -> Iterator[tuple[int, int]]:
        """What is not free yet of whole GPUs."""
        for _, units in state.completing:
            yield from ((node, count) for node, count in units if isinstance(count, int))

    def _free(self, units: Units, board: Board, state: State) -> None:
        if self.per_node and self.unit == 1:
            board.touched.update(node for node, _ in units)
            state.free.add_kinds(units)
        else:
            state.free.add(units)

    def _count(self, board: Board, state: State) -> None:
        """Units that are gone or back, where GPUs are a count."""
        completing = sum(count for _, count in self._completing(state))
        usable = state.free.at_least[1].bit_count()
        missing = usable + completing - board.free_gpus
        if missing > 0:
            for node in list(bits(state.free.at_least[1]))[:missing]:
                state.free.set(node, 0)
        elif missing < 0:
            gone_before = [node for node, count in enumerate(state.free.gpus) if not count]
            in_use = {node for _, _, units in state.placed.values() for node, _ in units}
            in_use |= {node for _, units in state.completing for node, _ in units}
            for node in [node for node in gone_before if node not in in_use][:-missing]:
                state.free.set(node, 1)

    def _take(self, job: Running, placement: Placement, units: Units, state: State) -> None:
        state.placed[job.index] = job, placement, units
        state.free.load(units, job.owner.cpus)
        state.preempting.pop(job.index, None)
        for name, count, _, _ in self.limits(job):
            state.gpus[name] = state.gpus.get(name, 0) + count
            state.jobs[name] = state.jobs.get(name, 0) + 1

    # Order and limits

    def _queue(self, board: Board, state: State) -> list[Running]:
        """Jobs that may start, by order."""
        queue = [job for line in board.lines.values() for _, job in line if job.index not in state.not_before]
        if not self.ordered_by_tier:
            return sorted(queue, key=by_rank)
        for job in queue:
            if job.index not in state.priorities:
                priority = self.priority(job, max(job.submit_ns, state.valued_ns), state.fairness.factors)
                state.priorities[job.index] = (*self.band(job), -priority, job.submit_ns // S_NS, job.index)
        return sorted(queue, key=lambda job: state.priorities[job.index])

    # The main loop; the other is `backfill.py`

    def _main(self, queue: list[Running], board: Board, state: State) -> Iterator[Move]:
        """Jobs in order, until each partition is stopped."""
        stopped: set[str] = set()
        blocked, whole = self.ending(state), state.whole
        for job in queue[: self.main_depth or None]:
            partition = self.cluster.partition(job.queue)
            name = partition.name if partition else ""
            units = self.nodes_of(job, whole)
            if name in stopped or not self.allowed(job, state):
                continue
            placed = state.free.choose(self.need(job), units & ~blocked)
            if placed is not None:
                yield self.start(job, placed, board, state)
                continue
            for victim in victims(self, job, units & ~blocked, board, state):
                yield from self.preempt(victim, board, state)
            blocked |= self.ending(state)
            placed = state.free.choose(self.need(job), units & ~blocked) if job.index in state.preempting else None
            if placed is not None:
                yield self.start(job, placed, board, state)
                continue
            if board.moment.ns - job.submit_ns < self.reserved_after_s * NS:
                continue
            stopped.add(name)
            blocked |= units
            if blocked == whole:
                return

    def start(self, job: Running, units: Units, board: Board, state: State) -> Move:
        """A job starts on units."""
        if isinstance(board, BoardOfParts):
            placement: Placement | None = on_board(job, units, board, self.cluster)
        elif self.per_node:
            placement = tuple((node, count * self.unit) for node, count in units if isinstance(count, int))
        else:
            placement = board.gang(job.gpus, 0)
        assert placement is not None
        self._take(job, placement, units, state)
        state.free.add(units, -1)
        return job, placement

    # Preemption

    def preempt(self, job: Running, board: Board, state: State) -> Iterator[Move]:
        """A job is stopped, at once or when its grace time is over."""
        qos = self.cluster.qos.get(job.owner.qos)
        grace_s = qos.grace_s if qos else 0.0
        if grace_s:
            state.doomed[job.index] = board.moment.ns + round(grace_s * NS)
        else:
            yield from self._stop(job, board, state)

    def _stop(self, job: Running, board: Board, state: State) -> Iterator[Move]:
        mode = mode_of(self.cluster, job)
        completing_s = max(self.completing_s, self.stopped_completing_s)
        if mode == CANCEL:
            yield job, EMPTY
        else:
            if mode == REQUEUE:  # counted, in whole seconds, from when its nodes are back
                back_ns = board.moment.ns + round(completing_s * NS)
                state.not_before[job.index] = back_ns // S_NS * S_NS + round(self.requeue_after_s * NS)
            yield job, None
        self._release(board, state, completing_s)
        self._update(board, state)


def _make(site: Site, options: Options) -> Slurm:
    cluster = site.slurm_cluster
    if options.pool and cluster.partitions:
        raise SpecError("--placement", "pool", "leave it out: partitions of slurm.conf are of nodes")
    policy = Slurm(0 if options.pool else site.per_node // site.unit, site.unit, cluster=cluster)
    settings = {name: type(getattr(policy, name))(value) for name, value in cluster.settings.items()}
    return replace(policy, **settings)


POLICY = Traits(name="slurm", asks="lines", priorities=True, make=_make, capacity=FAILING, parts=True)
