"""Where the groups of a job lie on a cluster, and which ranks no clock can tell apart.

Rank r is GPU r. What a collective costs depends on how many of its members share a scale-up domain and, on a fabric
that is oversubscribed, on how far apart they are: its `cost.communication.collectives.Group`.

Ranks are alike when they run the same program, are disturbed alike, and meet alike ranks in groups that lie alike.
The coarsest such partition comes from `graph.fold.refine` and, since a message has one peer and not a whole group,
from looking at every peer until nothing splits any more. What it gives is exact: see `graph/fold.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import LayoutError
from windtunnel.physics.cost.communication.collectives import Group, tier
from windtunnel.physics.graph.fold import paired, refine
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.lowering.template import Template

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Places:
    """The groups of each family as arrays over ranks; -1 where a rank is in none."""

    job: CapturedJob
    cluster: Cluster
    group_of: NDArray[np.int64]  # [families, world] group of each rank
    place_of: NDArray[np.int64]  # [families, world] its place in that group
    groups: tuple[tuple[Group, ...], ...]  # [family][group] as collectives are priced

    def members(self, family: int, rank: int) -> tuple[int, ...]:
        """The group of a rank, in its order."""
        return self.job.families[family].groups[int(self.group_of[family, rank])]

    def peer(self, family: int, rank: int, offset: int) -> int:
        """Who stands so many places further."""
        members = self.members(family, rank)
        return members[(int(self.place_of[family, rank]) + offset) % len(members)]

    def peers(self, family: int, offset: int) -> Ints:
        """int64[world]: the same of every rank; -1 outside the family."""
        peers = np.full(self.job.world_size, -1, np.int64)
        for members in self.job.families[family].groups:
            peers[list(members)] = np.roll(members, -offset)
        return peers

    def pair(self, rank: int, other: int) -> Group:
        """Two ranks that send to each other."""
        near = rank // self.cluster.scale_up_domain == other // self.cluster.scale_up_domain
        return Group(2, 2 if near else 1, 1, self._span(abs(rank - other) + 1))

    def _span(self, span: int) -> int:
        return span if self.cluster.oversubscription > 1.0 else 0


def places_of(job: CapturedJob, cluster: Cluster) -> Places:
    """Lay a job on a cluster. Raises LayoutError where it has another number of GPUs than the job has ranks."""
    if job.world_size != cluster.n_gpus:
        raise LayoutError(
            f"the script was captured for {job.world_size:,} ranks, and {cluster.name} has {cluster.n_gpus:,} GPUs",
            f"give a cluster of {job.world_size:,} GPUs, capture with --world-size {cluster.n_gpus}, or let `windtunnel"
            " plan` cut it into stages and replicas",
        )
    group_of = np.full((len(job.families), job.world_size), -1, np.int64)
    place_of = np.full((len(job.families), job.world_size), -1, np.int64)
    shapes = []
    for number, family in enumerate(job.families):
        groups = []
        for row, members in enumerate(family.groups):
            ranks = np.array(members, np.int64)
            group_of[number, ranks], place_of[number, ranks] = row, np.arange(len(ranks))
            counts = np.unique(ranks // cluster.scale_up_domain, return_counts=True)[1]
            span = int(ranks.max() - ranks.min()) + 1 if cluster.oversubscription > 1.0 else 0
            groups.append(Group(len(ranks), int(counts.max()), 1, span))
        shapes.append(tuple(groups))
    return Places(job, cluster, group_of, place_of, tuple(shapes))


@dataclass(frozen=True, eq=False)
class Pace:
    """What disturbances do to each rank: factors on its kernels and on its traffic between domains."""

    compute: Floats  # [world]
    links: Floats  # [world]

    @classmethod
    def even(cls, world_size: int) -> Pace:
        """A pace at which nothing is disturbed."""
        return cls(np.ones(world_size), np.ones(world_size))


def slowest_links(places: Places, pace: Pace) -> list[Floats]:
    """[family][group]: factor on a collective: that of its slowest member where it leaves a domain."""
    factors = []
    for family, groups in zip(places.job.families, places.groups, strict=True):
        slowest = np.ones(len(groups))
        if (pace.links != 1.0).any():
            for row, (members, group) in enumerate(zip(family.groups, groups, strict=True)):
                if tier(group) == "scale_out":
                    slowest[row] = pace.links[list(members)].max()
        factors.append(slowest)
    return factors


def rank_classes(places: Places, templates: Sequence[Template], pace: Pace) -> Ints:
    """int64[world]: classes of ranks that share one timeline, numbered by their first rank."""
    job = places.job
    colour = _dense(job.runs.astype(np.int64))
    for factor in (pace.compute, pace.links):
        colour = paired(colour, _dense(factor))
    meets = sorted({slot.family for template in templates for slot in template.slots if not slot.direction})
    slowest = slowest_links(places, pace)
    matrices: list[NDArray[np.int64]] = []
    for family in meets:
        kinds: dict[object, int] = {}
        shapes = zip(places.groups[family], slowest[family].tolist(), strict=True)
        kind = np.array([kinds.setdefault(shape, len(kinds)) for shape in shapes], np.int64)
        row = places.group_of[family]
        colour = paired(colour, np.where(row >= 0, kind[row], -1))
        by_size: dict[int, list[tuple[int, ...]]] = {}
        for members in job.families[family].groups:
            by_size.setdefault(len(members), []).append(members)
        matrices += [np.array(groups, np.int64) for groups in by_size.values()]
    peers = _message_peers(places, templates)
    for toward in peers:
        far = np.where(toward >= 0, _distance(places, toward), -1)
        worst = np.where(toward >= 0, np.maximum(pace.links, pace.links[toward]), 1.0)
        colour = paired(paired(colour, _dense(far)), _dense(worst))
    while True:
        colour = refine(colour, matrices)
        before = int(colour.max(initial=-1))
        for toward in peers:
            colour = paired(colour, np.where(toward >= 0, colour[toward], -1))
        if int(colour.max(initial=-1)) == before:
            return colour


def _message_peers(places: Places, templates: Sequence[Template]) -> list[Ints]:
    """Whom each rank sends to or receives from, one array per (family, offset); -1 for ranks that do not."""
    users: dict[tuple[int, int], list[int]] = {}
    for template in templates:
        for slot in template.slots:
            if slot.direction:
                users.setdefault((slot.family, slot.offset), []).append(template.program.rank)
    peers = []
    for (family, offset), captured in sorted(users.items()):
        peers.append(np.where(np.isin(places.job.runs, captured), places.peers(family, offset), -1))
    return peers


def _distance(places: Places, toward: Ints) -> Ints:
    """Whether a peer is in another domain, and how far where that matters."""
    own, domain = np.arange(len(toward)), places.cluster.scale_up_domain
    far: Ints = (own // domain != toward // domain).astype(np.int64)
    if places.cluster.oversubscription > 1.0:
        far += 2 * np.abs(own - toward)
    return far


def _dense(values: NDArray[np.generic]) -> Ints:
    numbers: Ints = np.unique(values, return_inverse=True)[1].ravel().astype(np.int64)
    return numbers
