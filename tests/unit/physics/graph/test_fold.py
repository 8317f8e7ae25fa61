from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from exact_fold import fold
from valid_graph import validate

from windtunnel.errors import UserError
from windtunnel.physics.engine import replay
from windtunnel.physics.graph import Graph, GraphBuilder, OpKind
from windtunnel.physics.graph import footprint as measures
from windtunnel.physics.graph.fold import refine
from windtunnel.physics.graph.footprint import available_bytes, graph_bytes, refuse_if_too_large, replay_bytes


def grid(stages: int, replicas: int, extra: dict[int, int] | None = None) -> tuple[Graph, np.ndarray]:
    """Program stage * replicas + replica: a kernel after the stage before, then an all-reduce over the replicas.

    `extra[program]`: nanoseconds that its kernel takes longer.
    """
    b = GraphBuilder()
    last: dict[int, int] = {}
    for program in range(stages * replicas):
        stage, replica = divmod(program, replicas)
        kernel = b.op(
            OpKind.COMPUTE,
            b.stream(program, "compute"),
            after=[last[program - replicas]] if stage else [],
            duration_ns=100 + (extra or {}).get(program, 0),
            label=f"kernel of replica {replica}",
        )
        last[program] = kernel
        b.op(OpKind.COLLECTIVE, b.stream(program, "dp"), after=[kernel], duration_ns=10, rendezvous=("dp", stage))
    return b.build(), b.duration_ns()


def test_an_undisturbed_job_folds_to_its_stages() -> None:
    graph, duration = grid(stages=3, replicas=5)
    folded = fold(graph, duration)
    assert folded.class_of.tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert folded.graph.multiplicity.tolist() == [5, 5, 5]
    assert folded.op_of.tolist() == [0, 1, 10, 11, 20, 21]
    assert folded.graph.dep_idx.tolist() == [0, 0, 2, 2, 4]
    assert folded.graph.rendezvous.tolist() == [-1, 1, -1, 3, -1, 5]
    assert folded.graph.stream_names == ("compute", "dp") * 3
    validate(folded.graph)
    full, short = replay(graph, duration), replay(folded.graph, folded.duration_ns)
    assert folded.unfold(short.end_ns).tolist() == full.end_ns.tolist()


def test_one_slow_program_splits_exactly_those_that_can_tell() -> None:
    graph, duration = grid(stages=3, replicas=5, extra={7: 50})  # stage 1, replica 2
    classes = fold(graph, duration).class_of.reshape(3, 5)
    # The stage before waits for nobody behind it; the stage itself has one slow member; the stage behind one fed late.
    assert classes.tolist() == [[0] * 5, [1, 1, 2, 1, 1], [3, 3, 4, 3, 3]]


def test_what_is_equal_by_another_route_is_one_class() -> None:
    # Program 0 waits for its own op twice; program 1 for that of its twin 2, and 2 for that of 1.
    b = GraphBuilder()
    heads = [b.op(OpKind.COMPUTE, b.stream(p, "a"), duration_ns=3) for p in range(3)]
    for program, waits in enumerate([[heads[0], heads[0]], [heads[2]], [heads[1]]]):
        b.op(OpKind.COMPUTE, b.stream(program, "b"), after=waits, duration_ns=4)
    folded = fold(b.build(), b.duration_ns())
    assert folded.class_of.tolist() == [0, 0, 0]
    assert folded.graph.dep_idx.tolist() == [0], "a dependency stands once in the folded graph"


def test_whom_an_op_waits_for_matters_also_where_another_waits_within() -> None:
    b = GraphBuilder()
    heads = [b.op(OpKind.COMPUTE, b.stream(p, "a"), duration_ns=length) for p, length in enumerate([3, 3, 9])]
    for program, head in enumerate([0, 2, 2]):
        b.op(OpKind.COMPUTE, b.stream(program, "b"), after=[heads[head]], duration_ns=4)
    assert fold(b.build(), b.duration_ns()).class_of.tolist() == [0, 1, 2]


