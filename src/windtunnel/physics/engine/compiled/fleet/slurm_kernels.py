"""Slurm's two loops compiled: rigid jobs in partitions, under limits, by priority; backfill planned by time limits.

The same starts as `studies/fleet/policies/slurm/policy.py`, which also knows preemption and nodes that fail. `run` goes
on until nothing more happens, or until priorities are due to be calculated anew: then it returns and is called again.

Sets of nodes are bits, 62 in a word, so that words are never negative. Arrays of one purpose are rows of one array:
numba compiles these many times faster than tuples of arrays. Each function's `.py_func` is the same uncompiled.

    jobs    i64[15, jobs + 1]       rows named in `slurm_arrays`, jobs by submission; times in ns
    site    i64[16]                 the cluster and how it schedules, named in `slurm_arrays`
    now     i64[12]                 counts and times, named in `slurm_arrays`
    sets    i64[partitions + 5, words]   nodes of partitions, of all, and four for scratch
    free    i64[4, nodes]           GPUs free now, and as a future is foreseen; CPUs in use or not there, the same
    least   i64[2, per node + 1, words]  nodes with so many or more free, the same
    lists   i64[5, nodes x per node + 1] jobs that run and end, named in `slurm_arrays`
    caps    i64[limits, 3]          of groups: which counter, most GPUs, most jobs; -1: no limit
    first   i64[groups + 1]         where each group's caps begin
    used    i64[counters, 2]        GPUs and jobs held
    counts  i64[users + lines + kinds, 4]  of a pass, and of which; of kinds whether one fits, when one can begin
    times   i64[steps]              when steps of reserved nodes begin
    steps   i64[steps, words]       nodes that no reservation holds
    held    i64[]                   nodes of jobs from `FIRST` on; the last of a job holds the rest
    spans   i64[4, nodes]           scratch: first and last of neighbours, nodes taken, idle CPUs of neighbours
"""

from __future__ import annotations

import numpy as np

from windtunnel.physics.engine.compiled import njit
from windtunnel.physics.engine.compiled.arrays import Array
from windtunnel.physics.engine.compiled.fleet.slurm_arrays import (
    ALL,
    AMONG,
    BATCH,
    BITS,
    BUSY,
    BY_LIMIT,
    CALCULATED,
    CHANGED,
    COMPLETES,
    COMPLETING,
    DEFERRED,
    DEPTH,
    DEPTH_LINE,
    DEPTH_USER,
    DONE,
    EACH,
    ENDED,
    ENDING,
    EVERY,
    FIRST,
    FREED,
    GIVEN,
    GPUS,
    HEAP,
    INTERVAL,
    KIND,
    LASTS,
    LIMIT,
    LINE,
    LINES,
    MAIN_DEPTH,
    NEVER,
    NEXT,
    NODE_CPUS,
    NOW,
    PARTITION,
    PARTITIONS,
    RESERVED_AFTER,
    RUNNING,
    S_NS,
    SCRATCH,
    SEEN,
    STAMP,
    START,
    STEP,
    SUBMIT,
    TAKEN,
    TICK,
    TICKED,
    USER,
    USERS,
    WAITING,
    WAKE,
    WINDOW,
)
from windtunnel.physics.engine.compiled.fleet.slurm_limits import allowed, count
from windtunnel.physics.engine.compiled.fleet.slurm_nodes import (
    by_limit,
    choose,
    count_free,
    fits,
    future,
    give_back,
    load,
    set_free,
    unload,
)
from windtunnel.physics.engine.compiled.fleet.slurm_order import enqueue
from windtunnel.physics.engine.compiled.fleet.slurm_reservations import (
    never_held,
    next_change,
    overlaps,
    reserve,
    skip_to,
)


