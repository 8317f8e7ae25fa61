"""Flows on shared links: rates and ends by hand, contention of collectives, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest
from link_flows import Demand, demand, flows_of, replay_flows, replay_flows_logged
from rates_at_once import share

from windtunnel.physics.cost.communication.collectives import collective, group_of
from windtunnel.physics.hardware import cluster_with, parse_cluster
from windtunnel.physics.hardware.topology import Topology, topology_of

GB = 1e9
MIB = 1 << 20
CLUSTER = parse_cluster("h100-sxm:128")


class Demands(NamedTuple):
    """Demands as `engine.flows` takes them. The last capacities are a link of each demand's own: speed <= 1."""

    link_ptr: np.ndarray
    link_idx: np.ndarray
    use: np.ndarray
    weight: np.ndarray
    capacity: np.ndarray
    work_s: np.ndarray  # seconds alone: what `replay_flows` calls bytes


def side_by_side(demands: Sequence[Demand], topology: Topology) -> Demands:
    """`demands` on one network."""
    n = len(demands)
    links = [np.append(one.link, topology.n_links + i) for i, one in enumerate(demands)]
    return Demands(
        link_ptr=np.cumsum([0, *(len(one.link) + 1 for one in demands)]),
        link_idx=np.concatenate(links).astype(np.int32),
        use=np.concatenate([np.append(one.use_bytes_per_s, 1.0) for one in demands]),
        weight=np.array([one.weight for one in demands]),
        capacity=np.append(topology.capacity_bytes_per_s, np.ones(n)),
        work_s=np.array([one.seconds for one in demands]),
    )


def slowdowns(demands, topology, starts=None):
    """Time side by side over time alone."""

    def lasts(some, at):
        side = side_by_side(some, topology)
        ends = replay_flows(at, side.work_s, side.link_ptr, side.link_idx, side.capacity, side.weight, side.use)
        return ends - at

    alone = np.array([lasts([one], [0])[0] for one in demands])
    return (lasts(demands, np.array(starts or [0] * len(demands))) / alone).tolist()


def test_rates_by_hand():
    # Link 0 gives flows 0 and 1 each 1; flow 2 takes what flow 1 leaves of link 1; flow 3 goes nowhere.
    rates = share([2.0, 5.0], [0, 1, 3, 4, 4], [0, 0, 1, 1])
    assert rates.tolist() == [1.0, 1.0, 4.0, np.inf]
    assert share([6.0], [0, 1, 2], [0, 0], weight=[1.0, 2.0]).tolist() == [2.0, 4.0]
    assert share([6.0], [0, 1, 2], [0, 0], use=[1.0, 2.0]).tolist() == [2.0, 2.0]


def test_ends_by_hand():
    # 10 B each at 1 B/ns: alone for 4 ns, halves until the second flow's 3 B are through at 10, alone again.
    finish, log = replay_flows_logged([0, 4], [10, 3], [0, 1, 2], [0, 0], [1 * GB])
    assert finish.tolist() == [13, 10]
    by_time = {(t, f): r / GB for t, f, r in zip(*map(np.ndarray.tolist, log), strict=True)}
    assert by_time == {(0, 0): 1.0, (4, 0): 0.5, (4, 1): 0.5, (10, 1): 0.0, (10, 0): 1.0, (13, 0): 0.0}


def test_a_flow_held_by_others_that_change_at_once_is_rated_anew():
    """One instant lowers f1 on link 1 and frees f2 on link 2; both share link 0, the bottleneck of g."""
    paths = [[0], [0, 1], [0, 2], [2], [1]]  # g, f1, f2, h that ends at 1000 ns, x that comes then
    ptr, idx = np.cumsum([0, *map(len, paths)]), np.concatenate(paths)
    capacity = np.array([2.8, 0.9, 1.8]) * GB
    _, log = replay_flows_logged([0, 0, 0, 0, 1000], [1e6, 1e6, 1e6, 900, 1e6], ptr, idx, capacity)
    rates = {int(f): r / GB for t, f, r in zip(*log, strict=True) if t <= 1000}
    assert rates == pytest.approx({0: 1.175, 1: 0.45, 2: 1.175, 3: 0.0, 4: 0.45})


def test_nothing_takes_no_time():
    finish = replay_flows([5, 7, 9], [0, 100, 10], [0, 1, 1, 2], [0, 0], [1 * GB])
    assert finish.tolist() == [5, 7, 19]
    assert len(replay_flows([], [], [0], [], [1 * GB])) == 0


def test_an_end_is_rounded_up():
    assert replay_flows([0], [3], [0, 1], [0], [2 * GB]).tolist() == [2]
    assert replay_flows([0, 0, 0], [1, 1, 1], [0, 1, 2, 3], [0, 0, 0], [1 * GB]).tolist() == [3, 3, 3]


