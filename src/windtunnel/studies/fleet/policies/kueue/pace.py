"""Kueue at the speed of its API client: every decision is a write of a Workload's status, and writes have a limit.

    bucket     `qps` writes a second, `burst` at once after a rest, first come first served (`clientConnection`)
    admission  holds its quota when it is decided; the job begins when its write has passed
    eviction   the victims' writes have passed before the cycle goes on; they run until then
    no fit     the reason is written where it is another than before, and the cycle waits for that
    parked     a job that finds no room, with all of its queue and size (`hashing`, from Kueue 0.18 on), is looked at
               again a second after something ended or was stopped in its tree of cohorts, all such at once; for want
               of GPUs, not of quota, after something ended anywhere or a node joined

A cycle is decided on what held when it began: a first job that fitted then, and no longer does, is tried again in the
next. Source: Kueue ff69552, pkg/scheduler and pkg/cache/queue; controller-runtime has a bucket for each kind of object.
Not here: how long Kueue computes, and what its other controllers write of Workloads.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterator

from windtunnel.studies.fleet.clock.board import Board, Move
from windtunnel.studies.fleet.clock.running import NS, Running
from windtunnel.studies.fleet.policies.kueue.books import MARK, Node
from windtunnel.studies.fleet.policies.kueue.flavors import Assignment
from windtunnel.studies.fleet.policies.kueue.rules import Rules
from windtunnel.studies.fleet.policies.kueue.state import ANYWHERE, Pace, State

CYCLE_NS = NS // 1000  # initialBackoff, between two cycles
NO_LONGER = -1  # what is written of a job that fitted when its cycle began, in place of the GPUs that it lacks


def paced(policy: Rules, board: Board, state: State) -> Iterator[Move]:
    """What starts and stops now: victims whose time has come, then a cycle unless one is still going on."""
    pace, now_ns = state.pace, board.moment.ns
    assert pace is not None
    for index in [index for index, time_ns in pace.stops_ns.items() if time_ns <= now_ns]:
        del pace.stops_ns[index]
        victim = board.running[index]
        state.give(victim)
        pace.written.pop(index, None)
        pace.freed(state.books.tops[victim.queue], now_ns)
        yield victim, None
    if board.capacity != pace.capacity:
        pace.capacity = board.capacity
        pace.freed(ANYWHERE, now_ns)
    pace.look_again(now_ns)
    times = [*pace.stops_ns.values(), *pace.retry_ns.values()]
    if pace.busy_ns <= now_ns:
        heads = _heads(policy, board, state)
        if heads:
            end_ns = yield from _cycle(policy, heads, board, state)
            if end_ns is not None:
                pace.busy_ns = max(end_ns, now_ns + CYCLE_NS)
                times = [*pace.stops_ns.values(), *pace.retry_ns.values(), pace.busy_ns]
    else:
        times.append(pace.busy_ns)
    board.wake_ns = min(times, default=None)


def _heads(policy: Rules, board: Board, state: State) -> list[Running]:
    """The first job of each queue that is not parked."""
    assert state.pace is not None
    heads: dict[str, Running] = {}
    parked, nothing = state.pace.parked, set[Hashable]()
    for key, line in board.lines.items():
        if not line or not isinstance(key, tuple) or not key[0]:
            continue
        queue = line[0][1].queue
        aside = parked.get(state.books.tops[queue], nothing), parked.get(ANYWHERE, nothing)
        if policy.hashing:
            first = None if key in aside[0] or key in aside[1] else line[0][1]
        else:
            first = next((job for _, job in line if job.index not in aside[0] and job.index not in aside[1]), None)
        whole = policy.quotas[queue].head_of
        if first is not None and (whole not in heads or first.rank < heads[whole].rank):
            heads[whole] = first
    for queue, index in state.pace.ahead.items():
        if queue in heads and heads[queue].index != index:
            waiting = (job for line in board.lines.values() for _, job in line if job.index == index)
            heads[queue] = next(waiting, heads[queue])
    return list(heads.values())


def _cycle(policy: Rules, heads: list[Running], board: Board, state: State) -> Generator[Move, None, int | None]:
    """One job of each queue, in turn. Returns when its last write has passed; None where it wrote nothing."""
    pace, queues = state.pace, state.books.queues
    assert pace is not None
    at_ns = board.moment.ns
    wrote = False
    assigned, refused = _assigned(policy, heads, state) if policy.choosing else ({}, [])
    heads = [job for job in heads if job.queue in queues]
    fitted = {job.index for job in heads if job.gpus <= queues[job.queue].available}
    stopping: set[int] = set()  # victims of this cycle
    reserved: list[tuple[Node, int]] = []
    for job in policy.in_turn(heads, state.books):
        node = queues[job.queue]
        pace.awaited[job.index] = waits = pace.awaited.get(job.index, set()) & pace.stops_ns.keys()
        if not waits and job.gpus <= node.available:
            placement = policy.place(job, board)
            if placement is None:
                others = job.index in assigned and policy.left(job, assigned[job.index], pace.tried)
                refused.append((job, NO_LONGER, "") if others else (job, job.gpus, ANYWHERE))
                continue
            state.take(job)
            _forget(job, pace, policy)
            pace.begins_ns[job.index] = pace.write(at_ns)
            wrote = True
            yield job, placement
            continue
        victims = [] if waits or job.index in fitted else policy.victims(job, state)
        if (job.index in fitted and not waits) or any(each.index in stopping for each in victims):
            refused.append((job, NO_LONGER, ""))
            continue
        for victim in victims:
            if victim.index not in pace.stops_ns:
                pace.stops_ns[victim.index] = pace.write(at_ns)
                wrote = True
        if victims:
            waits |= {each.index for each in victims}
            stopping |= waits
            at_ns = max(at_ns, *(pace.stops_ns[index] for index in waits))
            pace.ahead[policy.quotas[job.queue].head_of] = job.index
            pace.chosen[job.index] = job.queue
        room = job.gpus if waits else policy.reserved(job, node)
        if room > 0:
            node.add(room)
            reserved.append((node, room))
        if not waits:
            refused.append((job, job.gpus - node.available - max(room, 0), state.books.tops[job.queue]))
    for node, room in reserved:
        node.add(-room)
    for job in heads:
        if job.index not in board.running:
            job.queue = job.queue.partition(MARK)[0]
    for job, lacks, root in refused:
        if lacks != NO_LONGER:
            _forget(job, pace, policy, keeps_written=True)
            if not policy.quotas[job.queue].strict:
                key = policy.line(job) if policy.hashing else job.index
                pace.parked.setdefault(root, set()).add(key)
        if pace.written.get(job.index) != lacks:
            pace.written[job.index] = lacks
            at_ns = pace.write(at_ns)
            wrote = True
    return at_ns if wrote else None


def _assigned(
    policy: Rules, heads: list[Running], state: State
) -> tuple[dict[int, Assignment], list[tuple[Running, int, str]]]:
    """Flavors for jobs, and those that are refused for want of any; one that waits for its victims keeps its own."""
    pace = state.pace
    assert pace is not None
    waits = [
        job for job in heads if job.index in pace.chosen and pace.awaited.get(job.index, set()) & pace.stops_ns.keys()
    ]
    assigned = policy.assigned([job for job in heads if job not in waits], state, pace.tried)
    for job in waits:
        job.queue = pace.chosen[job.index]
    without = [job for job in heads if job.queue not in state.books.queues]
    return assigned, [(job, job.gpus, state.books.tops[job.queue]) for job in without]


def _forget(job: Running, pace: Pace, policy: Rules, *, keeps_written: bool = False) -> None:
    """A job stops no others any more; `keeps_written`: what was written of it stays."""
    pace.awaited.pop(job.index, None)
    pace.chosen.pop(job.index, None)
    queue = policy.quotas[job.queue].head_of
    if pace.ahead.get(queue) == job.index:
        del pace.ahead[queue]
    if not keeps_written:
        pace.written.pop(job.index, None)
