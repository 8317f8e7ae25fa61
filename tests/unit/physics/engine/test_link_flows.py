"""Bytes on links by algorithm: what leaves each NIC, each GPU and each pod."""

from __future__ import annotations

import numpy as np
import pytest
from link_flows import ALGORITHMS_OF, _two_trees, demand, flows_of
from link_names import link_name

from windtunnel.errors import SpecError
from windtunnel.physics.hardware import cluster_with, parse_cluster
from windtunnel.physics.hardware.topology import topology_of

CLUSTER = parse_cluster("h100-sxm:128")
TOPOLOGY = topology_of(CLUSTER)
S = 1e9
PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}


def carried(flows, topology=TOPOLOGY) -> dict[str, float]:
    by_link = flows.bytes_by_link(topology.n_links)
    return {link_name(topology, link): by_link[link] for link in np.flatnonzero(by_link).tolist()}


def of_kind(loads: dict[str, float], kind: str) -> list[float]:
    return [size for name, size in loads.items() if name.split()[0] == kind]


@pytest.mark.parametrize("kind", PASSES)
@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_a_ring_sends_the_same_through_every_gpu(kind, nodes):
    n = 8 * nodes
    passes = PASSES[kind] * (n - 1) / n
    flows = flows_of(kind, S, range(n), TOPOLOGY)
    out = np.bincount(flows.source, flows.bytes_total, minlength=n)
    assert out == pytest.approx([passes * S] * n)
    loads = carried(flows)
    assert of_kind(loads, "nic-out") == pytest.approx([] if nodes == 1 else [passes * S / 8] * n)
    assert of_kind(loads, "nvlink-in") == pytest.approx([passes * S] * n)  # also what goes to the NIC of its rail


@pytest.mark.parametrize("kind", PASSES)
def test_hierarchical_sends_a_kth_of_the_bytes_through_each_nic(kind):
    loads = carried(flows_of(kind, S, range(40), TOPOLOGY, "hierarchical"))
    assert of_kind(loads, "nic-out") == pytest.approx([PASSES[kind] * 4 / 5 * S / 8] * 40)
    assert of_kind(loads, "nvlink-out") == pytest.approx([PASSES[kind] * 7 / 8 * S] * 40)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 7, 8, 16])
def test_a_tree_passes_everything_up_and_down(nodes):
    n = 8 * nodes
    flows = flows_of("all_reduce", S, range(n), TOPOLOGY, "tree")
    assert flows.bytes_total.sum() == pytest.approx(2 * (n - 1) * S)  # every edge of a spanning tree, both ways
    nic = of_kind(carried(flows), "nic-out")
    assert sum(nic) == pytest.approx(2 * (nodes - 1) * S)
    if nodes > 2:
        assert max(nic) <= 2 * S / 8 * (1 + 1e-9)  # inner in one tree, a leaf in the other: at most two buffers


@pytest.mark.parametrize("n", range(1, 40))
def test_two_trees_span_and_hardly_any_node_is_inner_in_both(n):
    inner = []
    for parent in _two_trees(n):
        assert (parent == -1).sum() == 1
        for i in range(n):
            steps, at = 0, i
            while parent[at] >= 0:
                at, steps = parent[at], steps + 1
                assert steps <= n.bit_length()
        children = np.bincount(parent[parent >= 0], minlength=n)
        assert children.max(initial=0) <= 2
        inner.append(set(np.flatnonzero(children).tolist()))
    assert len(inner[0] & inner[1]) <= 1


def test_an_all_to_all_sends_to_everyone_but_itself():
    loads = carried(flows_of("all_to_all", S, range(0, 128, 8), TOPOLOGY))
    assert of_kind(loads, "nic-out") == of_kind(loads, "nic-in") == pytest.approx([S * 15 / 16] * 16)
    assert not of_kind(loads, "nvlink-out")
    inside = carried(flows_of("ep_dispatch", S, range(16), TOPOLOGY))
    assert of_kind(inside, "nic-out") == pytest.approx([S / 2] * 16)


def test_an_all_to_all_may_be_skewed():
    size = np.zeros((4, 4))
    size[0, 3], size[2, 2], size[3, 0] = 5.0, 9.0, 7.0
    flows = flows_of("all_to_all", size, [0, 8, 16, 24], TOPOLOGY)
    assert list(zip(flows.source.tolist(), flows.target.tolist(), flows.bytes_total.tolist(), strict=True)) == [
        (0, 24, 5.0),
        (24, 0, 7.0),
    ]


