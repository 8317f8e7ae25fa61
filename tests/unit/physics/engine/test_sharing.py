"""Ops that share links inside a graph: ends by hand, collectives on real topologies, what is left out and refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from link_flows import Demand, demand, flows_of, sharing_of
from logged_replay import replay_logged

from windtunnel.errors import ScheduleError
from windtunnel.physics.cost.communication.collectives import collective, group_of
from windtunnel.physics.engine import Sharing, Slowdown, replay
from windtunnel.physics.engine.sharing import contenders
from windtunnel.physics.graph import GraphBuilder, OpKind
from windtunnel.physics.hardware import cluster_with, parse_cluster
from windtunnel.physics.hardware.topology import topology_of

MIB = 1 << 20
CLUSTER = parse_cluster("h100-sxm:128")


def sharing(demand_of, paths, capacity, weight=None):
    """`paths`: per demand, link -> use."""
    return Sharing(
        np.array(demand_of, np.int32),
        np.cumsum([0, *map(len, paths)]),
        np.array([link for path in paths for link in path], np.int32),
        np.array([use for path in paths for use in path.values()], np.float64),
        np.array(weight or [1.0] * len(paths), np.float64),
        np.array(capacity, np.float64),
    )


def side_by_side(durations, together=False, kind=OpKind.COLLECTIVE, programs=None):
    """One op per stream, on as many programs."""
    builder = GraphBuilder()
    for i, ns in enumerate(durations):
        program = programs[i] if programs else i
        builder.op(kind, builder.stream(program, f"s{i}"), duration_ns=ns, rendezvous="all" if together else None)
    return builder.build(), builder.duration_ns()


def ends(found):
    return found.end_ns.tolist()


def test_only_the_time_together_is_slow():
    # 100 and 30 on one link: halves until 60, when the short one is through with 70 of the other left.
    graph, durations = side_by_side([100, 30])
    one = sharing([0, 0], [{0: 1.0}], [1.0])
    assert ends(replay(graph, durations, None, one)) == [130, 60]
    _, log = replay_logged(graph, durations, None, one)
    assert list(zip(*map(np.ndarray.tolist, log), strict=True)) == [
        (0, 0, 0.5),
        (0, 1, 0.5),
        (60, 1, 0.0),
        (60, 0, 1.0),
        (130, 0, 0.0),
    ]


def test_a_next_op_with_the_same_demand_takes_over():
    builder = GraphBuilder()
    for _ in range(3):
        builder.op(OpKind.COLLECTIVE, builder.stream(0, "a"), duration_ns=10)
    builder.op(OpKind.COLLECTIVE, builder.stream(1, "b"), duration_ns=25)
    one = sharing([0, 0, 0, 1], [{0: 1.0}, {0: 1.0}], [1.0])
    assert ends(replay(builder.build(), builder.duration_ns(), None, one)) == [20, 40, 55, 50]


def test_an_op_that_alone_asks_too_much_is_slower_even_alone():
    graph, durations = side_by_side([100])
    assert ends(replay(graph, durations, None, sharing([0], [{0: 4.0}], [1.0]))) == [400]


def test_a_pass_that_uses_part_of_a_nic_leaves_the_rest():
    """A macro-op of compute whose inside takes 0.4 of the NIC, beside a collective that could use all of it."""
    builder = GraphBuilder()
    builder.op(OpKind.COMPUTE, builder.stream(0, "compute"), duration_ns=1000)
    builder.op(OpKind.COLLECTIVE, builder.stream(0, "comm"), duration_ns=300)
    found = replay(builder.build(), builder.duration_ns(), None, sharing([0, 1], [{0: 0.4}, {0: 1.0}], [1.0]))
    # Equal speeds of 1 / 1.4 until the collective is through after 420 ns; the pass then has 700 ns left.
    assert ends(found) == [1120, 420]
    light = replay(builder.build(), builder.duration_ns(), None, sharing([0, 1], [{0: 0.4}, {0: 1.0}], [1.0], [2.5, 1]))
    # With weights as of equal bytes the pass keeps its 0.4; the collective has 0.6 for 500 ns.
    assert ends(light) == [1000, 500]


def test_members_of_a_rendezvous_are_one_flow_until_the_last_ends():
    # Three members, one demand, beside one op: halves, not quarters. The flow stays while its longest member runs.
    builder = GraphBuilder()
    for rank, ns in enumerate((100, 40, 0)):
        builder.op(OpKind.COLLECTIVE, builder.stream(rank, "comm"), duration_ns=ns, rendezvous="r")
    builder.op(OpKind.COLLECTIVE, builder.stream(3, "comm"), duration_ns=300)
    graph, durations = builder.build(), builder.duration_ns()
    for given in ([0, -1, -1, 1], [-1, 0, 0, 1], [0, 0, 0, 1]):
        found = replay(graph, durations, None, sharing(given, [{0: 1.0}, {0: 1.0}], [1.0]))
        assert ends(found) == [200, 80, 0, 400]


def test_a_flow_starts_with_its_last_member():
    builder = GraphBuilder()
    builder.op(OpKind.COMPUTE, builder.stream(0, "compute"), duration_ns=50)
    builder.op(OpKind.COLLECTIVE, builder.stream(0, "comm"), after=[0], duration_ns=100, rendezvous="r")
    builder.op(OpKind.COLLECTIVE, builder.stream(1, "comm"), duration_ns=100, rendezvous="r")
    builder.op(OpKind.COLLECTIVE, builder.stream(2, "comm"), duration_ns=80)
    found = replay(builder.build(), builder.duration_ns(), None, sharing([-1, 0, 0, 1], [{0: 1.0}] * 2, [1.0]))
    # Alone for 50 ns, then both at half: the op has 30 left and ends at 110, the collective at 180.
    assert ends(found) == [50, 180, 180, 110]


def test_what_interference_keeps_a_flow_from_taking_is_left_to_others():
    """Compute on its GPU holds one flow at 1/4; the other gets 3/4 of the link, not half."""
    builder = GraphBuilder()
    builder.op(OpKind.COMPUTE, builder.stream(0, "compute"), duration_ns=400)
    builder.op(OpKind.COLLECTIVE, builder.stream(0, "comm"), duration_ns=100)
    builder.op(OpKind.COLLECTIVE, builder.stream(1, "comm"), duration_ns=300)
    slowdown = Slowdown(np.array([1, 2, 0], np.uint8), np.array([[0, 0, 0], [0, 0, 0], [0, 3.0, 0]]))
    one = sharing([-1, 0, 1], [{0: 1.0}] * 2, [1.0])
    assert ends(replay(builder.build(), builder.duration_ns(), slowdown, one)) == [400, 400, 400]
    # Class 0 shares links all the same.
    nobody = Slowdown(np.zeros(3, np.uint8), slowdown.factor)
    assert ends(replay(builder.build(), builder.duration_ns(), nobody, one)) == [400, 200, 400]


def test_ops_that_only_might_have_met_need_no_loop_of_flows(monkeypatch):
    # The bound sees two streams on one link; the second op waits for the first, so the link is never asked for two.
    builder = GraphBuilder()
    first = builder.op(OpKind.COLLECTIVE, builder.stream(0, "s0"), duration_ns=10)
    builder.op(OpKind.COLLECTIVE, builder.stream(0, "s1"), duration_ns=10, after=[first])
    graph, durations = builder.build(), builder.duration_ns()
    one = sharing([0, 0], [{0: 1.0}], [1.0])
    found = contenders(graph, durations, one)
    assert found is not None
    assert found.fit(np.array([0, 10]), np.array([10, 20]))
    assert not found.fit(np.array([0, 9]), np.array([10, 19]))

    def refused(*_):
        raise AssertionError("flows were followed")

    monkeypatch.setattr(sys.modules["windtunnel.physics.engine.replay"], "_shared", refused)
    assert ends(replay(graph, durations, None, one)) == [10, 20]


def test_links_that_cannot_be_too_narrow_are_left_out():
    # Streams 0 and 1 meet on link 0 (2 > 1.5); link 1 takes both; link 2 is one stream's, whose ops never meet.
    builder = GraphBuilder()
    for stream in (0, 1, 1):
        builder.op(OpKind.COLLECTIVE, builder.stream(0, f"s{stream}"), duration_ns=10)
    graph, durations = builder.build(), builder.duration_ns()
    paths = [{0: 1.0, 1: 1.0}, {0: 1.0, 1: 1.0}, {2: 1.0}]
    found = contenders(graph, durations, sharing([0, 1, 2], paths, [1.5, 2.0, 1.0]))
    assert found is not None
    assert found.flow.tolist() == [0, 1, -1]
    assert found.network().links["capacity"].tolist() == [1.5, 1.0, 1.0]
    assert contenders(graph, durations, sharing([0, 1, 2], paths, [2.0, 2.0, 1.0])) is None
    assert contenders(graph, durations * 0, sharing([0, 1, 2], paths, [1.5, 2.0, 1.0])) is None


def test_of_links_used_alike_one_is_followed():
    graph, durations = side_by_side([10, 20])
    paths = [{0: 1.0, 1: 2.0, 2: 1.0, 3: 1.0}, {0: 1.0, 1: 2.0, 2: 1.0, 3: 0.9}]
    found = contenders(graph, durations, sharing([0, 1], paths, [1.0, 2.0, 1.0, 1.0]))
    assert found is not None
    # Links 0 (for 1 and 2) and 3, and one of each flow.
    assert found.network().links["capacity"].tolist() == [1.0, 1.0, 1.0, 1.0]


def slowed(sizes_and_groups, topology, prices=None):
    """Time of collectives side by side over time alone, each on its own program and stream."""
    demands = [
        demand(flows_of(kind, size, ranks, topology), topology, None if prices is None else prices[i])
        for i, (kind, size, ranks) in enumerate(sizes_and_groups)
    ]
    graph, durations = side_by_side([round(one.seconds * 1e9) for one in demands])
    shared = sharing_of(np.arange(len(demands)), demands, topology.capacity_bytes_per_s)
    return (replay(graph, durations, None, shared).end_ns / durations).tolist()


EXPERTS, GRADIENTS = ("all_to_all", 256 * MIB), ("all_reduce", 128 * MIB)
RAIL = [range(first, 128, 8) for first in range(2)]


def test_all_to_all_and_all_reduce_on_one_nic_take_twice_as_long_and_on_two_no_longer():
    topology = topology_of(CLUSTER)
    assert slowed([(*EXPERTS, RAIL[0]), (*GRADIENTS, RAIL[0])], topology) == pytest.approx([2.0, 2.0], rel=1e-6)
    assert slowed([(*EXPERTS, RAIL[0]), (*GRADIENTS, RAIL[1])], topology) == [1.0, 1.0]


def test_as_priced_the_slowdown_is_near_what_was_measured():
    """A published study of MoE training measured a median of 1.83."""
    topology, group = topology_of(CLUSTER), group_of(16, 8, CLUSTER)
    prices = [collective(kind, size, group, CLUSTER).seconds for kind, size in (EXPERTS, GRADIENTS)]
    found = slowed([(*EXPERTS, RAIL[0]), (*GRADIENTS, RAIL[0])], topology, prices)
    assert all(1.6 < one < 2.0 for one in found)


@pytest.mark.parametrize(("ratio", "expected"), [(1.0, 1.0), (2.0, 1.0), (3.0, 1.5), (4.0, 2.0)])
def test_two_jobs_get_their_share_of_an_uplink(ratio, expected):
    """8 rings each leave a pod of 32 GPUs: 16 NICs' worth on 32 / ratio."""
    tree = topology_of(cluster_with(CLUSTER, rail_optimised=False, gpus_per_pod=32, oversubscription=ratio))
    jobs = [("all_reduce", 256 * MIB, [*range(at, at + 16), *range(at + 32, at + 48)]) for at in (0, 16)]
    assert slowed(jobs, tree) == pytest.approx([expected] * 2, rel=1e-6)


