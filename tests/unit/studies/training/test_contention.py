"""Weak and hashed uplinks: groups enumerated rank by rank, and their flows laid on the links one group at a time."""

from __future__ import annotations

import numpy as np
import pytest
from link_flows import flows_of

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.hardware.cluster import cluster_with
from windtunnel.physics.hardware.topology import topology_of, weakened
from windtunnel.physics.model import transformer
from windtunnel.studies.training import read_plan
from windtunnel.studies.training.disturbances.contention import uplink_factors
from windtunnel.studies.training.layout import resolve

MODEL = transformer(hidden=512, layers=8, heads=8, vocab=4096, ffn=2048, name="small")
MOE = transformer(
    hidden=512, layers=8, heads=8, vocab=4096, ffn=512, experts=8, topk=2, family="mixtral", name="small-moe"
)
PLANS = [
    {"pp": 2, "tp": 2, "cp": 2},
    {"tp": 8},
    {"tp": 2, "pp": 4},
    {"pp": 4, "virtual_stages": 2, "tp": 2},
    {"tp": 2, "cp": 4, "zero_stage": 0},
    {"tp": 4, "ep": 4},
    {"ep": 8, "tp": 2, "pp": 2},
    {"ep": 4, "etp": 8, "tp": 2},
    {"ep": 4, "zero_stage": 3},
    {"zero_stage": 1, "shard_group": 8},
    {"zero_stage": 2, "shard_group": 4, "tp": 2},
    {"zero_stage": 3, "shard_group": 8},
    {"framework": "torchtitan", "pp": 2, "tp": 2, "shard_group": 4},
]
FABRICS = [
    {"rail_optimised": rail, "oversubscription": over, "gpus_per_pod": pod}
    for rail in (True, False)
    for over in (1.0, 2.0, 4.0)
    for pod in (None, 16)
]
KIND = {"cp": "all_gather", "etp": "all_gather", "ep": "all_to_all", "pp": "send_recv"}


def layout_of(plan, fabric):
    cluster = cluster_with(parse_cluster("h100-sxm:32"), gpus_per_node=4, **fabric)
    return resolve(MOE if "ep" in plan else MODEL, cluster, read_plan({"global_batch": 64, "seq_len": 512} | plan))