@pytest.mark.parametrize("by", ["rendezvous", "dependency"])
def test_it_matters_which_op_of_whom_is_seen(by: str) -> None:
    # Two observers see the same two ops of the same two programs, but each the late op of the other one.
    b = GraphBuilder()
    late: dict[int, int] = {}
    early: dict[int, int] = {}
    for program, length in ((2, 100), (3, 200)):
        head = b.op(OpKind.COMPUTE, b.stream(program, "a"), duration_ns=length)
        group = {"rendezvous": program} if by == "rendezvous" else {}
        late[program] = b.op(OpKind.COLLECTIVE, b.stream(program, "b"), after=[head], duration_ns=1, **group)
        group = {"rendezvous": 5 - program} if by == "rendezvous" else {}
        early[program] = b.op(OpKind.COLLECTIVE, b.stream(program, "c"), duration_ns=1, **group)
    for program in range(2):
        sees = [late[program + 2], early[3 - program]]
        if by == "rendezvous":
            b.op(OpKind.COLLECTIVE, b.stream(program, "a"), duration_ns=1, rendezvous=program + 2)
        else:
            b.op(OpKind.COLLECTIVE, b.stream(program, "a"), duration_ns=1, after=sees)
    graph, duration = b.build(), b.duration_ns()
    assert fold(graph, duration).class_of.tolist() == [0, 1, 2, 3]
    assert replay(graph, duration).start_ns[-2:].tolist() == [100 + (by != "rendezvous"), 200 + (by != "rendezvous")]


def test_the_sizes_of_rendezvous_do_not_matter_once_ops_are_priced() -> None:
    b = GraphBuilder()
    for program in range(5):
        b.op(OpKind.COLLECTIVE, b.stream(program, "a"), duration_ns=7, rendezvous=program < 2)
    folded = fold(b.build(), b.duration_ns())
    assert folded.graph.n_programs == 1
    assert folded.graph.multiplicity.tolist() == [5]


def test_interference_columns_and_multiplicity() -> None:
    graph, duration = grid(stages=1, replicas=4)
    shares = np.zeros(graph.n_ops, np.uint8)
    shares[0] = 1
    assert fold(graph, duration).class_of.tolist() == [0, 0, 0, 0]
    split = fold(graph, duration, shares)
    assert split.class_of.tolist() == [0, 1, 1, 1]
    assert split.interference is not None
    assert split.interference.tolist() == [1, 0, 0, 0]
    assert fold(graph, duration, same=("label",)).class_of.tolist() == [0, 1, 2, 3], "labels only when asked for"
    bytes_moved = graph.bytes.copy()
    bytes_moved[-1] = 8.0
    heavier = replace(graph, bytes=bytes_moved, multiplicity=np.array([3, 1, 1, 2]))
    assert fold(heavier, duration).graph.multiplicity.tolist() == [5, 2]
    assert fold(heavier, duration, same=()).graph.multiplicity.tolist() == [7]


def test_streams_are_matched_by_name_wherever_their_ops_lie() -> None:
    b = GraphBuilder()
    for program, names in enumerate([("x", "y", "unused"), ("y", "x")]):
        for name in names:
            b.stream(program, name)
    for program, name in [(0, "x"), (1, "y"), (1, "x"), (0, "y")]:
        b.op(OpKind.COMPUTE, b.stream(program, name), duration_ns=5 if name == "x" else 6)
    graph = b.build()
    assert fold(graph, b.duration_ns()).class_of.tolist() == [0, 0]
    assert fold(replace(graph, stream_names=()), b.duration_ns()).class_of.tolist() == [0, 1]


def test_small_graphs() -> None:
    empty = GraphBuilder().build()
    assert fold(empty, np.empty(0, np.int64)).graph.n_programs == 0
    idle = GraphBuilder().build(multiplicity=[2, 3])
    folded = fold(idle, np.empty(0, np.int64))
    assert folded.graph.multiplicity.tolist() == [5]
    alone, duration = grid(stages=2, replicas=1)
    assert fold(alone, duration).graph is alone, "nothing to fold, nothing copied"


