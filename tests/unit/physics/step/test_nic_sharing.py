"""Transfers of one GPU share its NIC max-min fairly; transfers of different GPUs do not meet."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.physics.graph import Graph, GraphBuilder, OpKind
from windtunnel.physics.step.nic_sharing import step_sharing
from windtunnel.physics.step.step import step_of

LONG = 1_000_000


def side_by_side(programs: int, per_program: int) -> Graph:
    """Transfers that could all run at once, each on a stream of its own."""
    build = GraphBuilder()
    for program in range(programs):
        for number in range(per_program):
            build.op(OpKind.COLLECTIVE, build.stream(program, f"s{number}"))
    return build.build()


def ends(graph: Graph, shares: list[float]) -> list[int]:
    n = graph.n_ops
    step = step_of(
        graph, np.full(n, LONG), np.zeros(n, np.uint8), np.zeros((1, 1)), np.array(shares),
        np.arange(graph.n_programs),
    )  # fmt: skip
    return [int(end) for end in step.replay().end_ns]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ([1.0, 1.0], [2.0, 2.0]),
        ([0.5, 0.5], [1.0, 1.0]),
        ([1.0, 0.3], [1.3, 1.0]),  # less than its fair part: it keeps all that it wants
        ([1.0, 0.8], [1.8, 1.6]),  # equal parts of the NIC, not equal slowdowns
        ([1.0, 0.0], [1.0, 1.0]),
    ],
)
def test_two_transfers_of_one_gpu(shares: list[float], expected: list[float]) -> None:
    assert ends(side_by_side(1, 2), shares) == pytest.approx([LONG * times for times in expected], abs=2)


def test_transfers_of_two_gpus_do_not_meet() -> None:
    assert ends(side_by_side(2, 1), [1.0, 1.0]) == [LONG, LONG]


def test_a_rendezvous_goes_as_its_busiest_member_can() -> None:
    """Program 0 has a transfer of its own beside a collective with program 1, which is held up there."""
    build = GraphBuilder()
    alone = build.op(OpKind.COLLECTIVE, build.stream(0, "own"))
    joint = [build.op(OpKind.COLLECTIVE, build.stream(one, "joint"), rendezvous="both") for one in (0, 1)]
    found = ends(build.build(), [1.0, 1.0, 1.0])
    assert found[alone] == pytest.approx(2 * LONG, abs=2)
    assert [found[one] for one in joint] == pytest.approx([2 * LONG] * 2, abs=2)


def test_equal_rendezvous_are_one_demand_and_nothing_shared_is_none() -> None:
    graph = side_by_side(3, 2)
    assert step_sharing(graph, np.zeros(6)) is None
    sharing = step_sharing(graph, np.array([0.5, 0.5, 0.5, 0.25, 0.0, 0.5]))
    assert sharing is not None
    assert sharing.demand_of[0] == sharing.demand_of[1] >= 0
    assert len({int(one) for one in sharing.demand_of[[0, 2, 3, 5]]}) == 4
    assert sharing.demand_of[4] == -1
    assert sharing.weight.tolist() == (1.0 / sharing.use).tolist()


def test_of_a_gpus_two_members_of_one_rendezvous_the_larger_share_counts() -> None:
    build = GraphBuilder()
    for stream in ("first", "second"):
        build.op(OpKind.COLLECTIVE, build.stream(0, stream), rendezvous="both")
    for shares in ([0.25, 0.75], [0.75, 0.25]):
        sharing = step_sharing(build.build(), np.array(shares))
        assert sharing is not None
        assert sharing.use.tolist() == [0.75]
