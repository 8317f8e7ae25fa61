from __future__ import annotations

import numpy as np
import pytest

from windtunnel.errors import ScheduleError
from windtunnel.physics.engine import Slowdown, Timeline, replay
from windtunnel.physics.graph import Graph, GraphBuilder, OpKind


def times(b: GraphBuilder, slowdown: Slowdown | None = None) -> list[tuple[int, int]]:
    line = replay(b.build(), b.duration_ns(), slowdown)
    return list(zip(line.start_ns.tolist(), line.end_ns.tolist(), strict=True))


def slow(classes: list[int], factor: list[list[float]]) -> Slowdown:
    return Slowdown(np.array(classes, dtype=np.uint8), np.array(factor, dtype=np.float64))


def side_by_side(first: int, second: int, *, ranks: tuple[int, int] = (0, 0)) -> GraphBuilder:
    b = GraphBuilder()
    b.op(OpKind.COMPUTE, b.stream(ranks[0], "compute"), duration_ns=first)
    b.op(OpKind.COLLECTIVE, b.stream(ranks[1], "link"), duration_ns=second)
    return b


FACTORS = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.25], [0.0, 1.0, 0.0]]


def test_an_op_waits_for_its_stream_and_its_dependencies() -> None:
    b = GraphBuilder()
    s, t = b.stream(0, "compute"), b.stream(0, "link")
    x = b.op(OpKind.COMPUTE, s, duration_ns=10)
    y = b.op(OpKind.COLLECTIVE, t, duration_ns=30, after=[x])
    b.op(OpKind.COMPUTE, s, duration_ns=5)
    b.op(OpKind.COMPUTE, s, duration_ns=1, after=[x, y])
    assert times(b) == [(0, 10), (10, 40), (10, 15), (40, 41)]


def test_a_dependency_may_come_later_in_the_arrays() -> None:
    b = GraphBuilder()
    b.op(OpKind.COMPUTE, b.stream(0, "compute"), duration_ns=1, after=[1])
    b.op(OpKind.COMPUTE, b.stream(1, "compute"), duration_ns=7)
    assert times(b) == [(7, 8), (0, 7)]


def test_a_collective_begins_with_its_last_member_and_members_may_differ_in_length() -> None:
    b = GraphBuilder()
    for rank, late in enumerate([3, 20, 11]):
        b.op(OpKind.COMPUTE, b.stream(rank, "compute"), duration_ns=late)
        b.op(OpKind.COLLECTIVE, b.stream(rank, "compute"), duration_ns=5 + rank, rendezvous="all")
    assert times(b)[1::2] == [(20, 25), (20, 26), (20, 27)]


def test_many_streams_may_wait_for_one_op_and_one_op_for_many() -> None:
    b = GraphBuilder()
    root = b.op(OpKind.COMPUTE, b.stream(0, "root"), duration_ns=4)
    leaves = [b.op(OpKind.COMPUTE, b.stream(0, f"s{i}"), duration_ns=i, after=[root]) for i in range(500)]
    join = b.op(OpKind.COMPUTE, b.stream(0, "root"), duration_ns=1, after=leaves)
    assert times(b)[join] == (503, 504)


def test_an_empty_graph_takes_no_time() -> None:
    line = replay(GraphBuilder().build(), np.zeros(0, np.int64))
    assert line.makespan_ns == 0
    nothing = Slowdown(np.zeros(0, np.uint8), np.zeros((1, 1)))
    assert replay(GraphBuilder().build(), np.zeros(0, np.int64), nothing).makespan_ns == 0


def test_read_only_arrays_are_fine() -> None:
    b = side_by_side(3, 4)
    g, duration = b.build(), b.duration_ns()
    for name in ("stream", "dep_ptr", "dep_idx", "rendezvous"):
        getattr(g, name).setflags(write=False)
    duration.setflags(write=False)
    assert replay(g, duration).makespan_ns == 4


def test_full_overlap_by_hand() -> None:
    # Equal overlap: class 1 goes at 1 / 1.25, class 2 at 1 / 2. The first ends 1000 of work at 1250; by then the second
    # has done 625 of its 1000, and the rest goes at full rate: 1250 + 375.
    assert times(side_by_side(1000, 1000), slow([1, 2], FACTORS)) == [(0, 1250), (0, 1625)]


def test_partial_overlap_by_hand() -> None:
    # The short collective does 100 at rate 1/2: until 200. The compute has done 160 by then: 200 + 840.
    assert times(side_by_side(1000, 100), slow([1, 2], FACTORS)) == [(0, 1040), (0, 200)]


def test_other_programs_do_not_interfere() -> None:
    assert times(side_by_side(1000, 1000, ranks=(0, 1)), slow([1, 2], FACTORS)) == [(0, 1000), (0, 1000)]


def test_class_zero_has_no_part_in_it() -> None:
    assert times(side_by_side(1000, 1000), slow([0, 2], FACTORS)) == [(0, 1000), (0, 1000)]


