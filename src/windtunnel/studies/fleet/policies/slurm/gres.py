"""Parts of GPUs as Slurm has them: slices of MIG that are cut beforehand, and GPUs that shares divide (shard, mps).

A slice is a device of its own, by the type of its profile: nobody cuts a GPU anew, and none of its slices is ever part
of a whole GPU. A GPU is whole or shared by many, never both at once; a job has its shares on one GPU of each node, the
first with room. Reservations hold whole nodes, as ever. Source: Slurm's page gres (MIG Management, Sharding) and
gres.conf(5), to 25.11; `MULTIPLE_SHARING_GRES_PJ` and `LL_SHARED_GRES` are not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from windtunnel.studies.fleet.clock.decision import Placement, Spot
from windtunnel.studies.fleet.clock.on_clock import owners_of
from windtunnel.studies.fleet.clock.running import Running
from windtunnel.studies.fleet.jobs.trace import Jobs
from windtunnel.studies.fleet.parts.devices import BoardOfParts
from windtunnel.studies.fleet.parts.part import parts_of
from windtunnel.studies.fleet.parts.profile import UNITS, Part, cuts_of
from windtunnel.studies.fleet.policies.slurm.cluster import Cluster
from windtunnel.studies.fleet.policies.slurm.nodes import Free, Gang, Need, Units, bits, mask_of
from windtunnel.studies.fleet.policies.slurm.rules import Rules
from windtunnel.studies.fleet.site import Site


class Gres(Free):
    """Whole GPUs that are free, and beside them slices by profile and what is left of shared GPUs."""

    __slots__ = ("shared", "slices")

    def __init__(self, cluster: Cluster, nodes: int, per_node: int) -> None:
        cuts = [cuts_of(divided, cluster.gpu) for divided in cluster.divided[:nodes]]
        cuts += [({}, 0)] * (nodes - len(cuts))
        sizes = cluster.sizes or (per_node,) * nodes
        whole = [size - cut for size, (_, cut) in zip(sizes, cuts, strict=True)]
        super().__init__(whole, per_node, cluster.node_cpus, sizes, cluster.by_weight, cluster.mixed)
        counts = {part: [len(of.get(part, ())) for of, _ in cuts] for of, _ in cuts for part in of}
        self.slices = {part: Free(each, max(each), by_weight=self.by_weight) for part, each in counts.items()}
        self.shared: dict[int, dict[int, int]] = {}  # units in use, by node and GPU

    def copy(self) -> Gres:
        """Another that changes by itself."""
        other = super().copy()
        assert isinstance(other, Gres)
        other.slices = {part: free.copy() for part, free in self.slices.items()}
        other.shared = {node: devices.copy() for node, devices in self.shared.items()}
        return other

    def add(self, units: Units, sign: int = 1) -> None:
        """Count what a job holds as free, or as taken."""
        for node, held in units:
            if isinstance(held, int):
                super().add(((node, held),), sign)
            elif held[0].slices:
                self.slices[held[0]].add(((node, held[1]),), sign)
            else:
                part, number = held
                devices = self.shared.setdefault(node, {})
                before = devices.get(number, 0)
                after = devices[number] = before - sign * part.units
                if not after:
                    del devices[number]
                if not (before and after):
                    super().add(((node, 1),), sign)

    def fits(self, need: Need, among: int) -> bool:
        """Whether a job fits on some of these nodes."""
        if isinstance(need, Gang):
            return super().fits(need, among)
        part, count = need
        if part.slices:
            return part in self.slices and self.slices[part].fits(self._slices(part, count), among)
        return self._with_room(part, among).bit_count() >= count

    def choose(self, need: Need, among: int) -> Units | None:
        """Where a job goes among these nodes, or None."""
        if isinstance(need, Gang) or not self.fits(need, among):
            return super().choose(need, among) if isinstance(need, Gang) else None
        part, count = need
        if part.slices:
            chosen = self.slices[part].choose(self._slices(part, count), among) or ()
            return tuple((node, (part, held)) for node, held in chosen if isinstance(held, int))
        room = self._with_room(part, among)
        return tuple((node, (part, self._gpu(part, node))) for node in self.tightest(room, count))

    def _slices(self, part: Part, count: int) -> Gang:
        return Gang(count, self.slices[part].per_node)

    def _with_room(self, part: Part, among: int) -> int:
        """Nodes with a GPU that has room for a share."""
        room = (
            node for node, devices in self.shared.items() if any(_has_room(part, used) for used in devices.values())
        )
        return (self.at_least[1] | mask_of(room)) & among

    def _gpu(self, part: Part, node: int) -> int:
        """The GPU of a node on which a share goes: the first that others share and that has room, else a free one."""
        devices = self.shared.get(node, {})
        shared = [number for number, used in sorted(devices.items()) if _has_room(part, used)]
        return shared[0] if shared else next(at for at in range(len(devices) + 1) if at not in devices)


def _has_room(part: Part, used: int) -> bool:
    return used + part.units <= UNITS


def on_board(job: Running, units: Units, board: BoardOfParts, cluster: Cluster) -> Placement:
    """Where a job lies in units of GPUs, and on which GPUs its parts (`spots`)."""
    spots: list[Spot] = []
    for node, held in units:
        if isinstance(held, int):
            continue
        part, number = held
        devices = board.divided.get(node, {})
        if not part.slices:
            spots.append((node, -1 - number, 0))  # numbers of GPUs that are cut beforehand begin at 0
            continue
        cuts = cuts_of(cluster.divided[node], cluster.gpu)[0][part]
        free = [(at, start) for at, start in cuts if at not in devices or devices[at].holds(part, start)]
        spots += [(node, at, start) for at, start in free[:number]]
    job.spots = tuple(spots)
    if job.part is None:
        return tuple((node, held * UNITS) for node, held in units if isinstance(held, int))
    counts = Counter(node for node, _, _ in spots)
    return tuple((node, count * job.part.units) for node, count in counts.items())


def never_fit(jobs: Jobs, site: Site, rules: Rules) -> Iterator[tuple[int, str]]:
    """Jobs that the empty cluster has no room for, with the reason."""
    empty, everywhere = Gres(rules.cluster, site.nodes, site.per_node), (1 << site.nodes) - 1
    why: dict[tuple[Need, int, str], str] = {}
    queues = jobs.columns.get("queue", [""] * len(jobs))
    for at, (part, owner) in enumerate(zip(parts_of(jobs, site), owners_of(jobs), strict=True)):
        if isinstance(part, str):
            continue
        gpus, among = int(jobs.gpus[at]), rules.of_partition(queues[at], everywhere)
        need = rules.gang(gpus, owner.nodes, owner.gpu, among) if part is None else (part, gpus)
        text = jobs.columns["part"][at] if part else owner.gpu
        key = need, among, text
        if key not in why:
            why[key] = "" if empty.fits(need, among) else _why(need, empty, among, text)
        if why[key]:
            yield at, why[key]


def _why(need: Need, empty: Gres, among: int, text: str) -> str:
    if isinstance(need, Gang):
        counts = empty.kinds[need.kind].gpus if need.kind else empty.gpus
        free = [counts[node] for node in bits(among & need.on)]
        if not free:
            of = f"GPUs of {text}" if text else "GPUs"
            return f"asks {need.gpus} {of}, and slurm.conf has none for it"
        if sum(free) < need.gpus:
            return f"asks {need.gpus} GPUs, and its nodes have {sum(free)} whole ones, {max(free)} a node at most"
        enough = sum(count >= need.each for count in free)
        return f"asks {need.gpus} GPUs, as {need.each} on each node: {enough} of its {len(free)} nodes have so many"
    part, count = need
    if not part.slices:
        return f"asks for shares on {count} nodes, one GPU each, of {empty.at_least[1].bit_count()}"
    has = sum(empty.slices[part].gpus) if part in empty.slices else 0
    return f"asks {count} x {text}, and slurm.conf has {has}: Slurm cuts no GPU by itself, say Gres=gpu:{text}:N"
