"""The clock of CoflowSim, compiled: coflows between ports of one non-blocking switch, moved quantum by quantum.

Rules and constants are those of github.com/coflow/coflowsim (commit b61f209), down to the order of additions, so that
every end is the same tick; docs/flows.md states them. What is peculiar to that clock, and kept on purpose:

* all that arrives by the end of an epoch is admitted at its start, up to ten seconds early;
* rates change when coflows are admitted or end, never when a flow ends: what an ended flow used idles until then;
* an end inside a quantum is the quantum's end, but the rates it changes are computed at the quantum's start;
* a reducer is done when less than a thousandth of a byte is left of its sum, whatever its flows say.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oracles.coflowsim.rates_kernels import (
    LEAST_BYTES,
    NO,
    NONE,
    NOTHING,
    PORT_BITS_PER_S,
    TICKS_PER_S,
    YES,
    State,
    Switch,
    fall,
    fresh,
    place_of,
    rate_by_order,
    rate_by_queue,
    rate_by_slowest,
    without_ended,
)
from windtunnel.physics.engine.compiled import njit

Array: TypeAlias = NDArray[Any]

QUANTUM = 8  # ticks: a port moves 1 MiB in it
EPOCH = 10 * TICKS_PER_S
NO_QUEUES, D_CLAS, FAI = 0, 1, 2
FAI_PERIOD = 8  # quanta, 62.5 ms: Fai looks again at least so often; its authors' period is not in their abstract
FIRST_HORIZON = 1048576.0  # bytes, the least flow of this clock
QUANTUM_S = 1.0 * QUANTUM / TICKS_PER_S


class Runs(NamedTuple):
    """What moves between two changes of rates: of each task a run of flows, side by side in memory."""

    task: Array  # i32[tasks]
    first: Array  # i64[tasks]
    last: Array  # i64[tasks]
    calm: Array  # i64[tasks] quanta in which none of its flows ends
    flow: Array  # i32[flows]
    left: Array  # f64[flows] bytes; the State's own is behind until written back
    step: Array  # f64[flows] bytes in one quantum


@njit(cache=True, error_model="numpy")
def _no_runs(n_tasks: int, n_flows: int) -> Runs:
    return Runs(
        np.empty(n_tasks + 1, np.int32),
        np.empty(n_tasks + 1, np.int64),
        np.empty(n_tasks + 1, np.int64),
        np.empty(n_tasks + 1, np.int64),
        np.empty(n_flows, np.int32),
        np.empty(n_flows),
        np.empty(n_flows),
    )


@njit(cache=True, error_model="numpy")
def _lay_out(net: Switch, now: State, order: Array, n: int) -> None:
    for i in range(n):
        for t in range(net.task_ptr[order[i]], net.task_ptr[order[i] + 1]):
            for f in range(net.flow_ptr[t], net.flow_ptr[t + 1]):
                now.laid[f] = now.there[f] and not now.task_done[t]


@njit(cache=True, error_model="numpy")
def _list_moving(net: Switch, now: State, run: Runs, order: Array, n: int) -> int:
    """Runs of flows that a quantum changes; returns how many.

    A flow without a rate changes nothing, unless its task has nothing left.
    """
    n_runs, at = NONE, 0
    for i in range(n):
        for t in range(net.task_ptr[order[i]], net.task_ptr[order[i] + 1]):
            empty = now.task_left[t] <= NOTHING and not now.task_done[t]
            run.first[n_runs] = at
            for f in range(net.flow_ptr[t], net.flow_ptr[t + 1]):
                if now.laid[f] and (empty or now.rate[f] > 0.0):
                    run.flow[at] = f
                    run.left[at] = now.left[f]
                    run.step[at] = (now.rate[f] / 8) * QUANTUM_S
                    at += 1
            if at > run.first[n_runs]:
                run.task[n_runs] = t
                run.last[n_runs] = at
                run.calm[n_runs] = _calm(run, n_runs)
                n_runs += 1
    return int(n_runs)


@njit(cache=True, error_model="numpy")
def _calm(run: Runs, r: int) -> int:
    """Quanta in which surely no flow of a run ends."""
    least = 1e9
    for i in range(run.first[r], run.last[r]):
        if run.left[i] - least * run.step[i] < NOTHING:
            least = max(0.0, (run.left[i] - NOTHING) / run.step[i])
    return max(0, int(least * (1.0 - 1e-9)) - 1)


@njit(cache=True, error_model="numpy")
def _write_back(now: State, run: Runs, n_runs: int) -> None:
    for r in range(n_runs):
        for i in range(run.first[r], run.last[r]):
            now.left[run.flow[i]] = run.left[i]


@njit(cache=True, error_model="numpy")
def _task_ends(now: State, t: int, clock: int) -> bool:
    """A task is done at the end of the quantum; whether its coflow is."""
    now.task_done[t] = True
    now.task_left[t] = 0.0
    c = now.coflow_of[t]
    now.finish[c] = clock + QUANTUM
    now.open_tasks[c] -= 1
    return bool(now.open_tasks[c] == 0)


@njit(cache=True, error_model="numpy")
def _move_calmly(now: State, run: Runs, r: int, counts: bool) -> None:
    """A quantum in which no flow of the run ends."""
    first, last = run.first[r], run.last[r]
    t = run.task[r]
    total = now.task_left[t]
    for i in range(first, last):
        total -= run.step[i]
    now.task_left[t] = total
    for i in range(first, last):
        run.left[i] -= run.step[i]
    if counts:
        c = now.coflow_of[t]
        for i in range(first, last):
            now.port_left[t] = max(0.0, now.port_left[t] - run.step[i])
            now.sent[c] += run.step[i]
    run.calm[r] -= 1


@njit(cache=True, error_model="numpy")
def _move(now: State, run: Runs, n_runs: int, clock: int, counts: bool) -> tuple[int, int]:
    """One quantum. Returns how many flows and how many coflows ended. `counts`: port_left and sent are asked for."""
    ended_flows, ended = 0, 0
    for r in range(n_runs):
        t = run.task[r]
        if run.calm[r] > 0 and (now.task_left[t] > NOTHING or now.task_done[t]):
            _move_calmly(now, run, r, counts)
            if now.task_left[t] <= NOTHING and not now.task_done[t] and _task_ends(now, t, clock):
                ended += 1
            continue
        kept = run.first[r]
        for i in range(run.first[r], run.last[r]):
            f = run.flow[i]
            moved = min(run.step[i], run.left[i])
            left = run.left[i] - moved
            if left <= NOTHING:
                now.left[f] = left
                now.there[f] = False
                now.laid[f] = False
                now.n_there[t] -= 1
                ended_flows += 1
            else:
                run.flow[kept] = f
                run.left[kept] = left
                run.step[kept] = run.step[i]
                kept += 1
            now.task_left[t] -= moved
            if counts:
                now.port_left[t] = max(0.0, now.port_left[t] - moved)
                now.sent[now.coflow_of[t]] += moved
            if (now.task_left[t] <= NOTHING or now.n_there[t] == 0) and not now.task_done[t]:
                ended += _task_ends(now, t, clock)
        run.last[r] = kept
        run.calm[r] = _calm(run, r)
    return ended_flows, ended


@njit(cache=True, error_model="numpy")
def _rerate(
    net: Switch,
    now: State,
    order: Array,
    n: int,
    queue: Array,
    horizon: Array,
    deadline: Array,
    queues: int,
    new: bool,
    clock: int,
) -> None:
    """Rates anew; `new`: because coflows came, which is when flows are laid out anew."""
    if queues != NO_QUEUES:
        fall(now, order, n, queue)
        _lay_out(net, now, order, n)
        if queues == D_CLAS:
            rate_by_queue(net, now, order, n)
        else:
            rate_by_slowest(net, now, order, n, horizon)
        return
    if new:
        _lay_out(net, now, order, n)
    rate_by_order(net, now, order, n, deadline, clock)


@njit(cache=True, error_model="numpy", nogil=True)
def run_coflows(net: Switch, rule: int, key: Array, deadline: Array, queues: int) -> State:
    """Policies that order coflows: by a static `key`, by arrival, by bytes left, or by `queues` (D-CLAS, Fai)."""
    now = fresh(net)
    run = _no_runs(len(net.task_port), len(net.flow_source))
    counts = queues != NO_QUEUES or rule == LEAST_BYTES
    n_coflows = len(net.arrival)
    order = np.empty(n_coflows, np.int64)
    queue = np.zeros(n_coflows, np.int64)
    horizon = np.full(n_coflows, FIRST_HORIZON)
    n, n_runs, n_moves, following, epoch = NONE, NONE, 0, 0, NONE
    while following < n_coflows or n > 0:
        new = False
        while following < n_coflows and net.arrival[following] <= epoch + EPOCH:
            c = following
            following += 1
            now.start[c] = epoch
            if net.task_ptr[c] == net.task_ptr[c + 1]:
                now.finish[c] = epoch
                continue
            new = True
            if queues != NO_QUEUES:
                place = 0
                while place < n and queue[order[place]] == 0:
                    place += 1
            else:
                place = place_of(net, now, order, n, c, rule, key)
            for i in range(n, place, -1):
                order[i] = order[i - 1]
            order[place] = c
            n += 1
        if new:
            _write_back(now, run, n_runs)
            _rerate(net, now, order, n, queue, horizon, deadline, queues, YES, epoch)
            n_runs = _list_moving(net, now, run, order, n)
        for clock in range(epoch, epoch + EPOCH, QUANTUM):
            if n == 0:
                break
            ended_flows, ended = _move(now, run, n_runs, clock, counts)
            n_moves += 1
            due = queues == FAI and n > ended and (ended_flows > 0 or n_moves >= FAI_PERIOD)
            if ended > 0 or due:
                n_moves = 0
                _write_back(now, run, n_runs)
                n = without_ended(now, order, n)
                _rerate(net, now, order, n, queue, horizon, deadline, queues, NO, clock)
                n_runs = _list_moving(net, now, run, order, n)
        epoch += EPOCH
    return now


@njit(cache=True, error_model="numpy")
def _equal_steps(net: Switch, run: Runs, n_runs: int) -> int:
    """FAIR: bytes of the next quantum; runs without flows are left out. Returns how many there are."""
    n_out = np.zeros(net.n_ports, np.int64)
    n_in = np.zeros(net.n_ports, np.int64)
    kept = 0
    for r in range(n_runs):
        if run.last[r] == run.first[r]:
            continue
        run.task[kept], run.first[kept], run.last[kept] = run.task[r], run.first[r], run.last[r]
        n_in[net.task_port[run.task[kept]]] += run.last[kept] - run.first[kept]
        for i in range(run.first[kept], run.last[kept]):
            n_out[net.flow_source[run.flow[i]]] += 1
        kept += 1
    for r in range(kept):
        inside = n_in[net.task_port[run.task[r]]]
        for i in range(run.first[r], run.last[r]):
            run.step[i] = PORT_BITS_PER_S / 8.0 * QUANTUM_S / max(inside, n_out[net.flow_source[run.flow[i]]])
        run.calm[r] = _calm(run, r)
    return kept


@njit(cache=True, error_model="numpy", nogil=True)
def run_fair(net: Switch) -> State:
    """Every flow the lesser of equal shares at its two ports, renewed each quantum; nothing is handed on."""
    now = fresh(net)
    run = _no_runs(len(net.task_port), len(net.flow_source))
    n_coflows = len(net.arrival)
    n, n_runs, following, epoch = 0, 0, 0, 0
    changed = False
    while following < n_coflows or n > 0:
        while following < n_coflows and net.arrival[following] <= epoch + EPOCH:
            c = following
            following += 1
            now.start[c] = epoch
            if net.task_ptr[c] == net.task_ptr[c + 1]:
                now.finish[c] = epoch
                continue
            n += 1
            changed = True
            for t in range(net.task_ptr[c], net.task_ptr[c + 1]):
                run.task[n_runs] = t
                run.first[n_runs], run.last[n_runs] = net.flow_ptr[t], net.flow_ptr[t + 1]
                n_runs += 1
                for f in range(net.flow_ptr[t], net.flow_ptr[t + 1]):
                    run.flow[f] = f
                    run.left[f] = now.left[f]
        for clock in range(epoch, epoch + EPOCH, QUANTUM):
            if n == 0:
                break
            if changed:
                n_runs = _equal_steps(net, run, n_runs)
            ended_flows, ended = _move(now, run, n_runs, clock, False)
            changed = ended_flows > 0
            n -= ended
        epoch += EPOCH
    return now


@njit(cache=True, error_model="numpy")
def run_pfp(net: Switch) -> State:
    """Flows by size, least first: each quantum every receiver, by its number, serves its first flow of a free sender.

    A new flow is put before the first one that has more left than it is long.
    """
    now = fresh(net)
    n_coflows, n_flows = len(net.arrival), len(net.flow_source)
    flows_of = net.flow_ptr[1:] - net.flow_ptr[:-1]
    task_of = np.empty(n_flows, np.int64)
    first = np.zeros(net.n_ports + 1, np.int64)
    for t in range(len(net.task_port)):
        task_of[net.flow_ptr[t] : net.flow_ptr[t + 1]] = t
        first[net.task_port[t] + 1] += flows_of[t]
    for port in range(net.n_ports):
        first[port + 1] += first[port]
    queue, count = np.empty(n_flows, np.int64), np.zeros(net.n_ports, np.int64)
    busy = np.empty(net.n_ports, np.bool_)
    open_flows = flows_of.copy()
    n, following, epoch = 0, 0, 0
    while following < n_coflows or n > 0:
        while following < n_coflows and net.arrival[following] <= epoch + EPOCH:
            c = following
            following += 1
            now.start[c] = epoch
            if net.task_ptr[c] == net.task_ptr[c + 1]:
                now.finish[c] = epoch
                continue
            n += 1
            for t in range(net.task_ptr[c], net.task_ptr[c + 1]):
                port = net.task_port[t]
                for f in range(net.flow_ptr[t], net.flow_ptr[t + 1]):
                    at, end = first[port], first[port] + count[port]
                    while at < end and now.left[queue[at]] <= now.left[f]:
                        at += 1
                    for i in range(end, at, -1):
                        queue[i] = queue[i - 1]
                    queue[at] = f
                    count[port] += 1
        for clock in range(epoch, epoch + EPOCH, QUANTUM):
            if n == 0:
                break
            busy[:] = False
            for port in range(net.n_ports):
                for i in range(first[port], first[port] + count[port]):
                    f = queue[i]
                    if busy[net.flow_source[f]]:
                        continue
                    busy[net.flow_source[f]] = True
                    t = task_of[f]
                    moved = min(PORT_BITS_PER_S / 8 * QUANTUM_S, now.left[f])
                    now.left[f] -= moved
                    now.task_left[t] -= moved
                    if now.left[f] <= NOTHING:
                        open_flows[t] -= 1
                        count[port] -= 1
                        for j in range(i, first[port] + count[port]):
                            queue[j] = queue[j + 1]
                    if (now.task_left[t] <= NOTHING or open_flows[t] == 0) and not now.task_done[t]:
                        n -= _task_ends(now, t, clock)
                    break
        epoch += EPOCH
    return now