def test_all_to_all_and_all_reduce_on_one_nic_take_twice_as_long():
    topology = topology_of(CLUSTER)
    rail = range(0, 128, 8)
    experts = demand(flows_of("all_to_all", 256 * MIB, rail, topology), topology)
    gradients = demand(flows_of("all_reduce", 128 * MIB, rail, topology), topology)
    assert experts.seconds == pytest.approx(gradients.seconds)
    assert slowdowns([experts, gradients], topology) == pytest.approx([2.0, 2.0], rel=1e-6)


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all", "all_gather"])
def test_alone_a_collective_takes_its_price_to_the_nanosecond(kind):
    """Whatever it was priced at, above what its links need or below: the replay without links says the same."""
    topology = topology_of(cluster_with(CLUSTER, oversubscription=2.0, gpus_per_pod=32), ecmp_seed=1)
    flows = flows_of(kind, 64 * MIB, range(64), topology)
    at_least = int(demand(flows, topology).seconds * 1e9)
    for duration_ns in (at_least // 3, at_least - 1, at_least, at_least + 1, 2 * at_least + 7, 10**12 + 1):
        side = side_by_side([demand(flows, topology, duration_ns / 1e9)], topology)
        network = (side.link_ptr, side.link_idx, side.capacity, side.weight, side.use)
        assert replay_flows([12_345], side.work_s, *network).tolist() == [12_345 + duration_ns]


def test_only_the_time_together_is_slow():
    topology = topology_of(CLUSTER)
    rail = range(0, 128, 8)
    experts = demand(flows_of("all_to_all", 256 * MIB, rail, topology), topology)
    gradients = demand(flows_of("all_reduce", 128 * MIB, rail, topology), topology)
    half = int(experts.seconds * 1e9 / 2)
    assert slowdowns([experts, gradients], topology, [0, half]) == pytest.approx([1.5, 1.5], rel=1e-6)


def test_as_priced_the_slowdown_is_near_what_was_measured():
    """A published study of MoE training measured a median of 1.83."""
    topology = topology_of(CLUSTER)
    rail, group = range(0, 128, 8), group_of(16, 8, CLUSTER)
    demands = [
        demand(flows_of(kind, size, rail, topology), topology, collective(kind, size, group, CLUSTER).seconds)
        for kind, size in (("all_to_all", 256 * MIB), ("all_reduce", 128 * MIB))
    ]
    assert all(1.6 < found < 2.0 for found in slowdowns(demands, topology))


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
@pytest.mark.parametrize("rail_optimised", [True, False])
def test_separate_rails_do_not_meet(algorithm, rail_optimised):
    topology = topology_of(cluster_with(CLUSTER, rail_optimised=rail_optimised))
    experts = demand(flows_of("all_to_all", 256 * MIB, range(0, 128, 8), topology), topology)
    gradients = demand(flows_of("all_reduce", 128 * MIB, range(1, 128, 8), topology, algorithm), topology)
    assert slowdowns([experts, gradients], topology) == [1.0, 1.0]


@pytest.mark.parametrize(("ratio", "expected"), [(1.0, 1.0), (2.0, 1.0), (3.0, 1.5), (4.0, 2.0)])
def test_two_jobs_get_their_share_of_an_uplink(ratio, expected):
    """8 rings each leave a pod of 32 GPUs: 16 NICs' worth on 32 / ratio."""
    tree = cluster_with(CLUSTER, rail_optimised=False, gpus_per_pod=32, oversubscription=ratio)
    topology = topology_of(tree)
    jobs = [[*range(at, at + 16), *range(at + 32, at + 48)] for at in (0, 16)]
    demands = [demand(flows_of("all_reduce", 256 * MIB, job, topology), topology) for job in jobs]
    assert slowdowns(demands, topology) == pytest.approx([expected] * 2, rel=1e-6)


def test_a_small_job_keeps_what_fair_queueing_gives_it():
    """Nine connections through an uplink of eight NICs, eight of one job: 8/9 of a NIC each, however grouped."""
    topology = topology_of(cluster_with(CLUSTER, rail_optimised=False, gpus_per_pod=32, oversubscription=4.0))
    large = flows_of("all_reduce", 256 * MIB, [*range(16), *range(32, 48)], topology)
    small = flows_of("all_reduce", 256 * MIB, [16, 48], topology)
    demands = [demand(flows, topology) for flows in (large, small)]
    side = side_by_side(demands, topology)
    speeds = share(side.capacity, side.link_ptr, side.link_idx, side.weight, side.use)
    assert speeds == pytest.approx([8 / 9, 8 / 9])
    ptr = np.concatenate([large.link_ptr, large.link_ptr[-1] + small.link_ptr[1:]])
    idx = np.concatenate([large.link_idx, small.link_idx])
    rates = share(topology.capacity_bytes_per_s, ptr, idx)
    assert rates[-2:].min() == pytest.approx(8 / 9 * 50 * GB)


def test_an_own_limit_is_kept_and_what_is_left_goes_to_the_other():
    """A collective that alone takes half a NIC leaves the other half: neither is slowed; three quarters do meet."""
    topology = topology_of(CLUSTER)
    flows = flows_of("send_recv", 50 * GB, [0, 8], topology)
    assert slowdowns([demand(flows, topology, 2.0)] * 2, topology) == pytest.approx([1.0, 1.0])
    assert slowdowns([demand(flows, topology, 1 / 0.75)] * 2, topology) == pytest.approx([1.5, 1.5], rel=1e-6)
    quarter = slowdowns([demand(flows, topology, 4.0), demand(flows, topology, 1.0)], topology)
    assert quarter[0] == pytest.approx(1.0)
    assert quarter[1] == pytest.approx(4 / 3, rel=1e-6)


@pytest.mark.parametrize(
    ("paths", "words"), [(([0, 1], [2]), "numbered from 0 to 0"), (([0, 2], [0, 0]), "uses a link twice")]
)
def test_paths_that_cannot_be_are_a_mistake(paths, words):
    with pytest.raises(AssertionError, match=words):
        replay_flows([0], [1], *paths, [1.0])
