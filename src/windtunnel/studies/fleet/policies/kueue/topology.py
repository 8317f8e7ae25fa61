"""Where Kueue's topology-aware scheduling puts a job's pods: in one rack or block, or in as few as will do.

    required LEVEL     all pods in one domain of the level, else the job waits
    preferred LEVEL    one domain of the level, else of the next above, else the largest of the top level until all fit
    unconstrained      the node with least room that holds all, else those with least room until all fit

Of domains that hold what is left, the one with least room is taken (the first of equals), otherwise the one with most;
then the same on each level below, down to nodes. Domains are equal: so many neighbouring nodes. Source: Kueue's KEP
2724, BestFit, and LeastFreeCapacity for `unconstrained` (TASProfileMixed). Not here: slices, balanced placement, and
preemption for a place: quota is what jobs are stopped for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from windtunnel.studies.fleet.clock.decision import Owner, Placement

REQUIRED, PREFERRED, UNCONSTRAINED = "required", "preferred", "unconstrained"
NODE = ("node", "hostname", "kubernetes.io/hostname")
Domain = tuple[int, int]  # pods that it has room for, its number on its level


@dataclass(frozen=True)
class Topology:
    """Levels from the top down, each with the nodes of a domain; the node itself is the last."""

    levels: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, levels: Mapping[str, int]) -> Topology:
        """With the level of nodes below those that are named."""
        return cls((*levels.items(), (NODE[0], 1)))

    def level(self, name: str) -> int | None:
        """Which level is called so, from 0 at the top; None: there is none."""
        if name in NODE:
            return len(self.levels) - 1
        return next((at for at, (label, _) in enumerate(self.levels) if label == name), None)

    def why_not(self, topology: str) -> str:
        """What is wrong with a job's request, in words that follow the job; empty where nothing is."""
        strength, _, name = topology.partition(" ")
        if strength not in (REQUIRED, PREFERRED, UNCONSTRAINED) or bool(name) == (strength == UNCONSTRAINED):
            return f"has the topology {topology!r}: write required LEVEL, preferred LEVEL or unconstrained"
        if name and self.level(name) is None:
            text = ", ".join(name for name, _ in self.levels)
            return f"wants {name!r}, and the levels of the cluster are {text} (`topology` of its file)"
        return ""

    def unfit(
        self, gpus: Sequence[int], owners: Sequence[Owner], nodes: int, per_node: int
    ) -> Iterator[tuple[int, str]]:
        """Jobs that cannot be placed even where nothing else runs, and why."""
        reasons: dict[tuple[int, str, int], str] = {}
        for at, (wide, owner) in enumerate(zip(gpus, owners, strict=True)):
            key = wide, owner.topology, owner.pod_gpus
            if owner.topology and wide > 0 and key not in reasons:
                reasons[key] = self.why_not(owner.topology)
                if not reasons[key] and self.place(wide, owner, [per_node] * nodes, per_node) is None:
                    reasons[key] = f"asks {wide} GPUs with the topology {owner.topology!r}: they fit in no such domain"
            if reasons.get(key):
                yield at, reasons[key]

    def place(self, gpus: int, owner: Owner, free: Sequence[int], per_node: int) -> Placement | None:
        """Nodes and GPUs for a job; None where they do not fit. Its last pod may be smaller than the others."""
        each = min(owner.pod_gpus or per_node, gpus)
        pods = -(-gpus // each)
        rooms = [count // each for count in free]
        strength, _, name = owner.topology.partition(" ")
        least = strength == UNCONSTRAINED
        level = len(self.levels) - 1 if least else self.level(name)
        assert level is not None, f"{owner.topology!r} is no request of this cluster"
        chosen = _tightest(self._domains(level, rooms), pods)
        while chosen is None and strength == PREFERRED and level > 0:
            level -= 1
            chosen = _tightest(self._domains(level, rooms), pods)
        if chosen is None and strength != REQUIRED:
            chosen = _few(self._domains(level, rooms), pods, least=least)
        if not chosen:
            return None
        for below in range(level + 1, len(self.levels)):
            apart = self.levels[below - 1][1] // self.levels[below][1]
            inner = {number * apart + at for _, number in chosen for at in range(apart)}
            chosen = _few((domain for domain in self._domains(below, rooms) if domain[1] in inner), pods, least=False)
            assert chosen is not None
        counts = {number: n_pods * each for n_pods, number in chosen}
        counts[chosen[-1][1]] -= pods * each - gpus
        return tuple(sorted(counts.items()))

    def _domains(self, level: int, rooms: Sequence[int]) -> list[Domain]:
        size = self.levels[level][1]
        return [(sum(rooms[at : at + size]), at // size) for at in range(0, len(rooms), size)]


FLAT = Topology(())


def _tightest(domains: Iterable[Domain], pods: int) -> list[Domain] | None:
    """The domain with least room that holds all."""
    best = min((domain for domain in domains if domain[0] >= pods), default=None)
    return None if best is None else [(pods, best[1])]


def _few(domains: Iterable[Domain], pods: int, *, least: bool) -> list[Domain] | None:
    """Domains with most room first and the last as tight as may be; `least`: those with least room. Pods of each."""
    left = sorted(
        (domain for domain in domains if domain[0]), key=lambda each: (each[0] if least else -each[0], each[1])
    )
    chosen: list[Domain] = []
    while left and pods:
        last = None if least else _tightest(left, pods)
        room, number = last[0] if last else left.pop(0)
        chosen.append((min(room, pods), number))
        pods -= chosen[-1][0]
    return None if pods else chosen
