"""The programs of a captured job as one execution graph: one program for each class of ranks, exactly folded.

A collective is a rendezvous of the classes that its members are in; a message, one of its sender's class and its
receiver's. Both are matched by their turn: the k-th collective of a group on each of its members, the k-th message of a
tag from one rank to another. Members that disagree about kind or number would hang in the real job: the first such call
is named.

All members of a rendezvous take as long as the longest of them: uneven splits end when the last byte is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import UserError
from windtunnel.physics.cost.communication.collectives import Group, tier
from windtunnel.physics.cost.price import Source, nanoseconds
from windtunnel.physics.graph.footprint import refuse_if_too_large
from windtunnel.physics.graph.program import Graph, OpKind
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.step.step import Step, step_of
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.lowering.placement import Pace, Places, places_of, rank_classes, slowest_links
from windtunnel.studies.programs.lowering.pricing import OpPricer, interference_of
from windtunnel.studies.programs.lowering.template import Slot, StringTable, Template, template_of

_REMEDY = "capture again, or capture more ranks if these were taken to be alike"


@dataclass(frozen=True, eq=False)
class Traffic:
    """What a program's communications of one use come to."""

    kind: str
    family: int
    tier: str  # scale_up | scale_out
    calls: int
    bytes: float  # of all calls
    seconds: float  # of one
    p5: float
    p95: float
    source: Source


@dataclass(frozen=True, eq=False)
class CapturedGraph:
    """A captured step, priced. Program k stands for the ranks of class k and runs template `template_of[k]`."""

    step: Step
    peers_share: NDArray[np.float64]  # [ops] share of each op's time that disturbed links of its peers add to it
    first_rank: NDArray[np.int64]  # [programs]
    template_of: NDArray[np.int64]  # [programs] index into `PricedJob.templates`
    first_op: NDArray[np.int64]  # [programs + 1] where each program's ops begin
    traffic: tuple[tuple[Traffic, ...], ...]  # [programs]
    pace: Pace


@dataclass(frozen=True, eq=False)
class PricedJob:
    """A job on a cluster: its programs priced and its groups laid out, to be assembled under any disturbance."""

    job: CapturedJob
    pricer: OpPricer
    places: Places
    templates: tuple[Template, ...]
    strings: StringTable

    def graph(self, pace: Pace | None = None, *, fold: bool = True) -> CapturedGraph:
        """The step's graph. `fold=False` gives every rank a program of its own: the naive twin.

        Raises:
            UserError: members of a group disagree about what they do in it; or the graph does not fit into memory.
        """
        pace = Pace.even(self.job.world_size) if pace is None else pace
        alike = rank_classes(self.places, self.templates, pace) if fold else np.arange(self.job.world_size)
        assembly = _Assembly(self, pace, alike)
        sizes = np.array(
            [(template.n_ops, len(template.dep_idx), len(template.stream_names)) for template in assembly.of], np.int64
        )
        few = (len(self.templates), sum(template.n_ops for template in self.templates))
        refuse_if_too_large(*sizes.sum(axis=0).tolist(), folded=None if fold else few)
        return assembly.graph()


def priced_job(job: CapturedJob, cluster: Cluster, pricer: OpPricer, *, step_s: float = 0.0) -> PricedJob:
    """Price every program and lay every group on the cluster.

    `step_s`: what each host does between steps. Raises LayoutError where the cluster has another number of GPUs.
    """
    places, strings = places_of(job, cluster), StringTable()
    used = set(np.unique(job.runs).tolist())
    templates = [
        template_of(program, job, pricer, strings, step_s)
        for rank, program in sorted(job.programs.items())
        if rank in used
    ]
    return PricedJob(job, pricer, places, tuple(templates), strings)


