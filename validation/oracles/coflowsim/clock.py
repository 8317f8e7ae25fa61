"""A trace on CoflowSim's own clock: its policies, to the tick, and Fai on the same quanta.

The clock and its rules: `engine/compiled/coflowsim_kernels.py`, docs/flows.md. Here are what it makes of a trace
before the first tick: amounts rounded up, keys by which policies order, and deadlines, which it draws even where none
is asked for and sorts the last leftovers by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.fleet.flows.trace import Shuffle, Trace

if TYPE_CHECKING:
    from oracles.coflowsim.rates_kernels import Switch

MIB = 1048576
POLICIES = ("sebf", "scf", "ncf", "lcf", "fifo", "fair", "pfp", "d-clas", "fai")


class Ticks(NamedTuple):
    """Of every coflow in the order of the trace, in ticks of 1/1,024 s. -1: ignored, for it has no mapper."""

    start: NDArray[np.int64]
    finish: NDArray[np.int64]

    @property
    def cct_s(self) -> NDArray[np.float64]:
        """Completion times of those that were not ignored, from the start of their epoch."""
        return (self.finish - self.start)[self.start >= 0] / 1024.0


def run_ticks(trace: Trace, policy: str) -> Ticks:
    """When every coflow starts and ends under one of `POLICIES`."""
    from oracles.coflowsim import kernels
    from oracles.coflowsim.rates_kernels import FIFO, KEYED, LEAST_BYTES

    assert policy in POLICIES, policy
    rows = [i for i, shuffle in enumerate(trace.shuffles) if shuffle.mappers]
    rows.sort(key=lambda i: trace.shuffles[i].arrival_ms)
    shuffles = [trace.shuffles[i] for i in rows]
    net = _switch(trace.n_ports, shuffles)
    if policy in ("fair", "pfp"):
        state = kernels.run_fair(net) if policy == "fair" else kernels.run_pfp(net)
    else:
        rule = {"fifo": FIFO, "lcf": LEAST_BYTES}.get(policy, KEYED)
        key = _keys(net, shuffles, policy)
        state = kernels.run_coflows(
            net,
            rule,
            key,
            _deadlines_ms(net, shuffles),
            {"d-clas": kernels.D_CLAS, "fai": kernels.FAI}.get(policy, kernels.NO_QUEUES),
        )
    start = np.full(len(trace.shuffles), -1, np.int64)
    finish = start.copy()
    start[rows], finish[rows] = state.start, state.finish
    return Ticks(start, finish)


def _switch(n_ports: int, shuffles: list[Shuffle]) -> Switch:
    from oracles.coflowsim.rates_kernels import Switch

    task_ptr, flow_ptr = [0], [0]
    task_port: list[int] = []
    task_bytes: list[float] = []
    task_recorded: list[float] = []
    sources: list[NDArray[np.int32]] = []
    amounts: list[NDArray[np.float64]] = []
    for shuffle in shuffles:
        senders = np.array(sorted(set(shuffle.mappers)), np.int32)
        received: dict[int, int] = {}
        for port, mib in shuffle.reducers:
            received[port] = received.get(port, 0) + _round_up(int(mib * MIB), MIB)
        for port in sorted(received):
            total = _round_up(received[port], len(senders) * MIB)
            task_port.append(port)
            task_recorded.append(float(received[port]))
            task_bytes.append(float(total))
            sources.append(senders)
            amounts.append(np.full(len(senders), max(total / len(senders), float(MIB))))
            flow_ptr.append(flow_ptr[-1] + len(senders))
        task_ptr.append(len(task_port))
    return Switch(
        np.array([shuffle.arrival_ms for shuffle in shuffles], np.int64),
        np.array(task_ptr, np.int64),
        np.array(task_port, np.int64),
        np.array(task_bytes),
        np.array(task_recorded),
        np.array(flow_ptr, np.int64),
        np.concatenate([np.zeros(0, np.int32), *sources]),
        np.concatenate([np.zeros(0), *amounts]),
        n_ports,
    )


def _round_up(amount: int, unit: int) -> int:
    return -(-amount // unit) * unit


def _tasks(net: Switch) -> Iterator[NDArray[np.float64]]:
    for first, last in zip(net.task_ptr[:-1], net.task_ptr[1:], strict=True):
        yield net.task_bytes[first:last]


def _keys(net: Switch, shuffles: list[Shuffle], policy: str) -> NDArray[np.float64]:
    """What a policy orders by; it never changes once a coflow has arrived."""
    if policy == "scf":
        longest = [float(amounts.max(initial=0.0)) for amounts in _tasks(net)]
        return np.array([most / len(set(s.mappers)) for most, s in zip(longest, shuffles, strict=True)])
    if policy == "ncf":
        return np.array([float(min(len(set(s.mappers)), len({p for p, _ in s.reducers}))) for s in shuffles])
    return _bottleneck_bytes(net, shuffles)


def _bottleneck_bytes(net: Switch, shuffles: list[Shuffle]) -> NDArray[np.float64]:
    """Bytes of the busiest port of each coflow."""
    pairs = zip(_tasks(net), shuffles, strict=True)
    return np.array([max(float(a.sum()) / len(set(s.mappers)), float(a.max(initial=0.0))) for a, s in pairs])


def _deadlines_ms(net: Switch, shuffles: list[Shuffle]) -> NDArray[np.float64]:
    """Time alone times 1 to 2, drawn in the order of arrival."""
    from oracles.coflowsim.rates_kernels import PORT_BITS_PER_S

    alone_s = _bottleneck_bytes(net, shuffles) / (PORT_BITS_PER_S / 8.0)
    factor = np.array([1.0 + draw for draw, _ in zip(java_doubles(17), shuffles, strict=False)])
    deadline: NDArray[np.float64] = alone_s * factor * 1000
    return deadline


def java_doubles(seed: int) -> Iterator[float]:
    """`java.util.Random(seed).nextDouble()`, again and again: the 48-bit generator that its documentation states."""
    mask = (1 << 48) - 1
    state = (seed ^ 0x5DEECE66D) & mask

    def bits(state: int, n: int) -> tuple[int, int]:
        state = (state * 0x5DEECE66D + 0xB) & mask
        return state, state >> (48 - n)

    while True:
        state, high = bits(state, 26)
        state, low = bits(state, 27)
        yield ((high << 27) + low) * 2.0**-53
