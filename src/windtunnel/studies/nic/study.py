"""The answer to `nic`: host cores of a data path with and without the NIC, the split, and for which traffic it holds
(docs/nic.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from math import log, pow
from pathlib import Path

from windtunnel.errors import SpecError
from windtunnel.questions.asked.nic import Nic as NicQuestion
from windtunnel.questions.header import Answer
from windtunnel.questions.typed import plain_fields
from windtunnel.studies.nic.path import DataPath, Nic, nic_named, read_path
from windtunnel.studies.nic.search import Choice, Class, Costs, Plan, costs_of, split
from windtunnel.units import parse_bandwidth

SKEWS = tuple(step / 20 for step in range(41))
WITHIN = 1.05  # a split is right while the host does at most so much more than under the best one
EXACT_TERMS = 4096  # of a sum over flows; an integral from there


@dataclass(frozen=True, slots=True)
class Share:
    """What happens to a part of the traffic."""

    flows: str  # "hot" or "other"
    share: float  # of all packets
    on_nic: tuple[str, ...]
    on_host: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class NicResult(Answer):
    """Host cores at the target rate."""

    spec: Mapping[str, object]
    packets_per_s: float
    host_only_cores: float
    host_cores: float
    by_code_cores: float
    by_state_cores: float
    nic_use: float  # of its cores
    flows_on_nic: int
    hot: float  # their share of the traffic
    partition: tuple[Share, ...]
    right_for_skew: tuple[float, float]
    source: str
    warnings: tuple[str, ...] = ()
    JSON_LEAVES_OUT = ("source", "warnings")

    @property
    def host_cores_saved(self) -> float:
        """Host cores that the NIC takes over."""
        return self.host_only_cores - self.host_cores

    @property
    def provenance(self) -> Mapping[str, object]:
        """What the figures rest on."""
        return {"rests on": [self.source, "cycles of the data path as given"]}

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        saved = self.host_cores_saved
        share = saved / self.host_only_cores if self.host_only_cores else 0.0
        return {**plain_fields(self), "host_cores_saved": saved, "saved_share": share}


def answer(question: NicQuestion) -> NicResult:
    """Split the data path. Raises UserError."""
    path, nic = read_path(Path(question.graph)), nic_named(question.nic)
    rate = parse_bandwidth(question.target, "--target")
    if not 1e6 <= rate <= nic.line_bytes_per_s:  # below that its unit was forgotten
        remedy = f"give a rate with its unit, up to the NIC's {nic.line_bytes_per_s * 8e-9:g} Gb/s"
        raise SpecError("--target", question.target, remedy)
    return priced(path, nic, rate / path.packet_bytes)


def priced(path: DataPath, nic: Nic, packets_per_s: float) -> NicResult:
    """The split of least host work at a rate of packets."""
    costs, classes, flows = _traffic(path, nic)
    most = nic.cores * nic.hz / packets_per_s
    plans = split(costs, classes, most)
    per_core = packets_per_s / path.host_hz
    host_cycles, nic_cycles = _cycles(costs, classes, plans)
    every = Class("all", 1.0, classes[0].allowed if flows >= path.flows else classes[1].allowed)
    wholly = replace(classes[0], allowed=Choice(range(len(path.nodes))))
    if len(classes[0].allowed) < len(path.nodes):
        wholly = replace(wholly, allowed=Choice())
    return NicResult(
        spec={"nic": nic.name, "nodes": len(path.nodes), "flows": path.flows, "skew": path.skew},
        packets_per_s=packets_per_s,
        host_only_cores=per_core * costs.host_cycles(Choice()),
        host_cores=per_core * host_cycles,
        by_code_cores=per_core * _cycles(costs, (every,), split(costs, (every,), most))[0],
        by_state_cores=per_core * _by_state(costs, wholly, most),
        nic_use=nic_cycles / most,
        flows_on_nic=min(path.flows, int(flows)),
        hot=classes[0].share,
        partition=_shares(path, classes, plans),
        right_for_skew=_right_for(path, nic, plans, most),
        source=nic.source,
        warnings=_warnings(path, nic, classes, plans, packets_per_s),
    )


def _traffic(path: DataPath, nic: Nic) -> tuple[Costs, tuple[Class, Class], float]:
    able = Choice(at for at, node in enumerate(path.nodes) if node.on_nic)
    state = sum(path.nodes[at].state_bytes for at in able)
    flows = float(path.flows) if state == 0 else min(float(path.flows), nic.memory_bytes / state)
    if nic.entries is not None:
        flows = min(flows, float(nic.entries))
    hot = _sum_of_powers(int(flows), path.skew) / _sum_of_powers(path.flows, path.skew)
    stateless = Choice(at for at in able if not path.nodes[at].stateful)
    return costs_of(path, nic, flows), (Class("hot", hot, able), Class("other", 1 - hot, stateless)), flows


def _sum_of_powers(count: int, skew: float) -> float:
    """Sum of i^-skew for i = 1 .. count; beyond some thousand terms by the midpoint rule."""
    exact = min(count, EXACT_TERMS)
    total = sum(pow(i, -skew) for i in range(1, exact + 1))
    if count > exact:
        low, high = exact + 0.5, count + 0.5
        total += log(high / low) if skew == 1 else (pow(high, 1 - skew) - pow(low, 1 - skew)) / (1 - skew)
    return total


def _cycles(costs: Costs, classes: tuple[Class, ...], plans: tuple[Plan, ...]) -> tuple[float, float]:
    """Of a packet on average, on the host and on the NIC."""
    parts = [(plan.weight, costs.of(classes, plan.chosen)) for plan in plans]
    return sum(weight * host for weight, (host, _) in parts), sum(weight * nic for weight, (_, nic) in parts)


def _by_state(costs: Costs, wholly: Class, most: float) -> float:
    """As much of the hot traffic as the NIC has cycles for goes wholly through it."""
    everywhere = costs.host_cycles(Choice())
    load = wholly.share * costs.nic_cycles(wholly.allowed)
    through = 0.0 if not wholly.allowed else min(1.0, most / load if load else 1.0)
    return everywhere + through * wholly.share * (costs.host_cycles(wholly.allowed) - everywhere)


def _shares(path: DataPath, classes: tuple[Class, ...], plans: tuple[Plan, ...]) -> tuple[Share, ...]:
    shares: dict[tuple[str, Choice], float] = {}
    for plan in plans:
        for kind, chosen in zip(classes, plan.chosen, strict=True):
            if kind.share > 0:
                shares[kind.name, chosen] = shares.get((kind.name, chosen), 0.0) + plan.weight * kind.share
    names = [node.name for node in path.nodes]
    return tuple(
        Share(
            flows,
            share,
            tuple(name for at, name in enumerate(names) if at in chosen),
            tuple(name for at, name in enumerate(names) if at not in chosen),
        )
        for (flows, chosen), share in shares.items()
    )


def _right_for(path: DataPath, nic: Nic, plans: tuple[Plan, ...], most: float) -> tuple[float, float]:
    """Skews around the given one for which the host does little more than under the best split of that traffic."""

    def right(skew: float) -> bool:
        costs, classes, _ = _traffic(replace(path, skew=skew), nic)
        everywhere = costs.host_cycles(Choice())
        cycles, load = _cycles(costs, classes, plans)
        if load > most:  # what the NIC has no cycles for goes through the host
            cycles = everywhere + most / load * (cycles - everywhere)
        return cycles <= WITHIN * _cycles(costs, classes, split(costs, classes, most))[0] + 1e-9 * everywhere

    lower = takewhile(right, (skew for skew in reversed(SKEWS) if skew < path.skew))
    higher = takewhile(right, (skew for skew in SKEWS if skew > path.skew))
    return min(lower, default=path.skew), max(higher, default=path.skew)


def _warnings(
    path: DataPath, nic: Nic, classes: tuple[Class, ...], plans: tuple[Plan, ...], packets_per_s: float
) -> tuple[str, ...]:
    crossings = sum(
        plan.weight * kind.share * edge.share
        for plan in plans
        for kind, chosen in zip(classes, plan.chosen, strict=True)
        for edge in path.edges
        if (edge.start in chosen) != (edge.end in chosen)
    )
    use = crossings * packets_per_s * path.packet_bytes / nic.pcie_bytes_per_s
    if use <= 1:
        return ()
    return (f"packets that cross between host and NIC need {use:.1f} x its PCIe bandwidth: the target is not reached",)