def test_two_rings_of_different_size_get_what_fair_queueing_gives_each_of_their_connections():
    """8 connections of one job and 1 of the other on an uplink of 8 NICs: 8/9 of a NIC each while both are there."""
    tree = topology_of(cluster_with(CLUSTER, rail_optimised=False, gpus_per_pod=32, oversubscription=4.0))
    jobs = [("all_reduce", 256 * MIB, [*range(16), *range(32, 48)]), ("all_reduce", 16 * MIB, [16, 48])]
    demands = [demand(flows_of(*job, tree), tree) for job in jobs]
    graph, durations = side_by_side([round(one.seconds * 1e9) for one in demands])
    found = replay(graph, durations, None, sharing_of([0, 1], demands, tree.capacity_bytes_per_s))
    large, small = durations.tolist()
    assert small < large
    together = small * 9 / 8
    assert ends(found) == pytest.approx([together + large - together * 8 / 9, together], abs=1)


@pytest.mark.parametrize(
    "change",
    [
        {"capacity": [0.0]},
        {"paths": [{0: -1.0}]},
        {"weight": [float("nan")]},
        {"paths": [{1: 1.0}]},
        {"demand_of": [0, 1]},
    ],
)
def test_what_makes_no_sense_is_a_mistake(change):
    with pytest.raises(AssertionError):
        sharing(**({"demand_of": [0, 0], "paths": [{0: 1.0}], "capacity": [1.0]} | change))


