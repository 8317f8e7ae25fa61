from __future__ import annotations

from windtunnel.physics.engine import critical_path, exposed, replay
from windtunnel.physics.graph import GraphBuilder, OpKind


def two_ranks() -> GraphBuilder:
    """Rank 0: host 0-2, compute 2-12, all-reduce 12-32 beside compute 12-20. Rank 1: compute 0-5, the all-reduce."""
    b = GraphBuilder()
    host, compute, link = (b.stream(0, name) for name in ("host", "compute", "link"))
    launch = b.op(OpKind.HOST, host, duration_ns=2, category="launch")
    forward = b.op(OpKind.COMPUTE, compute, duration_ns=10, category="gemm", after=[launch])
    b.op(OpKind.COLLECTIVE, link, duration_ns=20, category="dp", after=[forward], rendezvous="all")
    b.op(OpKind.COMPUTE, compute, duration_ns=8, category="norm")
    early = b.op(OpKind.COMPUTE, b.stream(1, "compute"), duration_ns=5, category="gemm")
    reduce = b.op(
        OpKind.COLLECTIVE, b.stream(1, "link"), duration_ns=15, category="dp", after=[early], rendezvous="all"
    )
    b.op(OpKind.COMPUTE, b.stream(1, "compute"), duration_ns=1, category="norm", after=[reduce])
    return b


def test_exposure_by_hand() -> None:
    b = two_ranks()
    g = b.build()
    split = exposed(replay(g, b.duration_ns()), g)
    launch, gemm, dp, norm = (g.categories.index(name) for name in ("launch", "gemm", "dp", "norm"))
    assert split.total_ns == 32
    assert split.host_ns[:, launch].tolist() == [2, 0]
    assert split.compute_ns[:, gemm].tolist() == [10, 5]
    assert split.compute_ns[:, norm].tolist() == [8, 1]
    assert split.communication_ns[:, dp].tolist() == [12, 15]
    assert split.idle_ns[:, dp].tolist() == [0, 7], "rank 1 waits for the last member of its collective"
    assert split.idle_ns.sum() == 7
    assert split.tail_ns.tolist() == [0, 4]


def test_a_zero_length_receive_owns_the_gap_that_it_ends() -> None:
    b = GraphBuilder()
    sent = b.op(OpKind.COMPUTE, b.stream(0, "compute"), duration_ns=9, category="gemm")
    got = b.op(OpKind.RECV, b.stream(1, "link"), after=[sent], category="pp")
    b.op(OpKind.COMPUTE, b.stream(1, "compute"), duration_ns=2, after=[got], category="gemm")
    g = b.build()
    split = exposed(replay(g, b.duration_ns()), g)
    assert split.idle_ns[1, g.categories.index("pp")] == 9
    assert split.tail_ns.tolist() == [2, 0]


def test_the_earliest_started_communication_owns_the_time() -> None:
    b = GraphBuilder()
    b.op(OpKind.COMPUTE, b.stream(0, "compute"), duration_ns=1, category="gemm")
    b.op(OpKind.COLLECTIVE, b.stream(0, "late"), duration_ns=9, category="late", after=[0])
    b.op(OpKind.COLLECTIVE, b.stream(0, "early"), duration_ns=5, category="early")
    g = b.build()
    split = exposed(replay(g, b.duration_ns()), g)
    assert split.communication_ns[0, g.categories.index("early")] == 4
    assert split.communication_ns[0, g.categories.index("late")] == 5


def test_a_program_without_ops_only_waits() -> None:
    b = GraphBuilder()
    b.stream(1, "compute")
    b.op(OpKind.COMPUTE, b.stream(0, "compute"), duration_ns=6)
    g = b.build()
    assert exposed(replay(g, b.duration_ns()), g).tail_ns.tolist() == [0, 6]


def test_the_critical_path_crosses_ranks_through_a_rendezvous() -> None:
    b = two_ranks()
    g = b.build()
    assert critical_path(g, replay(g, b.duration_ns())).tolist() == [0, 1, 2]
    b.op(OpKind.COMPUTE, b.stream(1, "compute"), duration_ns=50, category="gemm")
    g = b.build()
    # Rank 1's part of the all-reduce (op 5) starts when rank 0's forward (op 1) ends.
    assert critical_path(g, replay(g, b.duration_ns())).tolist() == [0, 1, 5, 6, 7]