def test_ranks_by_what_their_communicators_show() -> None:
    ranks = np.arange(24).reshape(3, 4, 2)  # stage, replica, tensor
    tensor, data, pipeline = ranks.reshape(-1, 2), ranks.swapaxes(1, 2).reshape(-1, 4), ranks.reshape(3, -1).T
    slow = np.zeros(24, np.int64)
    assert refine(slow, [tensor, data, pipeline]).tolist() == [0] * 24
    stage = np.repeat(np.arange(3), 8)
    assert refine(stage, [tensor, data, pipeline]).tolist() == [0] * 8 + [1] * 8 + [2] * 8
    slow[0] = 1
    assert refine(slow, [tensor]).tolist() == [0, 1] + [2] * 22
    assert refine(slow, [data]).tolist() == [0, 1] + [2, 1] * 3 + [1] * 16
    assert int(refine(2 * stage + slow, [tensor, data, pipeline]).max()) + 1 == 12
    # Counted: a pair and a triple of the same colour are not the same to a rank.
    counted = refine(np.zeros(5, np.int64), [np.array([[0, 1]]), np.array([[2, 3, 4]])])
    assert counted.tolist() == [0, 0, 1, 1, 1]
    mixed = refine(np.array([0, 0, 1, 0, 1, 1]), [np.array([[0, 1, 2], [3, 4, 5]])])
    assert mixed.tolist() == [0, 0, 1, 2, 3, 3], "two of one colour are not two of the other"
    assert refine(np.zeros(3, np.int64), [np.array([[2, 0]])]).tolist() == [0, 1, 0], "whoever meets nobody can tell"
    assert refine(np.array([7, 7, 3]), []).tolist() == [0, 0, 1]
    assert refine(np.empty(0, np.int64), []).tolist() == []
    with pytest.raises(AssertionError, match="twice in one family"):
        refine(np.zeros(2, np.int64), [np.array([[0, 1], [1, 0]])])


def test_the_footprint_is_what_the_arrays_take() -> None:
    graph, duration = grid(stages=4, replicas=50)
    arrays = [getattr(graph, name) for name in graph.__dataclass_fields__]
    held = sum(array.nbytes for array in arrays if isinstance(array, np.ndarray))
    promised = graph_bytes(graph.n_ops, len(graph.dep_idx), graph.n_streams)
    assert held <= promised <= held + 8 + 4 * graph.n_streams + 8 * graph.n_programs
    timeline = replay(graph, duration)
    times = duration.nbytes + timeline.start_ns.nbytes + timeline.end_ns.nbytes
    # Three int32 per op, and for each rendezvous two and an int64.
    assert replay_bytes(graph.n_ops, 0) >= times + 12 * graph.n_ops + 16 * 4


def test_the_memory_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 << 26 < available_bytes() < 1 << 50
    files = {"/proc/meminfo": "MemTotal: 9 kB\nMemAvailable:   4096 kB\n", "/sys/fs/cgroup/memory.max": "max\n"}
    monkeypatch.setattr(measures, "_text", lambda name: files.get(name, ""))
    assert available_bytes() == 4096 * 1024
    files["/sys/fs/cgroup/memory.max"] = "1000000\n"
    assert available_bytes() == 1_000_000
    files.clear()
    assert available_bytes() > 1 << 26, "without /proc: what the machine has"


def test_what_does_not_fit_is_refused_with_the_fold_that_would() -> None:
    big = (100_000_000, 120_000_000, 400_000)
    refuse_if_too_large(*big, available=10 * measures.GIB)
    with pytest.raises(
        UserError,
        match=r"100,000,000 ops needs 9\.9 GiB to be replayed, and 1\.0 GiB are free; "
        r"folded to 37 programs it needs 0\.1 GiB: leave it folded",
    ):
        refuse_if_too_large(*big, folded=(37, 1_000_000), available=measures.GIB)
    with pytest.raises(UserError, match=r"even folded to 1 program it needs 0\.1 GiB: simulate fewer ranks"):
        refuse_if_too_large(*big, folded=(1, 1_000_000), available=measures.GIB // 100)
    with pytest.raises(UserError, match="simulate fewer ranks or micro-batches"):
        refuse_if_too_large(*big, available=measures.GIB)
    with pytest.raises(UserError, match="at most 2,147,483,647 can be replayed"):
        refuse_if_too_large(1 << 31, 0, 1, available=1 << 50)
