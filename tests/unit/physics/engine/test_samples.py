"""Samples as vectors: the lane replay of many units against a plain replay of the unfolded graph, draw by draw."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import LayoutError
from windtunnel.physics.engine import replay
from windtunnel.physics.engine import samples as module
from windtunnel.physics.engine.samples import Source, Variant, course_of, lognormal, sample_makespans, sample_steps
from windtunnel.physics.graph import Graph, GraphBuilder, OpKind


@st.composite
def jobs(draw):
    """A small graph of one unit, which of its ops all units meet in, and how many units there are."""
    n, streams = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    builder = GraphBuilder()
    for op in range(n):
        before = draw(st.lists(st.integers(0, op - 1), max_size=3, unique=True)) if op else []
        stream = builder.stream(0, f"s{draw(st.integers(0, streams - 1))}")
        builder.op(OpKind.COMPUTE, stream, after=before, duration_ns=draw(st.integers(0, 50)), label="x", category="x")
    across = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    return builder.build(), builder.duration_ns(), across, draw(st.integers(1, 4))


def unfolded(graph: Graph, across, units):
    """The naive twin: every unit's ops in one graph, those of `across` tied together."""
    n, which = graph.n_ops, np.arange(units, dtype=np.int64)[:, None]
    meets = np.full((units, n), -1)
    meets[:, across] = np.flatnonzero(across)
    return Graph(
        kind=np.tile(graph.kind, units),
        stream=(graph.stream + which * graph.n_streams).ravel().astype(np.int32),
        stream_rank=np.tile(graph.stream_rank, units),
        dep_ptr=np.concatenate([[0], (graph.dep_ptr[1:] + which * len(graph.dep_idx)).ravel()]).astype(np.int64),
        dep_idx=(graph.dep_idx + which * n).ravel().astype(np.int32),
        rendezvous=meets.ravel().astype(np.int32),
        label=np.tile(graph.label, units),
        category=np.tile(graph.category, units),
        flops=np.tile(graph.flops, units),
        bytes=np.tile(graph.bytes, units),
        multiplicity=graph.multiplicity,
        labels=graph.labels,
        categories=graph.categories,
    )


def whole_numbers(key, adds=False):
    """A source whose draws anybody can repeat: factors 1 to 3, or 0 to 9 ns, by unit, op and sample."""

    def start(first, lanes):
        def draw(low, high, ops):
            unit, op, lane = np.ix_(np.arange(low, high), ops, first + np.arange(lanes))
            drawn = (unit * 7 + op * 13 + lane * 5 + key + unit * op * lane) % 10
            return (drawn if adds else 1 + drawn % 3).astype(np.float32)

        return draw

    return Source(start, adds)


@given(job=jobs(), key=st.integers(0, 9))
@settings(max_examples=150)
def test_lanes_agree_with_a_replay_of_each_sample(job, key):
    graph, duration, across, units = job
    classes = np.stack([duration, duration[::-1]])
    class_of = np.arange(units) % 2
    factor, extra = whole_numbers(key), whole_numbers(key + 1, adds=True)
    variants = [Variant(classes, class_of, (factor, extra)), Variant(classes, class_of, (factor,))]
    steps = sample_steps(graph, across, ~across, variants, 70)
    naive = unfolded(graph, across, units)
    ops = np.arange(graph.n_ops)
    for sample in (0, 1, 63, 64, 69):
        times = factor.start(sample, 1)(0, units, ops)[:, :, 0]
        more = extra.start(sample, 1)(0, units, ops)[:, :, 0]
        for number, added in enumerate((more, np.zeros_like(more))):
            taken = classes[class_of] * np.where(across, 1.0, times) + np.where(across, 0.0, added)
            assert steps[number, sample] == replay(naive, taken.ravel().astype(np.int64)).makespan_ns


@given(job=jobs())
def test_no_row_is_read_after_it_was_given_away(job):
    graph, _, across, _ = job
    course = course_of(graph, across, ~across)
    holder: dict[int, int] = {}
    placed = np.empty(graph.n_ops, np.int64)
    placed[course.op_at] = np.arange(graph.n_ops)
    for at, op in enumerate(course.op_at):
        before = set(graph.dep_idx[graph.dep_ptr[op] : graph.dep_ptr[op + 1]].tolist())
        earlier = [o for o in range(op) if graph.stream[o] == graph.stream[op]]
        before |= {earlier[-1]} if earlier else set()
        codes = course.inputs[course.input_ptr[at] : course.input_ptr[at + 1]]
        assert sorted(int(course.code[placed[o]]) for o in before) == sorted(set(codes.tolist()))
        assert all(holder[int(course.code[placed[o]])] == o for o in before)
        holder[int(course.code[at])] = int(op)


def test_a_smaller_block_gives_as_many_samples(monkeypatch):
    builder = GraphBuilder()
    for _ in range(3):
        builder.op(OpKind.COMPUTE, builder.stream(0, "s"), duration_ns=1000, label="x", category="x")
    graph, duration = builder.build(), builder.duration_ns()
    every = np.ones(3, bool)
    for count in (1, 7, 64, 65, 200):
        assert len(sample_makespans(graph, duration, every, 0.1, count, 0)) == count
    monkeypatch.setattr(module, "BLOCK_BYTES", 1)
    assert len(sample_makespans(graph, duration, every, 0.1, 100, 0)) == 100
    monkeypatch.setattr(module, "MOST_BYTES", 1)
    with pytest.raises(LayoutError, match="GiB"):
        sample_makespans(graph, duration, every, 0.1, 100, 0)


@pytest.mark.parametrize("sigma", [0.0, 0.02, 0.3])
def test_factors_are_lognormal_of_mean_one(sigma):
    drawn = lognormal(sigma, (3,)).start(0, 64)(0, 50, np.arange(200))
    assert drawn.shape == (50, 200, 64)
    assert drawn.mean() == pytest.approx(1.0, abs=max(1e-6, 0.01 * sigma))
    assert drawn.std() == pytest.approx(sigma, rel=0.02, abs=1e-6)
    if sigma:
        logs = np.log(drawn.astype(np.float64))
        middle = (logs - logs.mean()) / logs.std()
        # A normal has 4.55 % beyond two standard deviations and 0.27 % beyond three.
        assert (abs(middle) > 2).mean() == pytest.approx(0.0455, rel=0.05)
        assert (abs(middle) > 3).mean() == pytest.approx(0.0027, rel=0.15)
        assert abs(np.corrcoef(logs[:, :-1].ravel(), logs[:, 1:].ravel())[0, 1]) < 0.01