def test_partners_with_different_demands_are_a_mistake():
    graph, durations = side_by_side([10, 10, 10], together=True)
    with pytest.raises(AssertionError, match="one flow"):
        replay(graph, durations, None, sharing([0, 1, -1], [{0: 1.0}] * 2, [1.0]))


def test_a_link_twice_in_one_demand_is_a_mistake():
    graph, durations = side_by_side([10, 10])
    twice = Demand(np.array([0, 0], np.int32), np.ones(2), 1e-8, 1.0)
    with pytest.raises(AssertionError, match="a link twice"):
        replay(graph, durations, None, sharing_of([0, 0], [twice], [1.0]))


def test_a_deadlock_is_named_as_without_links():
    builder = GraphBuilder()
    builder.op(OpKind.COLLECTIVE, builder.stream(0, "a"), after=[1], duration_ns=5)
    builder.op(OpKind.COLLECTIVE, builder.stream(1, "a"), after=[0], duration_ns=5)
    builder.op(OpKind.COLLECTIVE, builder.stream(2, "a"), duration_ns=5)
    with pytest.raises(ScheduleError, match="deadlock"):
        replay(builder.build(), builder.duration_ns(), None, sharing([0, 0, 0], [{0: 1.0}], [1.0]))


def test_nothing_to_share():
    graph, durations = side_by_side([10, 10])
    for none in (sharing([-1, -1], [], []), sharing([0, 0], [{}], [])):
        assert ends(replay(graph, durations, None, none)) == [10, 10]
        timeline, log = replay_logged(graph, durations, None, none)
        assert ends(timeline) == [10, 10]
        assert len(log.op) == 0
    empty = GraphBuilder()
    assert ends(replay(empty.build(), empty.duration_ns(), None, sharing([], [{0: 1.0}], [1.0]))) == []


def test_the_engine_is_imported_without_the_compiler():
    code = "import sys, windtunnel.physics.engine; sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