def test_a_class_slows_itself_only_with_a_second_op() -> None:
    factor = [[0.0, 0.0], [0.0, 1.0]]
    assert times(side_by_side(100, 100), slow([1, 1], factor)) == [(0, 200), (0, 200)]
    b = GraphBuilder()
    b.op(OpKind.COMPUTE, b.stream(0, "compute"), duration_ns=100)
    assert times(b, slow([1], factor)) == [(0, 100)]


def test_a_class_counts_once_and_different_classes_add() -> None:
    factor = [[0.0] * 4, [0.0, 0.0, 0.5, 0.25], [0.0] * 4, [0.0] * 4]
    for classes, expected in (([1, 2, 2], 150), ([1, 2, 3], 175)):
        b = GraphBuilder()
        for i in range(3):
            b.op(OpKind.COMPUTE, b.stream(0, f"s{i}"), duration_ns=100 if i == 0 else 1000)
        assert times(b, slow(classes, factor))[0] == (0, expected)


def test_a_collective_goes_at_the_rate_of_its_slowest_member_and_ends_together() -> None:
    b = GraphBuilder()
    b.op(OpKind.COMPUTE, b.stream(0, "compute"), duration_ns=1000)
    for rank in range(2):
        b.op(OpKind.COLLECTIVE, b.stream(rank, "link"), duration_ns=400, rendezvous="all")
    # Rank 0's member is at half rate while its compute runs (400 of work: until 800), so rank 1's is too.
    # The compute has then done 800 / 1.25 = 640.
    assert times(b, slow([1, 2, 2], FACTORS)) == [(0, 1160), (0, 800), (0, 800)]


def test_a_slow_member_that_has_ended_holds_nobody_back() -> None:
    b = GraphBuilder()
    b.op(OpKind.COMPUTE, b.stream(0, "compute"), duration_ns=1000)
    b.op(OpKind.COLLECTIVE, b.stream(0, "link"), duration_ns=10, rendezvous="all")
    b.op(OpKind.COLLECTIVE, b.stream(1, "link"), duration_ns=400, rendezvous="all")
    # At half rate both until 20, when rank 0's short part ends; the other has 390 left.
    assert times(b, slow([1, 2, 2], FACTORS))[1:] == [(0, 20), (0, 410)]


def test_a_slowed_op_speeds_up_again_when_it_is_alone() -> None:
    b = GraphBuilder()
    s, t = b.stream(0, "compute"), b.stream(0, "link")
    b.op(OpKind.COLLECTIVE, t, duration_ns=1000)
    b.op(OpKind.HOST, s, duration_ns=200)
    b.op(OpKind.COMPUTE, s, duration_ns=80)
    # 200 alone, then 100 of time at half rate (the compute takes 80 * 1.25), then 750 alone.
    assert times(b, slow([2, 0, 1], FACTORS)) == [(0, 1050), (0, 200), (200, 300)]


def test_a_deadlock_names_the_ops() -> None:
    b = GraphBuilder()
    b.op(OpKind.SEND, b.stream(0, "link"), label="send 0", after=[1])
    b.op(OpKind.RECV, b.stream(1, "link"), label="receive 0", after=[0])
    for slowdown in (None, slow([1, 1], [[0.0, 0.0], [0.0, 0.0]])):
        with pytest.raises(ScheduleError, match=r"deadlock: 2 of 2 .*'send 0'.* waits for op 1 'receive 0'"):
            times(b, slowdown)


def test_indices_outside_the_arrays_are_refused_before_compiled_code_follows_them() -> None:
    b = side_by_side(1, 1)
    g = b.build()
    g.stream[1] = 7
    for slowdown in (None, slow([1, 2], FACTORS)):
        with pytest.raises(AssertionError, match="outside its array"):
            replay(g, b.duration_ns(), slowdown)
    g.stream[1] = 1
    g.stream_rank[1] = 5
    with pytest.raises(AssertionError, match="outside its array"):
        replay(g, b.duration_ns(), slow([1, 2], FACTORS))


def test_negative_durations_and_wrong_factors_are_refused() -> None:
    b = side_by_side(5, -1)
    with pytest.raises(AssertionError, match="negative duration -1 ns of op 1"):
        times(b)
    with pytest.raises(AssertionError, match="finite"):
        slow([1], [[0.0, 0.0], [0.0, -1.0]])
    with pytest.raises(AssertionError, match="class 0"):
        slow([1], [[0.0, 1.0], [0.0, 0.0]])
    with pytest.raises(AssertionError, match="without a factor"):
        slow([2], [[0.0, 0.0], [0.0, 0.0]])


def test_makespan() -> None:
    line = Timeline(np.array([0, 3]), np.array([9, 4]))
    assert line.makespan_ns == 9
    assert isinstance(replay(GraphBuilder().build(), np.zeros(0, np.int64)), Timeline)
    assert isinstance(side_by_side(1, 1).build(), Graph)
