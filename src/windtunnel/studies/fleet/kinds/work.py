"""A job on a cluster of several kinds of GPU: steps left, used up at the rate measured for kind, number and spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from windtunnel.studies.fleet.clock.board import Board
from windtunnel.studies.fleet.clock.decision import Decision, Placement, Snapshot
from windtunnel.studies.fleet.clock.running import Moment

SPREAD = "_unconsolidated"  # in the name of a kind: workers on more nodes than they need, as Gavel's tables call it


@dataclass(frozen=True)
class Typed:
    """`rates[kind][GPUs]`: steps per second. `kinds`: of each node."""

    steps: float
    rates: Mapping[str, Mapping[int, float]]
    kinds: Sequence[str]
    per_node: int
    restart_s: float = 0.0
    phases: int = 1

    def phase_end(self, phase: int) -> float:
        """Units of all steps."""
        return self.steps

    def rate(self, placement: Placement, phase: int) -> float:
        """Steps per second on these nodes; 0 where that was not measured."""
        gpus = sum(count for _, count in placement)
        kind = self.kinds[placement[0][0]]
        spread = self.rates.get(kind + SPREAD, {})
        if len(placement) > -(-gpus // self.per_node) and gpus in spread:
            return spread[gpus]
        return self.rates.get(kind, {}).get(gpus, 0.0)


def capacity_of(snapshot: Snapshot, kinds: Sequence[str]) -> dict[str, int]:
    """GPUs of each kind that are up, in the order of the nodes."""
    capacity = dict.fromkeys(kinds, 0)
    for kind, count in zip(kinds, snapshot.nodes, strict=True):
        capacity[kind] += count
    return capacity


def decision(
    snapshot: Snapshot,
    chosen: Mapping[int, tuple[str, int]],
    kinds: Sequence[str],
    per_node: int,
    memory: object = None,
) -> Decision:
    """(kind, GPUs) of each job on nodes: who keeps both keeps its nodes; the others by falling size, then in order.

    Where a gang finds no whole nodes it is spread over what is free of its kind; `chosen` must fit as counts.
    """
    free = list(snapshot.nodes)
    result: dict[int, Placement] = {}
    for job in snapshot.jobs:
        want = chosen.get(job.index)
        if want and job.placement and (kinds[job.placement[0][0]], job.held_gpus) == want:
            result[job.index] = job.placement
            for node, count in job.placement:
                free[node] -= count
    for index in sorted(chosen, key=lambda index: (-chosen[index][1], index)):
        if index in result:
            continue
        kind, gpus = chosen[index]
        here = [count if at == kind else 0 for at, count in zip(kinds, free, strict=True)]
        room = Board(here, Moment())
        gang = room.gang(gpus, per_node) or room.gang(gpus, 0)
        assert gang is not None, "more GPUs of a kind were given than are free"
        result[index] = gang
        for node, count in gang:
            free[node] -= count
    return Decision({index: gpus for index, (_, gpus) in chosen.items()}, result, memory=memory)
