"""Nodes as bits: which have how many GPUs free now and later, and which of them Slurm takes.

A job of more GPUs than it takes of a node has so many on each, and one node more for the rest. Slurm
(select/cons_tres, without topology) takes the tightest run of neighbouring nodes that is enough, else the widest run
and so on; for the last node the fullest of such a run. Tight and full are by CPUs, as the log says of each job; where
it does not, by GPUs. Nodes of less `Weight` come first, and a run is of one weight. Source: _eval_nodes of its
job_test.c, 22.05.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from windtunnel.studies.fleet.parts.profile import Part

Parts = tuple[Part, int]  # so many parts; held: of a share its GPU (`gres.py`)
Units = tuple[tuple[int, int | Parts], ...]  # (node, GPUs or parts that are held of it)
S_NS = 1_000_000_000
BATCH_S = 30  # running jobs that end so close together go at once when a start is foreseen; twice as much each time


class Gang(NamedTuple):
    """GPUs that a job asks for, how many of them on each of its nodes but the last, and nodes of their type."""

    gpus: int
    each: int
    on: int = -1  # as bits
    kind: str = ""  # of GPU, where nodes have several


class Typed(int):
    """GPUs that a job holds of a node, by type where nodes have several."""

    of: tuple[tuple[str, int], ...] = ()


Need = Gang | Parts


def bits(mask: int) -> Iterator[int]:
    """Numbers of the nodes, rising."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def mask_of(nodes: Iterable[int]) -> int:
    """Their bits."""
    mask = 0
    for node in nodes:
        mask |= 1 << node
    return mask


