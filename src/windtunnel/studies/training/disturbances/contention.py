"""Uplinks that are weak, or that hashing loads unevenly: how much longer that makes the transfers of each cell.

The price of a collective takes the fabric as even: all uplinks of a leaf as one, each with its full rate. Here the
flows of all groups of one family (all data-parallel rings, all expert all-to-alls, ...) are laid on the links at once,
as they run at once in a step, on the even fabric and on the real one:

    factor(group) = max over its links of load / capacity on the real fabric, over the same on the even one

So a leaf at half its rate doubles what is bound by it and leaves the rest alone, and an ECMP collision of three flows
on one uplink makes those take as long as three. Paths are those of `hardware.topology`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windtunnel.physics.hardware.topology import Topology, paths, topology_of, weakened
from windtunnel.studies.training.layout import Layout

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinkFactors:
    """How many times as long transfers across nodes take; 1 where nothing is in the way."""

    inside: Floats  # [replicas, stages] of a cell's passes: experts, sharded parameters, tensor and context parallelism
    reduced: Floats  # [stages] of what all replicas of a stage do together between passes: gradients and parameters
    hops: Floats  # [replicas, stages] of the sends between a cell and the next stage's; the last's: the first stage's

    @classmethod
    def none(cls, layout: Layout) -> LinkFactors:
        """Nothing is in the way."""
        shape = (layout.dp, layout.plan.pp)
        return cls(np.ones(shape), np.ones(layout.plan.pp), np.ones(shape))


def uplink_factors(layout: Layout, left: Mapping[int, Floats], ecmp_seed: int | None = None) -> LinkFactors:
    """Factors of a fabric that has `left` so much of its leaves' uplinks (as `topology.weakened` takes it), and whose
    flows, with an `ecmp_seed`, are hashed to single ones.
    """
    even = topology_of(layout.cluster)
    real = weakened(topology_of(layout.cluster, ecmp_seed=ecmp_seed), left)
    link_factors = LinkFactors.none(layout)
    data_parallel = _data_parallel(layout)
    for name, groups in _families(layout).items():
        source, target, share, of = _hops_of(name, groups, layout.cluster.scale_up_domain)
        if not len(source):
            continue
        times = [_slowest(topology, source, target, share, of, len(groups)) for topology in (even, real)]
        factor = np.maximum(1.0, times[1] / np.where(times[0] > 0.0, times[0], 1.0))
        factor[times[0] == 0.0] = 1.0
        if name == "pp":  # one pair per rank, in rank order: a factor for each place between two stages
            pairs = factor.reshape(-1, layout.dp, layout.plan.tp * layout.plan.cp).max(axis=2).T
            np.maximum(link_factors.hops[:, : pairs.shape[1]], pairs, out=link_factors.hops[:, : pairs.shape[1]])
            continue
        of_rank = np.ones(layout.cluster.n_gpus)
        np.maximum.at(of_rank, groups.ravel(), np.repeat(factor, groups.shape[1]))
        cells = of_rank.reshape(layout.plan.pp, layout.dp, -1).max(axis=2).T
        if name not in data_parallel or data_parallel[name].inside:
            np.maximum(link_factors.inside, cells, out=link_factors.inside)
        if name in data_parallel and data_parallel[name].between:
            np.maximum(link_factors.reduced, cells.max(axis=0), out=link_factors.reduced)
    return link_factors


class _Where(NamedTuple):
    """When a group is at work."""

    inside: bool  # passes
    between: bool  # them, in the step


def _data_parallel(layout: Layout) -> dict[str, _Where]:
    """From ZeRO-2 on gradients are reduced inside the backward passes; ZeRO-3 gathers parameters inside passes too.

    Parameters that ZeRO-1 and -2 gather come between the steps, from the groups that shard them; so does all that FSDP2
    gathers and reduces in a pipeline.
    """
    sharding = _Where(layout.reduces_in_passes, not layout.gathers_in_passes)
    copies = _Where(layout.reduces_in_passes, not layout.reduces_in_passes)
    return {"dp": sharding, "edp": sharding, "replica": copies}


def _families(layout: Layout) -> dict[str, Ints]:
    """[groups, size] ranks of every communicator, by family; only families with more than one member."""
    plan = layout.plan
    stages, dense = plan.pp, plan.tp * plan.cp * layout.dp
    rank = np.arange(layout.cluster.n_gpus, dtype=np.int64)
    grid = rank.reshape(stages, -1, plan.tp)
    by_shard = rank.reshape(stages, layout.replicas, layout.shard_group, plan.tp)
    by_expert = rank.reshape(stages, -1, plan.ep, layout.etp)
    families = {
        "tp": rank.reshape(-1, plan.tp),
        "cp": grid.reshape(stages, layout.dp, plan.cp, plan.tp).swapaxes(2, 3).reshape(-1, plan.cp),
        "ep": by_expert.swapaxes(2, 3).reshape(-1, plan.ep),
        "dp": by_shard.swapaxes(2, 3).reshape(-1, layout.shard_group),
        "replica": by_shard.transpose(0, 2, 3, 1).reshape(-1, layout.replicas),
        "pp": np.stack([rank[:-dense], rank[dense:]], axis=1) if stages > 1 else rank[:, None],
    }
    if plan.virtual_stages > 1 and stages > 2:  # the last stage's chunk goes on at the first
        families["pp"] = np.stack([rank, np.roll(rank, -dense)], axis=1)
    if any(layer.feed_forward.kind == "moe" for layer in layout.model.layers):
        families["etp"] = rank.reshape(-1, layout.etp)
        families["edp"] = by_expert.transpose(0, 2, 3, 1).reshape(-1, by_expert.shape[1])
    return {name: groups for name, groups in families.items() if groups.shape[1] > 1}


def _hops_of(name: str, groups: Ints, domain: int) -> tuple[Ints, Ints, Floats, Ints]:
    """Source, target, share of the message and group of every flow between scale-up domains."""
    n = groups.shape[1]
    number = np.arange(len(groups))
    if name == "pp":
        source, target = groups.ravel(), groups[:, ::-1].ravel()
        share, of = np.ones(len(source)), np.repeat(number, 2)
    elif name == "ep":
        source, target = np.repeat(groups, n, axis=1).ravel(), np.tile(groups, (1, n)).ravel()
        share, of = np.full(len(source), 1.0 / n), np.repeat(number, n * n)
    else:
        inside = _members_per_domain(groups, domain)
        parts = []
        for channel in range(inside):
            order = np.roll(groups.reshape(len(groups), -1, inside), -channel, axis=2).reshape(len(groups), n)
            parts.append((order, np.roll(order, -1, axis=1)))
        source = np.concatenate([part.ravel() for part, _ in parts])
        target = np.concatenate([part.ravel() for _, part in parts])
        share, of = np.full(len(source), 1.0 / inside), np.tile(np.repeat(number, n), inside)
    far = source // domain != target // domain
    return source[far], target[far], share[far], of[far]


def _members_per_domain(groups: Ints, domain: int) -> int:
    """Members that neighbour each other in one scale-up domain, where that is the same everywhere; else 1."""
    where = groups // domain
    run = 1
    while run < groups.shape[1] and (where[:, run] == where[:, 0]).all():
        run += 1
    if groups.shape[1] % run:
        return 1
    cut = where.reshape(len(groups), -1, run)
    return run if (cut == cut[:, :, :1]).all() else 1


def _slowest(topology: Topology, source: Ints, target: Ints, share: Floats, of: Ints, groups: int) -> Floats:
    """[groups] the longest load / capacity among the links that each group's flows cross.

    Links below the leaves carry the same on either fabric, so they bound how little an uplink may matter.
    """
    pointer, link = paths(topology, source, target)
    length = np.diff(pointer)
    load = np.bincount(link, np.repeat(share, length), minlength=topology.n_links)
    busy = load / topology.capacity_bytes_per_s
    slowest = np.zeros(groups)
    np.maximum.at(slowest, np.repeat(of, length), busy[link])
    return slowest