class _Assembly:
    def __init__(self, priced: PricedJob, pace: Pace, class_of: NDArray[np.int64]) -> None:
        self.priced, self.pace, self.class_of = priced, pace, class_of
        self.job, self.places, self.strings = priced.job, priced.places, priced.strings
        self.first_rank = np.unique(class_of, return_index=True)[1].astype(np.int64)
        self.slowest = slowest_links(self.places, pace)
        number = {template.program.rank: index for index, template in enumerate(priced.templates)}
        self.template_of = np.array([number[int(self.job.runs[rank])] for rank in self.first_rank], np.int64)
        self.of = [priced.templates[index] for index in self.template_of]
        self.channels: dict[tuple[int, ...], int] = {}
        self.users: dict[int, list[tuple[int, int]]] = {}  # channel -> (program, its slot)
        self.kinds: dict[tuple[int, int], tuple[str, ...]] = {}  # (template, slot) -> what is called there
        self.priced_uses: dict[tuple[object, ...], tuple[float, float, float, Source, float]] = {}

    def graph(self) -> CapturedGraph:
        parts = [self._program(k, template) for k, template in enumerate(self.of)]
        self._check()
        sizes = np.array([template.n_ops for template in self.of], np.int64)
        first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        streams = np.array([len(template.stream_names) for template in self.of], np.int64)
        first_stream = np.concatenate([[0], np.cumsum(streams)])
        edges = np.array([len(template.dep_idx) for template in self.of], np.int64)
        first_edge = np.concatenate([[0], np.cumsum(edges)])
        duration = np.concatenate([part.duration for part in parts])
        rendezvous = self._rendezvous([part.key for part in parts], duration)
        graph = Graph(
            kind=np.concatenate([template.kind for template in self.of]),
            stream=np.concatenate(
                [template.stream + np.int32(base) for template, base in zip(self.of, first_stream[:-1], strict=True)]
            ).astype(np.int32),
            stream_rank=np.repeat(np.arange(len(self.of), dtype=np.int32), streams),
            dep_ptr=np.concatenate(
                [[0], *(template.dep_ptr[1:] + base for template, base in zip(self.of, first_edge[:-1], strict=True))]
            ).astype(np.int64),
            dep_idx=np.concatenate(
                [template.dep_idx + np.int32(base) for template, base in zip(self.of, first[:-1], strict=True)]
            ).astype(np.int32),
            rendezvous=rendezvous,
            label=np.concatenate([template.label for template in self.of]),
            category=np.concatenate([part.category for part in parts]),
            flops=np.concatenate([template.flops for template in self.of]),
            bytes=np.concatenate([template.bytes for template in self.of]),
            multiplicity=np.bincount(self.class_of).astype(np.int64),
            labels=tuple(self.strings.labels) or ("",),
            categories=tuple(self.strings.categories) or ("",),
            stream_names=tuple(name for template in self.of for name in template.stream_names),
        )
        step = step_of(
            graph,
            duration,
            np.concatenate([part.interference for part in parts]),
            np.array(self.priced.pricer.training.slowdown_factors()),
            np.concatenate([part.nic_share for part in parts]),
            self.class_of,
        )
        return CapturedGraph(
            step=step,
            peers_share=np.concatenate([part.peers_share for part in parts]),
            first_rank=self.first_rank,
            template_of=self.template_of,
            first_op=first,
            traffic=tuple(part.traffic for part in parts),
            pace=self.pace,
        )

    def _program(self, k: int, template: Template) -> _Part:
        """Columns of one program that depend on where it runs."""
        rank = int(self.first_rank[k])
        channel = np.array([self._channel(k, rank, slot, number) for number, slot in enumerate(template.slots)])
        duration, category = template.duration_ns.copy(), template.category.copy()
        interference, share, peers = template.interference.copy(), np.zeros(template.n_ops), np.zeros(template.n_ops)
        key = np.full(template.n_ops, -1, np.int64)
        factor = float(self.pace.compute[rank])
        if factor != 1.0:
            kernels = template.kind == OpKind.COMPUTE
            duration[kernels] = np.rint(duration[kernels] * factor).astype(np.int64)
        calls = np.flatnonzero(template.use_of >= 0)
        traffic: tuple[Traffic, ...] = ()
        if len(calls):
            of = template.use_of[calls]
            uses = self._uses(rank, template, np.bincount(of))
            duration[calls], category[calls], interference[calls] = (
                uses.duration_ns[of],
                uses.category[of],
                uses.slows[of],
            )
            share[calls], peers[calls], traffic = uses.nic_share[of], uses.peers_share[of], uses.traffic
            slot = np.array([use.slot for use in template.uses], np.int64)[of]
            key[calls] = channel[slot] << 32 | template.turn_of[calls]
        return _Part(duration, category, interference, share, peers, key, traffic)

    def _channel(self, k: int, rank: int, slot: Slot, number: int) -> int:
        """The number of what this slot is of: the same for all who meet there, over all programs."""
        family = slot.family
        if slot.direction:
            offset, sender, size = slot.offset, k, len(self.places.members(family, rank))
            if slot.direction == "recv":
                sender = int(self.class_of[self.places.peer(family, rank, offset)])
                offset = (size - offset) % size
            key: tuple[int, ...] = (1, family, offset, size, sender, slot.tag)
        else:
            members = self.places.members(family, rank)
            # Classes that meet see the same set of classes: its smallest names it.
            key = (0, family, int(self.class_of[list(members)].min()))
        channel = self.channels.setdefault(key, len(self.channels))
        self.users.setdefault(channel, []).append((k, number))
        return channel

    def _uses(self, rank: int, template: Template, counts: NDArray[np.int64]) -> _Uses:
        """What each use costs on this rank."""
        rows, traffic = [], []
        for number, use in enumerate(template.uses):
            slot = template.slots[use.slot]
            group, slower = self._group(rank, slot)
            seconds, p5, p95, source, share = self._price(use.kind, use.bytes, group)
            tier_of = tier(group)
            peers = 1.0 - float(self.pace.links[rank]) / slower if tier_of == "scale_out" else 0.0
            name = f"exposed {family_words(self.job.families[slot.family].name)} ({tier_of.replace('_', '-')})"
            slows, nic = (interference_of(group), share) if group.size > 1 else (0, 0.0)
            rows.append((nanoseconds(seconds * slower), self.strings.category(name), slows, nic, peers))
            count = int(counts[number]) if number < len(counts) else 0
            traffic.append(
                Traffic(use.kind, slot.family, tier_of, count, float(use.bytes * count), seconds, p5, p95, source)
            )
        duration_ns, category, slows_of, nic_share, peers_share = zip(*rows, strict=True)
        return _Uses(
            np.array(duration_ns, np.int64), np.array(category, np.uint16), np.array(slows_of, np.uint8),
            np.array(nic_share), np.array(peers_share), tuple(traffic),
        )  # fmt: skip

    def _group(self, rank: int, slot: Slot) -> tuple[Group, float]:
        """Who meets in a slot of this rank, and how much longer disturbed links make it."""
        family = slot.family
        if not slot.direction:
            row = int(self.places.group_of[family, rank])
            return self.places.groups[family][row], float(self.slowest[family][row])
        peer = self.places.peer(family, rank, slot.offset)
        group = self.places.pair(rank, peer)
        far = tier(group) == "scale_out"
        return group, float(max(self.pace.links[rank], self.pace.links[peer])) if far else 1.0

    def _price(self, kind: str, moved: int, group: Group) -> tuple[float, float, float, Source, float]:
        key = (kind, moved, group)
        terms = self.priced_uses.get(key)
        if terms is None:
            price = self.priced.pricer.communication(kind, moved, group)
            share = self.priced.pricer.nic_share(kind, moved, group)
            terms = self.priced_uses[key] = (*price, share)
        return terms

    def _rendezvous(self, keys: Sequence[NDArray[np.int64]], duration: NDArray[np.int64]) -> NDArray[np.int32]:
        """Ids of what meets; what meets nobody but its like has none. Durations become those of the longest member."""
        key = np.concatenate(keys)
        calls = np.flatnonzero(key >= 0)
        meets = np.full(len(key), -1, np.int32)
        if len(calls):
            _, group, members = np.unique(key[calls], return_inverse=True, return_counts=True)
            group = group.ravel()
            longest = np.zeros(len(members), np.int64)
            np.maximum.at(longest, group, duration[calls])
            duration[calls] = longest[group]
            together = members > 1
            number = np.cumsum(together) - 1
            meets[calls] = np.where(together[group], number[group], -1)
        return meets

    def _check(self) -> None:
        """Raise UserError where classes that meet disagree about what they do."""
        for key, channel in self.channels.items():
            users = self.users[channel]
            sequences = [(k, self._kinds(k, slot)) for k, slot in users]
            if key[0] == 0:
                members = self.places.members(key[1], int(self.first_rank[users[0][0]]))
                expected = set(np.unique(self.class_of[list(members)]).tolist())
                missing = expected - {k for k, _ in sequences}
                sequences += [(k, ()) for k in sorted(missing)]
                self._agree(key[1], sequences)
            else:
                self._messages_agree(key, sequences)

    def _kinds(self, k: int, slot: int) -> tuple[str, ...]:
        key = (int(self.template_of[k]), slot)
        kinds = self.kinds.get(key)
        if kinds is None:
            template = self.of[k]
            of_slot = np.array([use.slot == slot for use in template.uses])
            calls = template.use_of[template.use_of >= 0]
            kinds = self.kinds[key] = tuple(template.uses[use].kind for use in calls[of_slot[calls]].tolist())
        return kinds

    def _agree(self, family: int, sequences: Sequence[tuple[int, tuple[str, ...]]]) -> None:
        (k, mine), *others = sequences
        for other, its in others:
            if mine == its:
                continue
            at = next((i for i, pair in enumerate(zip(mine, its, strict=False)) if pair[0] != pair[1]), -1)
            at = min(len(mine), len(its)) if at < 0 else at
            words = [
                f"rank {self.first_rank[number]} {_does(calls, at)}" for number, calls in ((k, mine), (other, its))
            ]
            raise UserError(
                f"collective {at} of group {self.job.families[family].name!r}: {words[0]}, {words[1]}; the real job"
                f" would hang there: {_REMEDY}"
            )

    def _messages_agree(self, key: tuple[int, ...], sequences: Sequence[tuple[int, tuple[str, ...]]]) -> None:
        sent = sum(len(kinds) for _, kinds in sequences if kinds[:1] == ("send",))
        received = sum(len(kinds) for _, kinds in sequences if kinds[:1] == ("recv",))
        if sent == received:
            return
        _, family, offset, _, sender, tag = key
        rank = int(self.first_rank[sender])
        other = self.places.peer(family, rank, offset)
        raise UserError(
            f"group {self.job.families[family].name!r}, tag {tag}: rank {rank} sends {sent} messages to rank {other},"
            f" which receives {received}; the real job would hang there: {_REMEDY}"
        )


@dataclass(frozen=True, eq=False)
class _Uses:
    """Of one rank, [uses]."""

    duration_ns: NDArray[np.int64]
    category: NDArray[np.uint16]
    slows: NDArray[np.uint8]  # interference class
    nic_share: NDArray[np.float64]
    peers_share: NDArray[np.float64]
    traffic: tuple[Traffic, ...]


@dataclass(frozen=True, eq=False)
class _Part:
    """Of one program, [ops]."""

    duration: NDArray[np.int64]
    category: NDArray[np.uint16]
    interference: NDArray[np.uint8]
    nic_share: NDArray[np.float64]
    peers_share: NDArray[np.float64]
    key: NDArray[np.int64]
    traffic: tuple[Traffic, ...]


def family_words(family: str) -> str:
    """What a person reads: torch's "world" is all ranks."""
    return "all ranks" if family == "world" else family


def _does(calls: Sequence[str], at: int) -> str:
    return f"calls {calls[at]}" if at < len(calls) else "calls nothing"