def groups_of(layout):
    """Every communicator as a list of ranks: tensor fastest, then context, data, pipeline; expert-tensor, expert."""
    plan, dp, etp = layout.plan, layout.dp, layout.etp
    tp, cp, pp, ep, shard = plan.tp, plan.cp, plan.pp, plan.ep, layout.shard_group
    tps, cps, dps, pps = range(tp), range(cp), range(dp), range(pp)
    edp = tp * cp * dp // (ep * etp)

    def rank(t, c, d, p):
        return t + tp * (c + cp * (d + dp * p))

    def expert(e, x, y, p):
        return e + etp * (x + ep * (y + edp * p))

    shared = [[rank(t, i % cp, i // cp, p) for i in range(dp * cp)] for t in tps for p in pps]
    neighbours = [(p, p + 1) for p in range(pp - 1)]
    if plan.virtual_stages > 1:
        neighbours.append((pp - 1, 0))
    found = {
        "tp": [[rank(t, c, d, p) for t in tps] for c in cps for d in dps for p in pps],
        "cp": [[rank(t, c, d, p) for c in cps] for t in tps for d in dps for p in pps],
        "dp": [ranks[i : i + shard] for ranks in shared for i in range(0, len(ranks), shard)],
        "replica": [ranks[i::shard] for ranks in shared for i in range(shard)],
        "pp": [[rank(t, c, d, p), rank(t, c, d, q)] for t in tps for c in cps for d in dps for p, q in neighbours],
    }
    if layout.model.name == MOE.name:
        es, xs, ys = range(etp), range(ep), range(edp)
        found["etp"] = [[expert(e, x, y, p) for e in es] for x in xs for y in ys for p in pps]
        found["ep"] = [[expert(e, x, y, p) for x in xs] for e in es for y in ys for p in pps]
        found["edp"] = [[expert(e, x, y, p) for y in ys] for e in es for x in xs for p in pps]
    return {name: groups for name, groups in found.items() if groups and len(groups[0]) > 1}


def factors_of(layout, name, groups, weak, seed):
    """How much longer each group's busiest link is, against an even fabric."""
    even, domain = topology_of(layout.cluster), layout.cluster.scale_up_domain
    times = []
    for topology in (even, weakened(topology_of(layout.cluster, ecmp_seed=seed), weak)):
        carried = []
        for ranks in groups:
            mine = np.zeros(topology.n_links)
            for order in (ranks, ranks[::-1]) if name == "pp" else (ranks,):
                flows = flows_of(KIND.get(name, "all_reduce"), 1.0, order, topology)
                lengths = np.diff(flows.link_ptr)
                size = np.where(flows.source // domain != flows.target // domain, flows.bytes_total, 0.0)
                mine += np.bincount(flows.link_idx, np.repeat(size, lengths), minlength=topology.n_links)
            carried.append(mine)
        busy = np.sum(carried, axis=0) / topology.capacity_bytes_per_s
        times.append([busy[mine > 0.0].max(initial=0.0) for mine in carried])
    return [max(1.0, real / usual) if usual > 0.0 else 1.0 for usual, real in zip(*times, strict=True)]


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("fabric", FABRICS, ids=lambda fabric: "-".join(map(str, fabric.values())))
def test_factors_are_those_of_every_group_laid_on_the_links_by_hand(plan, fabric):
    layout = layout_of(plan, fabric)
    topology = topology_of(layout.cluster)
    number = PLANS.index(plan) + 5 * FABRICS.index(fabric)
    leaf, share = number * 7 % topology.n_leaves, (0.1, 0.5, 0.9)[number % 3]
    zero = 1 if layout.shares_once else layout.plan.zero_stage or 0
    of_stage = layout.cluster.n_gpus // layout.plan.pp
    for seed, weak in ((None, {leaf: np.full(1, share)}), (number, {})):
        inside = np.ones((layout.dp, layout.plan.pp))
        hops, reduced = inside.copy(), np.ones(layout.plan.pp)
        for name, groups in groups_of(layout).items():
            for ranks, factor in zip(groups, factors_of(layout, name, groups, weak, seed), strict=True):
                assert seed is not None or factor <= 1.0 / share + 1e-9
                for rank in ranks[:1] if name == "pp" else ranks:
                    stage, within = divmod(rank, of_stage)
                    replica = within // (layout.plan.tp * layout.plan.cp)
                    data_parallel = name in ("dp", "edp", "replica")
                    if name == "pp":
                        hops[replica, stage] = max(hops[replica, stage], factor)
                    if data_parallel and (zero < 2 or (zero == 2 and name != "replica")):
                        reduced[stage] = max(reduced[stage], factor)
                    if name != "pp" and (not data_parallel or zero >= 2):
                        inside[replica, stage] = max(inside[replica, stage], factor)
        found = uplink_factors(layout, weak, seed)
        assert found.inside == pytest.approx(inside)
        assert found.reduced == pytest.approx(reduced)
        assert found.hops == pytest.approx(hops)


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_the_less_is_left_of_an_uplink_the_longer_it_takes(plan):
    layout = layout_of(plan, FABRICS[3])
    before = uplink_factors(layout, {})
    assert max(before.inside.max(), before.reduced.max(), before.hops.max()) == 1.0
    for share in (1.0, 0.7, 0.3, 0.05):
        found = uplink_factors(layout, {1: np.full(1, share)})
        assert (found.inside >= before.inside).all()
        assert (found.reduced >= before.reduced).all()
        assert (found.hops >= before.hops).all()
        before = found