class Free:
    """GPUs that are free on each node, by `at_least[n]` the nodes with n or more; CPUs of a node, and those in use.

    `sizes`: GPUs of each node where they are unlike; `cpus` of each node, where they are known; `by_weight`: as in
    `Cluster`. CPUs that a node has less than the largest count as in use.
    """

    __slots__ = ("at_least", "busy", "by_gpus", "by_weight", "cpus", "gpus", "kinds", "per_node")

    def __init__(
        self,
        gpus: list[int],
        per_node: int,
        cpus: Sequence[int] = (),
        sizes: Sequence[int] = (),
        by_weight: tuple[int, ...] = (),
        mixed: Sequence[Mapping[str, int]] = (),
    ) -> None:
        kinds = dict.fromkeys(kind for each in mixed for kind in each)
        self.kinds = {kind: Free([each.get(kind, 0) for each in mixed], per_node) for kind in kinds}
        own = (cpus or sizes or [per_node])[: len(gpus)]
        self.gpus, self.per_node, self.cpus, self.by_gpus = gpus, per_node, max(own, default=0), not cpus
        self.by_weight = by_weight
        self.busy = [self.cpus - count for count in own]
        self.busy += self.busy[-1:] * (len(gpus) - len(own))
        self.at_least = [0] * (per_node + 1)
        for node, count in enumerate(gpus):
            for size in range(min(count, per_node) + 1):
                self.at_least[size] |= 1 << node

    def copy(self) -> Free:
        """Another that changes by itself."""
        other = object.__new__(type(self))
        other.gpus, other.at_least, other.busy = self.gpus.copy(), self.at_least.copy(), self.busy.copy()
        other.per_node, other.cpus, other.by_gpus = self.per_node, self.cpus, self.by_gpus
        other.by_weight, other.kinds = self.by_weight, {kind: free.copy() for kind, free in self.kinds.items()}
        return other

    def set(self, node: int, count: int) -> None:
        """A node has so many."""
        before, bit = self.gpus[node], 1 << node
        if count > before:
            for size in range(before + 1, min(count, self.per_node) + 1):
                self.at_least[size] |= bit
        else:
            for size in range(count + 1, min(before, self.per_node) + 1):
                self.at_least[size] &= ~bit
        self.gpus[node] = count

    def add(self, units: Units, sign: int = 1) -> None:
        """What a job holds is free, or taken."""
        for node, count in units:
            assert isinstance(count, int), "parts are of `Gres`"
            self.set(node, self.gpus[node] + sign * count)
        self.add_kinds(units, sign)

    def add_kinds(self, units: Units, sign: int = 1) -> None:
        """The same of the types alone."""
        for node, count in units if self.kinds else ():
            for kind, number in count.of if isinstance(count, Typed) else ():
                self.kinds[kind].set(node, self.kinds[kind].gpus[node] + sign * number)

    def _with(self, need: Gang, count: int) -> int:
        """Nodes with so many GPUs of the type that is asked for."""
        mask = self.at_least[count] & need.on
        return mask & self.kinds[need.kind].at_least[count] if need.kind else mask

    def _held(self, node: int, count: int, kind: str) -> int:
        """What a job takes of a node: of the type that it asks for, else of the first with some."""
        if not self.kinds:
            return count
        held, left, taken = Typed(count), count, []
        for name in [kind] if kind else self.kinds:
            number = min(left, self.kinds[name].gpus[node])
            left -= number
            taken += [(name, number)] if number else []
        held.of = tuple(taken)
        return held

    def load(self, units: Units, cpus: int, sign: int = 1) -> None:
        """A job uses its CPUs, by what it holds on each node, or no longer. 0, or of nodes that say none: its GPUs."""
        counts = [(node, held if isinstance(held, int) else held[1] if held[0].slices else 1) for node, held in units]
        total = sum(count for _, count in counts)
        for node, count in counts:
            self.busy[node] += sign * (count if self.by_gpus or not cpus else -(-cpus * count // total))

    def fits(self, need: Need, among: int) -> bool:
        """Whether a job fits on some of these nodes."""
        assert isinstance(need, Gang), "parts are of `Gres`"
        whole, rest = divmod(need.gpus, need.each)
        idle = (self._with(need, need.each) & among).bit_count() if whole else 0
        if idle < whole:
            return False
        if not rest:
            return True
        some = (self._with(need, rest) & among).bit_count()
        return some > whole if whole else some > 0

    def choose(self, need: Need, among: int) -> Units | None:
        """Where a job goes among these nodes, or None."""
        if not self.fits(need, among):
            return None
        assert isinstance(need, Gang), "parts are of `Gres`"
        whole, rest = divmod(need.gpus, need.each)
        nodes = self.tightest(self._with(need, need.each) & among, whole)
        placement = tuple((node, self._held(node, need.each, need.kind)) for node in nodes)
        if not rest:
            return placement
        (last,) = self.tightest(self._with(need, rest) & among & ~mask_of(nodes), 1)
        return (*placement, (last, self._held(last, rest, need.kind)))

    def tightest(self, mask: int, count: int) -> list[int]:
        """So many nodes of a mask."""
        nodes: list[int] = []
        for group in self.by_weight or (-1,):
            runs = list(_runs(mask & group)) if len(nodes) < count else []
            while runs and len(nodes) < count:
                left = count - len(nodes)
                enough = [run for run in runs if run[1] - run[0] + 1 >= left]
                first, last = min(enough, key=self._idle) if enough else max(runs, key=self._idle)
                runs.remove((first, last))
                busy = self.busy[first : last + 1]
                nodes += range(first, first + min(left, len(busy))) if left > 1 else [first + busy.index(max(busy))]
        return nodes

    def _idle(self, run: tuple[int, int]) -> int:
        """CPUs of a run that are not in use."""
        busy = self.busy[run[0] : run[1] + 1]
        return self.cpus * len(busy) - sum(busy)


def _runs(mask: int) -> Iterator[tuple[int, int]]:
    """(first, last) of neighbours."""
    while mask:
        first = (mask & -mask).bit_length() - 1
        above = mask >> first
        length = (~above & (above + 1)).bit_length() - 1
        yield first, first + length - 1
        mask &= ~(((1 << length) - 1) << first)


@dataclass(frozen=True, slots=True)
class Holder:
    """A running job as its limit tells: until when, and where."""

    end_ns: int
    units: Units
    nodes: int
    cpus: int | None = None  # in use until then, 0: as many as GPUs; None: none any more


class Future:
    """When a job would start if those that run ended at their limits, some at once as Slurm's will-run test does."""

    def __init__(
        self, now_ns: int, free: Free, holders: Sequence[Holder], batch_ns: int = BATCH_S * S_NS, epoch_ns: int = 0
    ) -> None:
        self.now_ns, self.free, self.batch_ns, self.epoch_ns = now_ns, free, batch_ns, epoch_ns
        self.holders = sorted(holders, key=lambda holder: holder.end_ns)
        self.known: dict[int, tuple[list[tuple[int, Free]], Iterator[tuple[int, Free]]]] = {}

    def start(self, need: Need, among: int) -> tuple[int, Free] | None:
        """(time, what is free then) of the first moment when it fits on these nodes; None: never."""
        if self.free.fits(need, among):
            return self.now_ns, self.free
        if among not in self.known:
            self.known[among] = [], self._batches(among)
        moments, more = self.known[among]
        for each in moments:
            if each[1].fits(need, among):
                return each
        for each in more:
            moments.append(each)
            if each[1].fits(need, among):
                return each
        return None

    def _batches(self, among: int) -> Iterator[tuple[int, Free]]:
        """Ends of those on these nodes, batch by batch.

        As in Slurm, whether a batch ends is asked of the job that ends next, wherever it runs; those elsewhere are then
        passed over, and the next on these nodes belongs to the batch whenever it ends.
        """
        free = self.free.copy()
        window_ns, at, barrier_ns = self.batch_ns, 0, -1
        ends = self.holders if window_ns else [holder for holder in self.holders if holder.nodes & among]
        while at < len(ends):
            last_ns = -1
            while at < len(ends):
                holder = ends[at]
                at += 1
                if not holder.nodes & among:
                    continue
                last_ns = holder.end_ns
                if barrier_ns < 0:
                    barrier_ns = last_ns + (window_ns - (last_ns + self.epoch_ns) % window_ns if window_ns else 0)
                free.add(holder.units)
                if holder.cpus is not None:
                    free.load(holder.units, holder.cpus, -1)
                if at < len(ends) and ends[at].end_ns > barrier_ns + window_ns:
                    break
            if last_ns < 0:
                return
            window_ns *= 2
            while at < len(ends) and ends[at].end_ns > barrier_ns + window_ns:
                if window_ns:
                    window_ns *= 2
                else:
                    barrier_ns = ends[at].end_ns
            yield max(last_ns, self.now_ns + S_NS), free.copy()


class Space:
    """Nodes that no reservation of a waiting job holds, from now on, as steps."""

    def __init__(self, now_ns: int, all_nodes: int) -> None:
        self.times, self.nodes = [now_ns], [all_nodes]

    def _cut(self, time_ns: int) -> int:
        """The step that begins then; there is one afterwards."""
        at = bisect_right(self.times, time_ns) - 1
        if self.times[at] == time_ns:
            return at
        self.times.insert(at + 1, time_ns)
        self.nodes.insert(at + 1, self.nodes[at])
        return at + 1

    def reserve(self, begin_ns: int, end_ns: int, nodes: int) -> None:
        """Nodes are held from one time to another."""
        first = self._cut(max(begin_ns, self.times[0]))
        for at in range(first, self._cut(max(end_ns, self.times[0]))):
            self.nodes[at] &= ~nodes

    def among(self, nodes: int, begin_ns: int, end_ns: int) -> tuple[int, int | None]:
        """(those of these nodes that are never held meanwhile, when there may be others; None: never)."""
        unreserved, later = nodes, None
        times, steps = self.times, self.nodes
        for at in range(max(bisect_right(times, begin_ns) - 1, 0), len(times)):
            if times[at] <= end_ns:
                unreserved &= steps[at]
            elif later is not None:
                break
            if later is None and at + 1 < len(times) and nodes & steps[at + 1] & ~unreserved:
                later = times[at + 1]
        return unreserved, later

    def overlaps(self, nodes: int, begin_ns: int, end_ns: int) -> bool:
        """Whether some of these nodes are held between two times."""
        for at in range(max(bisect_right(self.times, begin_ns) - 1, 0), len(self.times)):
            if self.times[at] >= end_ns:
                break
            if nodes & ~self.nodes[at]:
                return True
        return False