def test_a_send_goes_one_way_and_a_chain_has_an_end():
    assert carried(flows_of("send_recv", S, [0, 8], TOPOLOGY)).keys() >= {"nic-out 0", "nic-in 8"}
    chain = flows_of("broadcast", S, [0, 8, 16], TOPOLOGY)
    assert (chain.source.tolist(), chain.target.tolist()) == ([0, 8], [8, 16])
    back = flows_of("reduce", S, [0, 8, 16], TOPOLOGY)
    assert (back.source.tolist(), back.target.tolist()) == ([8, 16], [0, 8])


def test_a_broadcast_leaves_its_root_once_and_enters_it_never():
    flows = flows_of("broadcast", S, range(24), TOPOLOGY)
    into = np.bincount(flows.target, flows.bytes_total, minlength=24)
    assert into == pytest.approx([0.0] + [S] * 23)


def test_a_mesh_uses_several_links_of_each_gpu():
    topology = topology_of(parse_cluster("mi300x:8"))
    pairs = of_kind(carried(flows_of("all_reduce", S, range(8), topology), topology), "pair")
    assert pairs == pytest.approx([2 * 7 / 8 * S / 4] * 32)  # strides 1, 3, 5, 7


def test_a_ring_leaves_a_pod_once_an_all_to_all_with_every_byte():
    topology = topology_of(cluster_with(CLUSTER, rail_optimised=False, gpus_per_pod=32, oversubscription=2.0))
    ring = carried(flows_of("all_gather", S, range(64), topology), topology)
    assert ring["up 0.0"] == pytest.approx(63 / 64 * S)
    every = carried(flows_of("all_to_all", S, range(64), topology), topology)
    assert every["up 0.0"] == pytest.approx(32 * S / 2)


def test_alone_a_collective_takes_what_its_busiest_link_does():
    flows = flows_of("all_reduce", S, range(0, 128, 8), TOPOLOGY)
    found = demand(flows, TOPOLOGY)
    assert found.seconds == pytest.approx(2 * 15 / 16 * S / 50e9)
    assert found.use_bytes_per_s.max() == pytest.approx(50e9)
    slower = demand(flows, TOPOLOGY, 2 * found.seconds)
    assert slower.use_bytes_per_s == pytest.approx(found.use_bytes_per_s / 2)
    assert slower.weight == pytest.approx(2.0)
    faster = demand(flows, TOPOLOGY, found.seconds / 2)  # a price stands: its busy links are full, and no more
    assert (faster.seconds, faster.weight, faster.use_bytes_per_s.max()) == (found.seconds / 2, 1.0, 50e9)
    assert slower.link.tolist() == sorted(slower.link.tolist())


@pytest.mark.parametrize("kind", ALGORITHMS_OF)
def test_one_rank_or_no_bytes_move_nothing(kind):
    for ranks, size in (([3], S), ([3, 4], 0.0)):
        if kind == "send_recv" and len(ranks) == 1:
            continue
        found = demand(flows_of(kind, size, ranks, TOPOLOGY), TOPOLOGY)
        assert (len(found.link), found.seconds) == (0, 0.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gather", S, [0, 1]), "collective = 'gather'"),
        (("all_gather", S, [0, 1], "tree"), "use one of ring, hierarchical"),
        (("all_reduce", S, [0, 1, 1]), "must name each rank once"),
        (("all_reduce", S, [0, 500]), "GPUs are numbered from 0 to 127"),
        (("all_reduce", -1.0, [0, 1]), "must be zero or more"),
        (("all_reduce", S, [0, 1, 8], "hierarchical"), "needs as many ranks in each domain"),
        (("all_to_all", np.ones((3, 3)), [0, 1]), "[n, n] for an all-to-all"),
        (("send_recv", S, [0, 1, 2]), "must be the sender and the receiver"),
        (("all_to_all", S, range(5000)), "at most 4,096 ranks"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, words):
    with pytest.raises(SpecError) as error:
        flows_of(arguments[0], arguments[1], arguments[2], TOPOLOGY, *arguments[3:])
    assert words in str(error.value)
