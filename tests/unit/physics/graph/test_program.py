from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from valid_graph import runnable, validate

from windtunnel.errors import ScheduleError, SpecError
from windtunnel.physics.graph import Graph, GraphBuilder, OpKind


def small() -> GraphBuilder:
    b = GraphBuilder()
    compute, link = b.stream(0, "compute"), b.stream(0, "link")
    a = b.op(OpKind.COMPUTE, compute, duration_ns=5, label="matmul", category="gemm", flops=2.0, bytes=3.0)
    b.op(OpKind.COLLECTIVE, link, after=[a], duration_ns=7, label="reduce", category="dp", rendezvous=("dp", 0))
    b.op(OpKind.COLLECTIVE, b.stream(1, "link"), duration_ns=7, label="reduce", category="dp", rendezvous=("dp", 0))
    return b


def changed(graph: Graph, **fields: object) -> Graph:
    return dataclasses.replace(graph, **fields)  # type: ignore[arg-type]


def test_the_builder_stores_what_it_was_given() -> None:
    b = small()
    assert b.stream(0, "link") == 1, "a stream is made once"
    g = b.build()
    validate(g)
    assert (g.n_ops, g.n_streams, g.n_programs) == (3, 3, 2)
    assert [OpKind(k) for k in g.kind] == [OpKind.COMPUTE, OpKind.COLLECTIVE, OpKind.COLLECTIVE]
    assert g.program.tolist() == [0, 0, 1]
    assert g.dep_ptr.tolist() == [0, 0, 1, 1]
    assert g.dep_idx.tolist() == [0]
    assert g.rendezvous.tolist() == [-1, 0, 0]
    assert [g.labels[i] for i in g.label] == ["matmul", "reduce", "reduce"]
    assert [g.categories[i] for i in g.category] == ["gemm", "dp", "dp"]
    assert g.flops.tolist() == [2.0, 0.0, 0.0]
    assert g.bytes.tolist() == [3.0, 0.0, 0.0]
    assert b.duration_ns().tolist() == [5, 7, 7]
    assert g.multiplicity.tolist() == [1, 1]
    assert b.build(multiplicity=[8, 4]).multiplicity.tolist() == [8, 4]


def test_an_empty_graph_is_valid() -> None:
    validate(GraphBuilder().build())


def test_a_wrong_dtype_fails_at_construction() -> None:
    g = small().build()
    with pytest.raises(AssertionError, match=r"Graph\.stream must be int32, not int64"):
        changed(g, stream=g.stream.astype(np.int64))
    with pytest.raises(AssertionError, match="contiguous"):
        changed(g, flops=np.zeros(6)[::2])


@pytest.mark.parametrize(
    ("field", "values", "message"),
    [
        ("kind", [0, 9, 1], r"kind\[1\] = 9: must be from 0 to 6"),
        ("stream", [0, 1, 3], r"stream\[2\] = 3: must be from 0 to 2"),
        ("stream_rank", [0, 0, 2], r"stream_rank\[2\] = 2"),
        ("dep_idx", [3], r"dep_idx\[0\] = 3"),
        ("dep_idx", [-1], r"dep_idx\[0\] = -1"),
        ("dep_ptr", [0, 0, 1, 2], "must rise from 0 to the number of dependencies, 1"),
        ("dep_ptr", [0, 1, 0, 1], "must rise"),
        ("rendezvous", [-1, 0], "must have 3 entries"),
        ("rendezvous", [-2, 0, 0], r"rendezvous\[0\] = -2"),
        ("label", [0, 1, 7], r"label\[2\] = 7"),
        ("category", [0, 1, 7], r"category\[2\] = 7"),
        ("multiplicity", [1, 0], r"multiplicity\[1\] = 0: must be at least 1"),
    ],
)
def test_validate_names_the_field_the_place_and_the_value(field: str, values: list[int], message: str) -> None:
    g = small().build()
    broken = changed(g, **{field: np.array(values, dtype=getattr(g, field).dtype)})
    with pytest.raises(SpecError, match=message):
        validate(broken)


def test_a_cycle_is_named() -> None:
    b = GraphBuilder()
    s, t = b.stream(0, "compute"), b.stream(1, "compute")
    b.op(OpKind.COMPUTE, s, label="fine")
    b.op(OpKind.COMPUTE, s, label="forward", after=[3])
    b.op(OpKind.COMPUTE, t, label="backward", after=[1])
    b.op(OpKind.COMPUTE, t, label="update")
    g = b.build()
    assert runnable(g).tolist() == [True, False, False, False]
    with pytest.raises(ScheduleError) as caught:
        validate(g)
    message = str(caught.value)
    assert "3 of 4 ops can never start" in message
    assert "'forward' (program 0, stream compute) waits for op 3 'update'" in message
    assert "'update' (program 1, stream compute) waits for op 2 'backward'" in message
    assert "'backward' (program 1, stream compute) waits for op 1 'forward'" in message


def test_collectives_in_opposite_order_deadlock() -> None:
    b = GraphBuilder()
    for rank, order in enumerate([("x", "y"), ("y", "x")]):
        for name in order:
            b.op(OpKind.COLLECTIVE, b.stream(rank, "link"), label=f"{name}{rank}", rendezvous=name)
    with pytest.raises(ScheduleError, match=r"'x0'.* waits for op 2 'y1' .*ahead of its rendezvous partner op 3 'x1'"):
        validate(b.build())


def test_a_long_cycle_is_cut_short_in_the_message() -> None:
    b = GraphBuilder()
    for i in range(20):
        b.op(OpKind.COMPUTE, b.stream(i, "s"), after=[(i + 1) % 20])
    with pytest.raises(ScheduleError, match=r"\.\.\. 14 more"):
        validate(b.build())
