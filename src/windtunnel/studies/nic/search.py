"""The split of a data path between host and NIC that leaves the host least to do (in the manner of Cora).

    min  sum_c share_c host(S_c)    subject to    rate sum_c share_c nic(S_c) <= cores x clock

S_c: what of traffic class c is on the NIC. docs/nic.md says how the best sets are found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from windtunnel.studies.nic.path import DataPath, Nic

Choice = frozenset[int]  # numbers of the nodes that are on the NIC
EPS = 1e-9


@dataclass(frozen=True, slots=True)
class Costs:
    """Cycles of a packet, node by node: on the host, on the NIC, and of each edge that leads over."""

    host: tuple[float, ...]
    nic: tuple[float, ...]
    crossings: Mapping[tuple[int, int], float]

    def host_cycles(self, chosen: Choice) -> float:
        """What is left to the host."""
        stays = sum(cycles for at, cycles in enumerate(self.host) if at not in chosen)
        return stays + sum(cycles for (a, b), cycles in self.crossings.items() if (a in chosen) != (b in chosen))

    def nic_cycles(self, chosen: Collection[int]) -> float:
        """What the NIC does."""
        return sum(self.nic[at] for at in chosen)

    def of(self, classes: Sequence[Class], chosen: Sequence[Choice]) -> tuple[float, float]:
        """What host and NIC do of all traffic, with a set for each class."""
        both = list(zip(classes, chosen, strict=True))
        host = sum(kind.share * self.host_cycles(each) for kind, each in both)
        return host, sum(kind.share * self.nic_cycles(each) for kind, each in both)


@dataclass(frozen=True, slots=True)
class Class:
    """A part of the traffic, and what the NIC may do of it."""

    name: str
    share: float
    allowed: Choice


@dataclass(frozen=True, slots=True)
class Plan:
    """Sets on the NIC by class, in the classes' order, and the share of traffic that goes by them."""

    weight: float
    chosen: tuple[Choice, ...]


def costs_of(path: DataPath, nic: Nic, flows: float) -> Costs:
    """Of a packet, where so many flows have their state on the NIC."""
    reached = path.reached()
    crossings: dict[tuple[int, int], float] = {}
    for edge in path.edges:
        key = (edge.start, edge.end)
        crossings[key] = crossings.get(key, 0.0) + edge.share * path.crossing_cycles
    return Costs(
        tuple(node.host_cycles * share for node, share in zip(path.nodes, reached, strict=True)),
        tuple(nic.cycles(node, flows) * share for node, share in zip(path.nodes, reached, strict=True)),
        crossings,
    )


def split(costs: Costs, classes: tuple[Class, ...], nic_cycles_most: float) -> tuple[Plan, ...]:
    """The plans that leave the host least to do; the NIC may spend so many cycles a packet on average."""

    def best(price: float) -> tuple[Choice, ...]:
        return tuple(cheapest(costs, kind.allowed, price) for kind in classes)

    both = partial(costs.of, classes)
    full, idle = best(0.0), tuple(Choice() for _ in classes)
    if both(full)[1] <= nic_cycles_most * (1 + EPS):
        return (Plan(1.0, full),)
    while True:  # along the lower envelope of (NIC cycles, host cycles) to where the NIC is just full
        (host_full, nic_full), (host_idle, nic_idle) = both(full), both(idle)
        price = (host_idle - host_full) / (nic_full - nic_idle)
        choices = best(price)
        host, nic = both(choices)
        if host + price * nic >= host_full + price * nic_full - EPS * (1 + host_idle):
            weight = (nic_cycles_most - nic_idle) / (nic_full - nic_idle)
            return (Plan(weight, full), Plan(1 - weight, idle)) if weight > EPS else (Plan(1.0, idle),)
        if nic > nic_cycles_most:
            full = choices
        else:
            idle = choices


def cheapest(costs: Costs, allowed: Choice, price: float) -> Choice:
    """The set of least host work and price times NIC work; of equal ones the smallest. A minimum cut."""
    source, sink, count = len(costs.host), len(costs.host) + 1, len(costs.host) + 2
    room: list[dict[int, float]] = [{} for _ in range(count)]

    def pipe(a: int, b: int, forth: float, back: float = 0.0) -> None:
        room[a][b] = room[a].get(b, 0.0) + forth
        room[b][a] = room[b].get(a, 0.0) + back

    for at, host in enumerate(costs.host):  # the side of the source is the NIC
        pipe(source, at, host)
        pipe(at, sink, price * costs.nic[at] if at in allowed else float("inf"))
    for (a, b), cycles in costs.crossings.items():
        pipe(a, b, cycles, cycles)
    while True:
        came = _reached(room, source)
        if sink not in came:
            return Choice(at for at in came if at < source)
        at, amount = sink, float("inf")
        while at != source:
            amount, at = min(amount, room[came[at]][at]), came[at]
        at = sink
        while at != source:
            room[came[at]][at] -= amount
            room[at][came[at]] += amount
            at = came[at]


def _reached(room: list[dict[int, float]], source: int) -> dict[int, int]:
    came, queue = {source: source}, deque([source])
    while queue:
        at = queue.popleft()
        for to, capacity in room[at].items():
            if capacity > EPS and to not in came:
                came[to] = at
                queue.append(to)
    return came
