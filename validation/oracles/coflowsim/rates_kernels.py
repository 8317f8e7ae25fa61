"""CoflowSim's decisions, compiled: who comes first, and the rates that follow. The clock: `coflowsim_kernels.py`."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.engine.compiled import njit

Array: TypeAlias = NDArray[Any]

TICKS_PER_S = 1024
PORT_BITS_PER_S = 1024.0 * 1048576.0
NOTHING = 1e-3  # bytes or bits per second that count as none
TINY = 5e-324  # the least double: where the maxima of CoflowSim start

FIFO, KEYED, LEAST_BYTES = 0, 1, 2  # how a coflow finds its place among those that are there
# Numba compiles a function once more for each literal among its arguments; these are none.
NONE: Any = np.int64(0)
ONE: Any = np.int64(1)
NO: Any = np.bool_(False)
YES: Any = np.bool_(True)
N_QUEUES, FIRST_LIMIT, LIMIT_GROWTH = 10, 10 * 1048576.0, 10.0  # D-CLAS


class Switch(NamedTuple):
    """Coflows in the order of their arrival. A task is what one port receives of one coflow, from each of its senders.

    Tasks of a coflow are in the order of their ports, and so are the flows of a task.
    """

    arrival: Array  # i64[coflows] ticks
    task_ptr: Array  # i64[coflows + 1]
    task_port: Array  # i64[tasks]
    task_bytes: Array  # f64[tasks] whole MiB, a multiple of the number of senders
    task_recorded: Array  # f64[tasks] bytes before that rounding
    flow_ptr: Array  # i64[tasks + 1]
    flow_source: Array  # i32[flows] port
    flow_bytes: Array  # f64[flows]
    n_ports: int


class State(NamedTuple):
    """What is left, and who goes how fast."""

    left: Array  # f64[flows] bytes
    there: Array  # bool[flows] its task still counts it
    laid: Array  # bool[flows] it is among those that move
    rate: Array  # f64[flows] bits per second
    task_left: Array  # f64[tasks]
    task_done: Array  # bool[tasks]
    port_left: Array  # f64[tasks] of `task_recorded`, never below zero
    open_tasks: Array  # i64[coflows]
    sent: Array  # f64[coflows]
    start: Array  # i64[coflows] ticks
    finish: Array  # i64[coflows] ticks
    send_free: Array  # f64[ports] bits per second
    receive_free: Array  # f64[ports]
    n_there: Array  # i64[tasks] flows that are there
    coflow_of: Array  # i32[tasks]


@njit(cache=True, error_model="numpy")
def fresh(net: Switch) -> State:
    """Nothing has arrived."""
    n_flows, n_tasks, n_coflows = len(net.flow_source), len(net.task_port), len(net.arrival)
    coflow_of = np.empty(n_tasks, np.int32)
    open_tasks = np.empty(n_coflows, np.int64)
    for c in range(n_coflows):
        open_tasks[c] = net.task_ptr[c + 1] - net.task_ptr[c]
        for t in range(net.task_ptr[c], net.task_ptr[c + 1]):
            coflow_of[t] = c
    return State(
        net.flow_bytes.copy(),
        np.ones(n_flows, np.bool_),
        np.zeros(n_flows, np.bool_),
        np.zeros(n_flows),
        net.task_bytes.copy(),
        np.zeros(n_tasks, np.bool_),
        net.task_recorded.copy(),
        open_tasks,
        np.zeros(n_coflows),
        np.full(n_coflows, -1, np.int64),
        np.full(n_coflows, -1, np.int64),
        np.empty(net.n_ports),
        np.empty(net.n_ports),
        net.flow_ptr[1:] - net.flow_ptr[:-1],
        coflow_of,
    )


@njit(cache=True, error_model="numpy")
def bottleneck_s(net: Switch, now: State, c: int, send: Array, receive: Array) -> Any:
    """Seconds until the coflow could end in what is free; -1 where it needs a port that is full."""
    send[:] = 0.0
    receive[:] = 0.0
    for t in range(net.task_ptr[c], net.task_ptr[c + 1]):
        receive[net.task_port[t]] = now.task_left[t]
        for f in range(net.flow_ptr[t], net.flow_ptr[t + 1]):
            if now.there[f]:
                send[net.flow_source[f]] += now.left[f]
    longest_send, longest_receive = TINY, TINY
    for p in range(net.n_ports):
        if (send[p] > 0 and now.send_free[p] <= NOTHING) or (receive[p] > 0 and now.receive_free[p] <= NOTHING):
            return -1.0
        s = send[p] * 8 / now.send_free[p]
        r = receive[p] * 8 / now.receive_free[p]
        if s > longest_send:
            longest_send = s
        if r > longest_receive:
            longest_receive = r
    return max(longest_send, longest_receive)


@njit(cache=True, error_model="numpy")
def _share_equally(net: Switch, now: State, coflows: Array, n: int, zero: bool) -> None:
    """What is free to the flows of these coflows as if they were one: the lesser of equal shares at both ends."""
    n_out = np.zeros(net.n_ports, np.int64)
    n_in = np.zeros(net.n_ports, np.int64)
    send = np.zeros(net.n_ports)
    receive = np.zeros(net.n_ports)
    for i in range(n):
        for t in range(net.task_ptr[coflows[i]], net.task_ptr[coflows[i] + 1]):
            port = net.task_port[t]
            for f in range(net.flow_ptr[t], net.flow_ptr[t + 1]):
                if not now.there[f]:
                    continue
                if now.receive_free[port] <= NOTHING or now.send_free[net.flow_source[f]] <= NOTHING:
                    if zero:
                        now.rate[f] = 0.0
                    continue
                n_out[net.flow_source[f]] += 1
                n_in[port] += 1
    for i in range(n):
        for t in range(net.task_ptr[coflows[i]], net.task_ptr[coflows[i] + 1]):
            port = net.task_port[t]
            if now.receive_free[port] <= NOTHING or n_in[port] == 0:
                continue
            for f in range(net.flow_ptr[t], net.flow_ptr[t + 1]):
                source = net.flow_source[f]
                if not now.there[f] or now.send_free[source] <= NOTHING or n_out[source] == 0:
                    continue
                rate = min(now.send_free[source] / n_out[source], now.receive_free[port] / n_in[port])
                if rate <= NOTHING:
                    rate = 0.0
                now.rate[f] = rate
                send[source] += rate
                receive[port] += rate
    now.send_free[:] -= send
    now.receive_free[:] -= receive


@njit(cache=True, error_model="numpy")
def rate_by_order(net: Switch, now: State, order: Array, n: int, deadline: Array, clock: int) -> None:
    """Each coflow in turn as fast as its bottleneck allows, the skipped ones together, then what is over."""
    now.send_free[:] = PORT_BITS_PER_S
    now.receive_free[:] = PORT_BITS_PER_S
    skipped = np.empty(n, np.int64)
    n_skipped = NONE
    scratch_send = np.empty(net.n_ports)
    scratch_receive = np.empty(net.n_ports)
    for i in range(n):
        c = order[i]
        for f in range(net.flow_ptr[net.task_ptr[c]], net.flow_ptr[net.task_ptr[c + 1]]):
            now.rate[f] = 0.0
        longest = bottleneck_s(net, now, c, scratch_send, scratch_receive)
        if longest == -1.0:
            skipped[n_skipped] = c
            n_skipped += 1
            continue
        send = np.zeros(net.n_ports)
        receive = np.zeros(net.n_ports)
        for t in range(net.task_ptr[c], net.task_ptr[c + 1]):
            port = net.task_port[t]
            if now.receive_free[port] <= NOTHING:
                continue
            for f in range(net.flow_ptr[t], net.flow_ptr[t + 1]):
                if not now.there[f]:
                    continue
                source = net.flow_source[f]
                rate = now.left[f] * 8 / longest
                if rate > now.send_free[source] or rate > now.receive_free[port]:
                    rate = min(now.send_free[source], now.receive_free[port])
                send[source] += rate
                receive[port] += rate
                now.rate[f] = rate
        now.send_free[:] -= send
        now.receive_free[:] -= receive
    _share_equally(net, now, skipped, n_skipped, NO)
    until = np.empty(n, np.int64)
    for i in range(n):
        until[i] = np.int64(now.start[order[i]] + deadline[order[i]] - clock)  # towards zero, as a cast in Java
    for i in np.argsort(until, kind="mergesort"):
        c = order[i]
        for t in range(net.task_ptr[c], net.task_ptr[c + 1]):
            port = net.task_port[t]
            if now.receive_free[port] <= NOTHING:
                continue
            for f in range(net.flow_ptr[t], net.flow_ptr[t + 1]):
                if not now.there[f]:
                    continue
                source = net.flow_source[f]
                over = min(now.send_free[source], now.receive_free[port])
                if over <= NOTHING:
                    over = 0.0
                now.rate[f] += over
                now.send_free[source] -= over
                now.receive_free[port] -= over


@njit(cache=True, error_model="numpy")
def place_of(net: Switch, now: State, order: Array, n: int, c: int, rule: int, key: Array) -> int:
    """Before the first that is strictly greater."""
    if rule == FIFO:
        return n
    for i in range(n):
        if rule == KEYED:
            before = key[c] < key[order[i]]
        else:
            mine, theirs = 0.0, 0.0
            for t in range(net.task_ptr[c], net.task_ptr[c + 1]):
                mine += now.port_left[t]
            for t in range(net.task_ptr[order[i]], net.task_ptr[order[i] + 1]):
                theirs += now.port_left[t]
            before = mine < theirs
        if before:
            return i
    return n


@njit(cache=True, error_model="numpy")
def without_ended(now: State, order: Array, n: int) -> int:
    """Take coflows without open tasks out of `order`; returns how many stay."""
    kept = 0
    for i in range(n):
        if now.open_tasks[order[i]] > 0:
            order[kept] = order[i]
            kept += 1
    return kept


@njit(cache=True, error_model="numpy")
def fall(now: State, order: Array, n: int, queue: Array) -> None:
    """D-CLAS: coflows into the queue of what they have sent, behind those that are there; `order` is by queue.

    A coflow that falls joins the tail of the next queue before that queue is looked at, and may fall on from there.
    """
    for q in range(N_QUEUES):
        stay = np.empty(n, np.int64)
        n_stay, n_fall = 0, 0
        fall = np.empty(n, np.int64)
        first = 0
        while first < n and queue[order[first]] < q:
            first += 1
        last = first
        while last < n and queue[order[last]] == q:
            c = order[last]
            right, limit = 0, FIRST_LIMIT
            while limit < now.sent[c]:
                limit *= LIMIT_GROWTH
                right += 1
            if q < right and q + 1 < N_QUEUES:
                fall[n_fall] = c
                n_fall += 1
            else:
                stay[n_stay] = c
                n_stay += 1
            last += 1
        if n_fall == 0:
            continue
        end = last
        while end < n and queue[order[end]] == q + 1:
            end += 1
        behind = order[last:end].copy()
        order[first : first + n_stay] = stay[:n_stay]
        order[first + n_stay : first + n_stay + len(behind)] = behind
        order[end - n_fall : end] = fall[:n_fall]
        for i in range(n_fall):
            queue[fall[i]] = q + 1


@njit(cache=True, error_model="numpy")
def rate_by_queue(net: Switch, now: State, order: Array, n: int) -> None:
    """D-CLAS: strict priority of queues, first come first served inside, equal shares inside a coflow."""
    now.send_free[:] = PORT_BITS_PER_S
    now.receive_free[:] = PORT_BITS_PER_S
    for i in range(n):
        _share_equally(net, now, order[i : i + 1], ONE, YES)


@njit(cache=True, error_model="numpy")
def rate_by_slowest(net: Switch, now: State, order: Array, n: int, horizon: Array) -> None:
    """Fai on these quanta (it is not one of CoflowSim's): D-CLAS, each coflow's flows slowed to its slowest.

    What that frees goes down the order, and what nobody takes comes back in order. `horizon`: bytes that every flow of
    a coflow is taken to have; it doubles when one has sent so much. Scheme: `coflow_kernels`.
    """
    now.send_free[:] = PORT_BITS_PER_S
    now.receive_free[:] = PORT_BITS_PER_S
    first = np.empty(len(now.left))
    for i in range(n):
        c = order[i]
        _share_equally(net, now, order[i : i + 1], ONE, YES)
        longest, furthest = 0.0, 0.0
        begin, end = net.flow_ptr[net.task_ptr[c]], net.flow_ptr[net.task_ptr[c + 1]]
        for f in range(begin, end):
            furthest = max(furthest, net.flow_bytes[f] - now.left[f])
        while furthest >= horizon[c] * (1.0 - 1e-9):
            horizon[c] *= 2.0
        for f in range(begin, end):
            if now.there[f]:
                away = horizon[c] - (net.flow_bytes[f] - now.left[f])
                longest = max(longest, away / now.rate[f] if now.rate[f] > 0.0 else np.inf)
        for t in range(net.task_ptr[c], net.task_ptr[c + 1]):
            for f in range(net.flow_ptr[t], net.flow_ptr[t + 1]):
                first[f] = 0.0
                if now.there[f]:
                    away = horizon[c] - (net.flow_bytes[f] - now.left[f])
                    first[f] = min(now.rate[f], away / longest)
                    now.send_free[net.flow_source[f]] += now.rate[f] - first[f]
                    now.receive_free[net.task_port[t]] += now.rate[f] - first[f]
    for i in range(n):
        c = order[i]
        _share_equally(net, now, order[i : i + 1], ONE, YES)
        for f in range(net.flow_ptr[net.task_ptr[c]], net.flow_ptr[net.task_ptr[c + 1]]):
            now.rate[f] += first[f]