@njit(cache=True)
def _begin(
    now: Array, jobs: Array, lists: Array, array: Array, free: Array, least: Array, spans: Array, job: int, nodes: int
) -> None:
    """A job starts on the nodes of the last row of `spans`."""
    jobs[START, job] = now[NOW]
    left, begin, each = jobs[GPUS, job], jobs[FIRST, job], jobs[EACH, job]
    for at in range(nodes):
        node, count = spans[2, at], min(left, each)
        array[begin + at] = node
        set_free(free[0], least, node, free[0, node] - count)
        load(jobs, free[2], job, node, count, 1)
        left -= count
    at, end = now[RUNNING], by_limit(jobs, job)
    while at:
        other = lists[BY_LIMIT, at - 1]
        if by_limit(jobs, other) < end or (by_limit(jobs, other) == end and other < job):  # rows are by submission
            break
        lists[BY_LIMIT, at] = other
        at -= 1
    lists[BY_LIMIT, at] = job
    at, due = now[RUNNING], now[NOW] + jobs[LASTS, job]
    while at:
        above = lists[HEAP, (at - 1) // 2]
        if jobs[START, above] + jobs[LASTS, above] <= due:
            break
        lists[HEAP, at] = above
        at = (at - 1) // 2
    lists[HEAP, at] = job
    now[RUNNING] += 1
    now[WAITING] -= 1


@njit(cache=True)
def _end(now: Array, jobs: Array, lists: Array) -> None:
    """The first to end has ended."""
    job = lists[HEAP, 0]
    now[RUNNING] -= 1
    size = now[RUNNING]
    last, at = lists[HEAP, size], 0
    due = jobs[START, last] + jobs[LASTS, last]
    while 2 * at + 1 < size:
        below = 2 * at + 1
        left, right = lists[HEAP, below], lists[HEAP, min(below + 1, size - 1)]
        if jobs[START, right] + jobs[LASTS, right] < jobs[START, left] + jobs[LASTS, left]:
            below, left = below + 1, right
        if jobs[START, left] + jobs[LASTS, left] >= due:
            break
        lists[HEAP, at] = left
        at = below
    lists[HEAP, at] = last
    at = 0
    while lists[BY_LIMIT, at] != job:
        at += 1
    for number in range(at, size):
        lists[BY_LIMIT, number] = lists[BY_LIMIT, number + 1]
    lists[ENDED, now[GIVEN]] = job
    now[GIVEN] += 1


@njit(cache=True)
def _main(
    now: Array, site: Array, jobs: Array, sets: Array, lists: Array, queue: Array, job_nodes: Array, free: Array,
    least: Array, spans: Array, first: Array, caps: Array, used: Array, many: int
) -> None:  # fmt: skip
    """Jobs in order, until each partition is stopped."""
    ours = site[PARTITIONS]
    left, units = sets[ours + TAKEN], sets[ours + AMONG]
    for word in range(len(left)):
        left[word] = sets[ours + ALL, word]
    stopped = np.zeros(ours, np.bool_)
    for at in range(min(many, site[MAIN_DEPTH]) if site[MAIN_DEPTH] else many):
        job = queue[at]
        partition = jobs[PARTITION, job]
        if stopped[partition] or not allowed(jobs, first, caps, used, job):
            continue
        for word in range(len(left)):
            units[word] = sets[partition, word] & left[word]
        if fits(least[0], jobs[GPUS, job], jobs[EACH, job], units):
            mask = sets[ours + SCRATCH]
            nodes = choose(free[2], site[NODE_CPUS], least[0], jobs[GPUS, job], jobs[EACH, job], units, mask, spans)
            _begin(now, jobs, lists, job_nodes, free, least[0], spans, job, nodes)
            count(jobs, first, caps, used, job, 1)
            continue
        if now[NOW] - jobs[SUBMIT, job] < site[RESERVED_AFTER]:
            continue
        stopped[partition] = True
        nothing = True
        for word in range(len(left)):
            left[word] &= ~sets[partition, word]
            nothing = nothing and left[word] == 0
        if nothing:
            return


@njit(cache=True)
def _last(
    now: Array, site: Array, jobs: Array, sets: Array, queue: Array, least: Array, counts: Array, many: int
) -> int:
    """The last in the queue that has room now; -1: none has."""
    now[STAMP] += 1
    for at in range(many - 1, -1, -1):
        job = queue[at]
        kind = site[USERS] + site[LINES] + jobs[KIND, job]
        if counts[kind, 1] != now[STAMP]:
            counts[kind, 1] = now[STAMP]
            counts[kind, 0] = fits(least, jobs[GPUS, job], jobs[EACH, job], sets[jobs[PARTITION, job]])
        if counts[kind, 0] and jobs[START, job] < 0:
            return at
    return -1


@njit(cache=True)
def _turn(counts: Array, at: int, stamp: int, most: int) -> bool:
    """Whether one more of these is tested in this pass."""
    if counts[at, 1] != stamp:
        counts[at, 0], counts[at, 1] = 0, stamp
    counts[at, 0] += 1
    return bool(most == 0 or counts[at, 0] <= most)


@njit(cache=True)
def _test(
    now: Array, site: Array, jobs: Array, sets: Array, lists: Array, job_nodes: Array, free: Array, least: Array,
    spans: Array, counts: Array, times: Array, steps: Array, job: int, many: int
) -> int:  # fmt: skip
    """A job may start now (0; its nodes are in `spans`), or reserves: how many steps of reserved nodes there are."""
    time, ours = now[NOW] // S_NS * S_NS, site[PARTITIONS]
    units, limit, gpus, each = sets[jobs[PARTITION, job]], jobs[LIMIT, job], jobs[GPUS, job], jobs[EACH, job]
    among, claim, busy, scratch = sets[ours + AMONG], sets[ours + TAKEN], sets[ours + BUSY], sets[ours + SCRATCH]
    kind = site[USERS] + site[LINES] + jobs[KIND, job]
    if counts[kind, 2] != now[STAMP]:
        counts[kind, 2] = now[STAMP]
        counts[kind, 3] = future(now, 0, jobs, lists, job_nodes, free, least, gpus, each, units)
    soonest, later = counts[kind, 3], time  # nobody of its kind can begin before, whatever is reserved
    if soonest < 0 or soonest > time + site[WINDOW]:
        return many
    while later >= 0:
        since = skip_to(times, steps, many, units, later, limit, soonest)
        later = next_change(times, steps, many, units, since, since + limit, among)
        never_held(times, steps, many, units, since, since + limit, among)
        then = future(now, site[BATCH], jobs, lists, job_nodes, free, least, gpus, each, among)
        if then < 0:
            continue
        row = 0 if then == time else 1
        if row:
            count_free(free[1], least[1], gpus, each)
        nodes = choose(free[row + 2], site[NODE_CPUS], least[row], gpus, each, among, scratch, spans)
        begin = max(then, since)
        claim[:] = 0
        for at in range(nodes):
            claim[spans[2, at] // BITS] |= 1 << (spans[2, at] % BITS)
        if begin <= time:
            clear = True
            for word in range(len(claim)):
                clear = clear and claim[word] & busy[word] == 0
            if clear:
                return 0
            begin, later = time + S_NS, -1
        if later >= 0 and begin > later:
            continue
        if begin > time + site[WINDOW] or now[NOW] - jobs[SUBMIT, job] < site[RESERVED_AFTER]:
            return many
        step = site[STEP]
        from_step, to_step = begin // step * step, (begin + limit) // step * step
        if overlaps(times, steps, many, claim, from_step, to_step):
            later = begin if begin > since else -1
            if later >= 0:
                continue
        return reserve(times, steps, many, claim, from_step, to_step)
    return many


@njit(cache=True)
def _backfill(
    now: Array, site: Array, jobs: Array, sets: Array, lists: Array, queue: Array, job_nodes: Array, free: Array,
    least: Array, spans: Array, first: Array, caps: Array, used: Array, counts: Array, times: Array, steps: Array,
    queued: int
) -> None:  # fmt: skip
    """Each job in order starts, or reserves."""
    last = _last(now, site, jobs, sets, queue, least[0], counts, queued)
    stamp, tests, many, busy = now[STAMP], 0, 1, sets[site[PARTITIONS] + BUSY]
    times[0] = now[NOW] // S_NS * S_NS
    steps[0] = sets[site[PARTITIONS] + ALL]
    busy[:] = 0
    for number in range(now[COMPLETING]):
        job = lists[ENDING, number]
        for at in range(jobs[FIRST, job], jobs[FIRST, job + 1]):
            busy[job_nodes[at] // BITS] |= 1 << (job_nodes[at] % BITS)
    for at in range(queued):
        if tests >= site[DEPTH] or at > last:
            return
        job = queue[at]
        if jobs[START, job] >= 0 or not allowed(jobs, first, caps, used, job):
            continue
        if not _turn(counts, jobs[USER, job], stamp, site[DEPTH_USER]):
            continue
        if not _turn(counts, site[USERS] + jobs[LINE, job], stamp, site[DEPTH_LINE]):
            continue
        tests += 1
        reserved_steps = _test(
            now, site, jobs, sets, lists, job_nodes, free, least, spans, counts, times, steps, job, many
        )
        if reserved_steps:
            many = reserved_steps
            continue
        _begin(now, jobs, lists, job_nodes, free, least[0], spans, job, -(-jobs[GPUS, job] // jobs[EACH, job]))
        count(jobs, first, caps, used, job, 1)
        last = _last(now, site, jobs, sets, queue, least[0], counts, queued)


@njit(cache=True)
def _release(
    now: Array, site: Array, jobs: Array, lists: Array, job_nodes: Array, free: Array, least: Array, first: Array,
    caps: Array, used: Array
) -> None:  # fmt: skip
    """Nodes of jobs that have ended are free, or complete."""
    if now[GIVEN] or now[WAITING] != now[SEEN]:
        now[CHANGED] = 1
    for at in range(now[GIVEN]):
        job = lists[ENDED, at]
        count(jobs, first, caps, used, job, -1)
        unload(jobs, job_nodes, free[2], job)
        if site[COMPLETES]:
            lists[ENDING, now[COMPLETING]] = job
            lists[FREED, now[COMPLETING]] = now[NOW] + site[COMPLETES]
            now[COMPLETING] += 1
        else:
            give_back(jobs, job_nodes, free[0], least, job)
    now[GIVEN] = 0
    due = 0
    while due < now[COMPLETING] and lists[FREED, due] <= now[NOW]:
        give_back(jobs, job_nodes, free[0], least, lists[ENDING, due])
        due += 1
    if due:
        now[CHANGED] = 1
        now[COMPLETING] -= due
        for at in range(now[COMPLETING]):
            lists[ENDING, at] = lists[ENDING, at + due]
            lists[FREED, at] = lists[FREED, at + due]


@njit(cache=True)
def _ask_again(now: Array, site: Array, jobs: Array, lists: Array, queue: Array, queued: int) -> None:
    """Those that started leave the queue; when the next decision is due though nothing happens."""
    n_left, wake, time = 0, NEVER, now[NOW]
    for at in range(queued):
        if jobs[START, queue[at]] < 0:
            queue[n_left] = queue[at]
            n_left += 1
    if queued and now[CHANGED]:
        wake = time - time % site[INTERVAL] + site[INTERVAL]
    for at in range(now[COMPLETING] if queued else 0):
        if lists[FREED, at] > time:
            wake = min(wake, lists[FREED, at])
    if queued and site[EVERY] and now[RUNNING] + now[COMPLETING]:  # else nothing ends, whoever is first
        wake = min(wake, time - time % site[EVERY] + site[EVERY])
    now[SEEN] = now[WAITING]
    if wake < NEVER:
        now[WAKE] = max(wake, time + 1)


@njit(cache=True)
def _next(now: Array, jobs: Array, priority: Array, lists: Array, queue: Array) -> bool:
    """Take in what happens next; False: nothing more does."""
    count = jobs.shape[1] - 1
    end, arrival = NEVER, NEVER
    if now[RUNNING]:
        end = jobs[START, lists[HEAP, 0]] + jobs[LASTS, lists[HEAP, 0]]
    if now[NEXT] < count:
        arrival = jobs[SUBMIT, now[NEXT]]
    elif now[RUNNING] + now[WAITING] == 0:
        return False
    time = min(arrival, end, now[WAKE])
    if time == NEVER:
        return False
    now[NOW] = time
    while now[RUNNING] and jobs[START, lists[HEAP, 0]] + jobs[LASTS, lists[HEAP, 0]] == time:
        _end(now, jobs, lists)
    while now[NEXT] < count and jobs[SUBMIT, now[NEXT]] == time:
        enqueue(jobs, priority, queue, now[NEXT], now[WAITING])
        now[WAITING] += 1
        now[NEXT] += 1
    if now[WAKE] == time:
        now[WAKE] = NEVER
    return True


@njit(cache=True)
def run(
    now: Array, site: Array, jobs: Array, priority: Array, sets: Array, lists: Array, queue: Array, job_nodes: Array,
    free: Array, least: Array, spans: Array, first: Array, caps: Array, used: Array, counts: Array, times: Array,
    steps: Array
) -> int:  # fmt: skip
    """Up to the end (DONE), or until priorities are to be calculated (TICK): then set them, and call again."""
    while now[TICKED] or _next(now, jobs, priority, lists, queue):
        if now[RUNNING] + now[WAITING] == 0:
            continue
        if now[TICKED] == 0:
            _release(now, site, jobs, lists, job_nodes, free, least[0], first, caps, used)
            tick = now[NOW] - now[NOW] % site[EVERY] if site[EVERY] else now[CALCULATED]
            if now[CALCULATED] != tick:
                now[CALCULATED] = tick
                now[CHANGED], now[TICKED] = 1, 1
                return TICK
        now[TICKED] = 0
        queued = now[WAITING]
        if queued:
            passes = now[NOW] % site[INTERVAL] == 0 and now[CHANGED] != 0
            if not site[DEFERRED]:
                _main(now, site, jobs, sets, lists, queue, job_nodes, free, least, spans, first, caps, used, queued)
            if passes:
                now[CHANGED] = 0
                _backfill(
                    now, site, jobs, sets, lists, queue, job_nodes, free, least, spans, first, caps, used, counts,
                    times, steps, queued
                )  # fmt: skip
        _ask_again(now, site, jobs, lists, queue, queued)
    return DONE
