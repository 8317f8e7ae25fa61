"""The links between two GPUs, on each kind of fabric."""

from __future__ import annotations

import numpy as np
import pytest
from link_names import link_name, link_of

from windtunnel.errors import SpecError
from windtunnel.physics.hardware import cluster_with, parse_cluster
from windtunnel.physics.hardware.topology import DOWN, UP, Topology, paths, topology_of, weakened

RAILS = parse_cluster("h100-sxm:128")
GB = 1e9


def way(topology: Topology, source: int, target: int) -> list[str]:
    _, links = paths(topology, [source], [target])
    return [link_name(topology, link) for link in links.tolist()]


def pods(cluster, **changes):
    return topology_of(cluster_with(cluster, gpus_per_pod=32, **changes))


def test_inside_a_node_only_nvlink():
    topology = topology_of(RAILS)
    assert way(topology, 1, 6) == ["nvlink-out 1", "nvlink-in 6"]
    assert way(topology, 3, 3) == []
    assert topology.capacity_bytes_per_s[link_of(topology, "nvlink-out 1")] == 450 * GB


def test_one_rail_of_one_pod_meets_at_its_leaf():
    assert way(pods(RAILS), 1, 17) == ["nic-out 1", "nic-in 17"]
    assert way(pods(RAILS, rail_optimised=False), 1, 17) == ["nic-out 1", "nic-in 17"]


def test_another_pod_is_above_the_leaves():
    assert way(pods(RAILS), 1, 97) == ["nic-out 1", "up 1.0", "down 25.0", "nic-in 97"]
    assert way(pods(RAILS, rail_optimised=False), 1, 97) == ["nic-out 1", "up 0.0", "down 3.0", "nic-in 97"]


def test_another_rail_is_reached_inside_the_node():
    assert way(pods(RAILS), 1, 18) == ["nvlink-out 1", "nvlink-in 2", "nic-out 2", "nic-in 18"]
    assert way(pods(RAILS, rail_optimised=False), 1, 18) == ["nic-out 1", "nic-in 18"]


def test_without_a_scale_up_domain_rails_cross_above():
    alone = cluster_with(RAILS, scale_up_domain=1)
    assert way(pods(alone), 1, 2) == ["nic-out 1", "up 1.0", "down 2.0", "nic-in 2"]


def test_nvl72_is_one_island():
    topology = topology_of(parse_cluster("gb200:144"))
    assert way(topology, 0, 71) == ["nvlink-out 0", "nvlink-in 71"]
    assert way(topology, 0, 72) == ["nic-out 0", "up 0.0", "down 72.0", "nic-in 72"]
    assert way(topology, 71, 72)[:2] == ["nvlink-out 71", "nvlink-in 68"]  # to the NIC of rail 0 in its tray


def test_a_mesh_has_a_link_for_each_pair():
    topology = topology_of(parse_cluster("mi300x:16"))
    mesh = topology.cluster.scale_up
    assert way(topology, 9, 12) == ["nvlink-out 9", "pair 9-12", "nvlink-in 12"]
    assert topology.capacity_bytes_per_s[link_of(topology, "pair 9-12")] == mesh.peer_bandwidth_bytes_per_s


@pytest.mark.parametrize("rail_optimised", [True, False])
@pytest.mark.parametrize("ratio", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("seed", [None, 7])
def test_a_pod_sends_up_what_its_nics_send_over_the_ratio(rail_optimised, ratio, seed):
    cluster = cluster_with(RAILS, gpus_per_pod=32, oversubscription=ratio, rail_optimised=rail_optimised)
    topology = topology_of(cluster, ecmp_seed=seed)
    leaves = set(topology.leaf_of[:32].tolist())
    assert len(leaves) == (8 if rail_optimised else 1)
    links = [link_of(topology, f"up {leaf}.{i}") for leaf in leaves for i in range(topology.uplinks)]
    assert topology.capacity_bytes_per_s[links].sum() == pytest.approx(32 * 50 * GB / ratio)


def test_a_partly_used_pod_brings_its_own_uplinks_only():
    topology = topology_of(cluster_with(parse_cluster("h100-sxm:40"), gpus_per_pod=32, oversubscription=2.0))
    assert topology.capacity_bytes_per_s[link_of(topology, "up 8.0")] == 25 * GB


def test_hashing_is_seeded_spreads_and_collides():
    cluster = cluster_with(RAILS, gpus_per_pod=32, rail_optimised=False)
    source, target = np.arange(32), np.arange(32, 64)
    lanes = []
    for seed in (1, 1, 2):
        topology = topology_of(cluster, ecmp_seed=seed)
        assert topology.uplinks == 32
        _, links = paths(topology, source, target)
        lanes.append([link_name(topology, link) for link in links.tolist() if link_name(topology, link)[:2] == "up"])
    assert lanes[0] == lanes[1] != lanes[2]
    assert 15 <= len(set(lanes[0])) <= 26  # 32 balls in 32 bins: 20.4 +- 1.9 are hit


def test_many_paths_at_once_are_the_single_ones():
    topology = topology_of(cluster_with(RAILS, gpus_per_pod=32), ecmp_seed=3)
    rng = np.random.default_rng(0)
    source, target = rng.integers(0, 128, 200), rng.integers(0, 128, 200)
    pointer, links = paths(topology, source, target)
    for i in range(200):
        assert links[pointer[i] : pointer[i + 1]].tolist() == paths(topology, [source[i]], [target[i]])[1].tolist()


@pytest.mark.parametrize("seed", [None, 1])
def test_uplinks_can_be_weakened_both_ways(seed):
    topology = topology_of(cluster_with(RAILS, gpus_per_pod=32), ecmp_seed=seed)
    left = np.linspace(0.5, 0.9, topology.uplinks)
    weak = weakened(topology, {3: left})
    changed = np.flatnonzero(weak.capacity_bytes_per_s != topology.capacity_bytes_per_s)
    assert changed.tolist() == [
        topology.first[way] + 3 * topology.uplinks + i for way in (UP, DOWN) for i in range(topology.uplinks)
    ]
    share = weak.capacity_bytes_per_s[changed] / topology.capacity_bytes_per_s[changed]
    assert share == pytest.approx(np.tile(left, 2))


def test_a_gpu_that_the_cluster_lacks_is_named():
    with pytest.raises(SpecError, match="target = 128"):
        paths(topology_of(RAILS), [0], [128])
