"""Laws of the replay: it equals a naive twin, it is causal, monotone and symmetric, and what is read off it adds up."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from valid_graph import runnable, validate

from windtunnel.errors import ScheduleError
from windtunnel.physics.engine import Slowdown, Timeline, critical_path, exposed, replay
from windtunnel.physics.engine.compiled import fixed_kernels, kernels, time_kernels
from windtunnel.physics.engine.interpreted import Interpreted, split_time
from windtunnel.physics.graph import Graph, GraphBuilder, OpKind

law = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Case:
    graph: Graph
    duration: np.ndarray
    slowdown: Slowdown
    n_ranks: int


@st.composite
def cases(draw: st.DrawFn, max_ops: int = 40) -> Case:
    """A random graph without deadlock: drawn in a possible order of execution, then stored program by program."""
    n_ranks = draw(st.integers(1, 3))
    seed = draw(st.integers(0, 2**32 - 1))
    n_ops = draw(st.integers(0, max_ops))
    rng = np.random.default_rng(seed)
    ops: list[dict] = []
    while len(ops) < n_ops:
        members = range(n_ranks) if rng.random() < 0.3 else [int(rng.integers(n_ranks))]
        group = None if len(members) == 1 and rng.random() < 0.5 else len(ops)
        earlier = len(ops)
        for rank in members:
            after = rng.integers(earlier, size=rng.integers(0, 4)).tolist() if earlier else []
            length = int(rng.choice([0, 1, rng.integers(1, 20), rng.integers(1, 5000)]))
            ops.append(
                {"rank": rank, "stream": f"s{rng.integers(3)}", "after": after, "group": group, "length": length}
            )
    order = sorted(range(len(ops)), key=lambda op: ops[op]["rank"])
    place = {op: at for at, op in enumerate(order)}
    builder = GraphBuilder()
    for rank in range(n_ranks):
        builder.stream(rank, "s0")
    for op in order:
        entry = ops[op]
        kind = OpKind(int(rng.integers(0, 5)))
        builder.op(
            kind,
            builder.stream(entry["rank"], entry["stream"]),
            after=[place[dep] for dep in entry["after"]],
            duration_ns=entry["length"],
            category=f"c{rng.integers(3)}",
            label=f"op{op}",
            rendezvous=entry["group"],
        )
    k = int(rng.integers(1, 5))
    factor = rng.choice([0.0, 0.25, 1.0, 1.7], size=(k, k))
    factor[0] = factor[:, 0] = 0.0
    kind_class = rng.integers(0, k, size=len(ops)).astype(np.uint8)
    return Case(builder.build(), builder.duration_ns(), Slowdown(kind_class, factor), n_ranks)


def predecessors(graph: Graph, op: int) -> list[int]:
    """All ops that must have ended before `op` starts: of its own, and of its rendezvous partners."""
    group = graph.rendezvous[op]
    members = [op] if group < 0 else np.flatnonzero(graph.rendezvous == group).tolist()
    found: list[int] = []
    for member in members:
        found += graph.dep_idx[graph.dep_ptr[member] : graph.dep_ptr[member + 1]].tolist()
        found += [i for i in range(member) if graph.stream[i] == graph.stream[member]][-1:]
    return found


def naive_replay(graph: Graph, duration: np.ndarray) -> tuple[list[int], list[int]]:
    """Start times as the least fixed point of their definition: relax all of them until nothing moves."""
    before = [predecessors(graph, op) for op in range(graph.n_ops)]
    start = [0] * graph.n_ops
    while True:
        new = [max((start[p] + int(duration[p]) for p in before[op]), default=0) for op in range(graph.n_ops)]
        if new == start:
            return start, [s + int(d) for s, d in zip(start, duration, strict=True)]
        start = new


def naive_rated(graph: Graph, duration: np.ndarray, slowdown: Slowdown) -> list[Fraction]:
    """Exact ends in rational time: at every instant look at all ops, from the definition of the rates alone."""
    n = graph.n_ops
    before = [predecessors(graph, op) for op in range(n)]
    left = [Fraction(int(d)) for d in duration]
    end: list[Fraction | None] = [None] * n
    running: set[int] = set()
    waiting = set(range(n))
    now = Fraction(0)
    program, cls = graph.program, slowdown.kind_class
    while True:
        moved = True
        while moved:
            starts = {op for op in waiting if all(end[p] is not None for p in before[op])}
            ends = {op for op in running | starts if left[op] == 0}
            for op in ends:
                end[op] = now
            waiting -= starts
            running = (running | starts) - ends
            moved = bool(starts or ends)
        if not running:
            assert not waiting
            return [e for e in end if e is not None]
        own = {}
        for a in running:
            beside = {int(cls[b]) for b in running if b != a and program[b] == program[a]}
            own[a] = 1 / (1 + sum((Fraction(float(slowdown.factor[cls[a], b])) for b in beside), Fraction(0)))
        rate = {
            a: min(
                own[b]
                for b in running
                if b == a or (graph.rendezvous[a] >= 0 and graph.rendezvous[b] == graph.rendezvous[a])
            )
            for a in running
        }
        step = min(left[a] / rate[a] for a in running)
        now += step
        for a in running:
            left[a] -= step * rate[a]


def check_causal(graph: Graph, timeline: Timeline) -> None:
    for op in range(graph.n_ops):
        ready = max((int(timeline.end_ns[p]) for p in predecessors(graph, op)), default=0)
        assert timeline.start_ns[op] == ready, "an op starts at the very moment it may"
        assert timeline.end_ns[op] >= timeline.start_ns[op]


@given(cases())
@law
def test_the_replay_equals_its_naive_twin_and_the_rated_replay_without_slowdown(case: Case) -> None:
    start, end = naive_replay(case.graph, case.duration)
    fixed = replay(case.graph, case.duration)
    assert fixed.start_ns.tolist() == start
    assert fixed.end_ns.tolist() == end
    rated = replay(case.graph, case.duration, Slowdown(case.slowdown.kind_class, case.slowdown.factor * 0.0))
    assert rated.start_ns.tolist() == start
    assert rated.end_ns.tolist() == end


@given(cases(max_ops=20))
@settings(law, max_examples=60)
def test_the_rated_replay_equals_exact_rational_arithmetic_up_to_rounding(case: Case) -> None:
    exact = naive_rated(case.graph, case.duration, case.slowdown)
    rated = replay(case.graph, case.duration, case.slowdown)
    for mine, true in zip(rated.end_ns.tolist(), exact, strict=True):
        # Each op rounds its end once; later ops inherit that, stretched by at most the largest slowdown.
        assert abs(mine - true) <= 4 * case.graph.n_ops


@given(cases(max_ops=15))
@settings(law, max_examples=25)
def test_compiled_and_uncompiled_kernels_agree(case: Case) -> None:
    g = case.graph
    common = (g.dep_ptr, g.dep_idx, g.rendezvous, case.duration)
    outputs = []
    for fixed, rated in (
        (fixed_kernels.replay_fixed, kernels.replay_rated),
        (fixed_kernels.replay_fixed.py_func, kernels.replay_rated.py_func),
    ):
        out = np.empty((4, g.n_ops), np.int64)
        ran = fixed(g.stream, g.n_streams, *common, out[0], out[1])
        slow = (case.slowdown.kind_class, case.slowdown.factor, out[2], out[3])
        assert ran == rated(g.stream, g.stream_rank, g.n_programs, *common, *slow) == g.n_ops
        outputs.append(out)
    assert np.array_equal(*outputs)
    timeline = replay(g, case.duration)
    args = (g.kind, g.category, len(g.categories), g.stream, g.stream_rank, g.n_programs)
    times = (timeline.start_ns, timeline.end_ns)
    assert np.array_equal(
        time_kernels.split_time(*args, *times, timeline.makespan_ns),
        time_kernels.split_time.py_func(*args, *times, timeline.makespan_ns),
    )
    walk = (g.stream, g.n_streams, g.dep_ptr, g.dep_idx, g.rendezvous, *times)
    assert np.array_equal(fixed_kernels.binding_path(*walk), fixed_kernels.binding_path.py_func(*walk))


@given(cases(), st.booleans())
@law
def test_the_interpreted_replay_gives_the_integers_of_the_compiled_one(case: Case, slow: bool) -> None:
    g, factor = case.graph, case.slowdown.factor * float(slow)
    start, end = np.empty(g.n_ops, np.int64), np.empty(g.n_ops, np.int64)
    common = (g.dep_ptr, g.dep_idx, g.rendezvous, case.duration, case.slowdown.kind_class, factor, start, end)
    ran = kernels.replay_rated(g.stream, g.stream_rank, g.n_programs, *common)
    run = Interpreted(g, case.duration, case.slowdown.kind_class, factor)
    assert run.run() == ran == g.n_ops
    assert (run.start, run.end) == (start.tolist(), end.tolist())


@given(cases(), st.booleans())
@law
def test_causality(case: Case, slow: bool) -> None:
    check_causal(case.graph, replay(case.graph, case.duration, case.slowdown if slow else None))


@given(cases(), st.data())
@law
def test_no_op_ever_ends_earlier_when_one_takes_longer(case: Case, data: st.DataObject) -> None:
    longer = case.duration.copy()
    if len(longer):
        longer[data.draw(st.integers(0, len(longer) - 1))] += data.draw(st.integers(1, 1000))
    assert np.all(replay(case.graph, longer).end_ns >= replay(case.graph, case.duration).end_ns)


@given(cases(), st.integers(2, 5))
@law
def test_time_scales_with_the_durations(case: Case, times: int) -> None:
    base = replay(case.graph, case.duration)
    assert np.array_equal(replay(case.graph, case.duration * times).end_ns, base.end_ns * times)


@given(cases())
@law
def test_slowdown_never_makes_anything_earlier(case: Case) -> None:
    fixed, rated = replay(case.graph, case.duration), replay(case.graph, case.duration, case.slowdown)
    assert np.all(rated.end_ns >= fixed.end_ns)
    assert np.all(rated.end_ns - rated.start_ns >= case.duration)


def copies(case: Case, n: int) -> tuple[Graph, np.ndarray, Slowdown]:
    """The same programs n times in one graph; each rendezvous joins the members of all copies."""
    g, ops = case.graph, case.graph.n_ops
    shift = np.repeat(np.arange(n), ops)
    per_copy = len(g.dep_idx)
    graph = Graph(
        kind=np.tile(g.kind, n),
        stream=(np.tile(g.stream, n) + shift * g.n_streams).astype(np.int32),
        stream_rank=np.concatenate([g.stream_rank + c * g.n_programs for c in range(n)]).astype(np.int32),
        dep_ptr=np.concatenate([[0], *(g.dep_ptr[1:] + c * per_copy for c in range(n))]).astype(np.int64),
        dep_idx=np.concatenate([g.dep_idx + c * ops for c in range(n)]).astype(np.int32),
        rendezvous=np.tile(g.rendezvous, n),
        label=np.tile(g.label, n),
        category=np.tile(g.category, n),
        flops=np.tile(g.flops, n),
        bytes=np.tile(g.bytes, n),
        multiplicity=np.tile(g.multiplicity, n),
        labels=g.labels,
        categories=g.categories,
    )
    validate(graph)
    slowdown = Slowdown(np.tile(case.slowdown.kind_class, n), case.slowdown.factor)
    return graph, np.tile(case.duration, n), slowdown


@given(cases(), st.integers(2, 3), st.booleans())
@law
def test_symmetric_ranks_share_one_timeline(case: Case, n: int, slow: bool) -> None:
    graph, duration, slowdown = copies(case, n)
    one = replay(case.graph, case.duration, case.slowdown if slow else None)
    many = replay(graph, duration, slowdown if slow else None)
    assert np.array_equal(many.start_ns, np.tile(one.start_ns, n))
    assert np.array_equal(many.end_ns, np.tile(one.end_ns, n))


@given(cases(), st.randoms(use_true_random=False), st.booleans())
@law
def test_the_numbering_of_streams_and_programs_does_not_matter(case: Case, random: object, slow: bool) -> None:
    g = case.graph
    streams, programs = list(range(g.n_streams)), list(range(g.n_programs))
    random.shuffle(streams)  # type: ignore[attr-defined]
    random.shuffle(programs)  # type: ignore[attr-defined]
    fields = {name: getattr(g, name) for name in g.__dataclass_fields__}
    stream_rank = np.empty(g.n_streams, np.int32)
    stream_rank[streams] = np.array(programs, dtype=np.int32)[g.stream_rank]
    fields |= {"stream": np.array(streams, dtype=np.int32)[g.stream], "stream_rank": stream_rank, "stream_names": ()}
    renamed = Graph(**fields)
    slowdown = case.slowdown if slow else None
    assert np.array_equal(replay(renamed, case.duration, slowdown).end_ns, replay(g, case.duration, slowdown).end_ns)


@given(cases(), st.data())
@law
def test_a_cycle_is_found_alike_by_the_kernels_and_by_validate(case: Case, data: st.DataObject) -> None:
    g = case.graph
    if g.n_ops == 0:
        return
    op, dep = (data.draw(st.integers(0, g.n_ops - 1)) for _ in range(2))
    fields = {name: getattr(g, name) for name in g.__dataclass_fields__}
    fields["dep_idx"] = np.insert(g.dep_idx, g.dep_ptr[op], dep).astype(np.int32)
    fields["dep_ptr"] = g.dep_ptr + (np.arange(g.n_ops + 1) > op)
    looped = Graph(**fields)
    done = runnable(looped)
    for slowdown in (None, case.slowdown):
        if done.all():
            replay(looped, case.duration, slowdown)
        else:
            with pytest.raises(ScheduleError, match="deadlock"):
                replay(looped, case.duration, slowdown)
    start, end = np.empty(g.n_ops, np.int64), np.empty(g.n_ops, np.int64)
    ran = fixed_kernels.replay_fixed(
        g.stream, g.n_streams, looped.dep_ptr, looped.dep_idx, g.rendezvous, case.duration, start, end
    )
    assert np.array_equal(end >= 0, done)
    assert ran == done.sum()


@given(cases(), st.booleans())
@law
def test_the_exposure_of_each_program_sums_to_the_makespan(case: Case, slow: bool) -> None:
    timeline = replay(case.graph, case.duration, case.slowdown if slow else None)
    split = exposed(timeline, case.graph)
    parts = [split.compute_ns, split.communication_ns, split.host_ns, split.idle_ns]
    assert all(np.all(part >= 0) for part in parts)
    total = sum(part.sum(axis=1) for part in parts) + split.tail_ns
    assert np.all(total == timeline.makespan_ns)


@given(cases(max_ops=15), st.booleans())
@settings(law, max_examples=40)
def test_the_exposure_equals_a_look_at_every_nanosecond(case: Case, slow: bool) -> None:
    duration = case.duration % 17
    timeline = replay(case.graph, duration, case.slowdown if slow else None)
    split = exposed(timeline, case.graph)
    g = case.graph
    expected = np.zeros((3, g.n_programs, len(g.categories)), np.int64)
    rows = {0: 0, 1: 1, 2: 1, 3: 1, 4: 2}
    for program in range(g.n_programs):
        mine = [op for op in range(g.n_ops) if g.program[op] == program]
        for t in range(timeline.makespan_ns):
            busy = [op for op in mine if timeline.start_ns[op] <= t < timeline.end_ns[op]]
            if busy:
                owner = min(busy, key=lambda op: (rows[int(g.kind[op])], timeline.start_ns[op], op))
                expected[rows[int(g.kind[owner])], program, g.category[owner]] += 1
    assert np.array_equal(np.stack([split.compute_ns, split.communication_ns, split.host_ns]), expected)


@given(cases(), st.booleans())
@law
def test_the_interpreted_exposure_gives_the_integers_of_the_compiled_one(case: Case, slow: bool) -> None:
    g, timeline = case.graph, replay(case.graph, case.duration, case.slowdown if slow else None)
    times = (timeline.start_ns, timeline.end_ns, timeline.makespan_ns)
    shape = (g.kind, g.category, len(g.categories), g.stream, g.stream_rank, g.n_programs)
    assert np.array_equal(split_time(g, *times), time_kernels.split_time(*shape, *times))


@given(cases(), st.booleans())
@law
def test_the_critical_path_tiles_the_makespan_along_real_dependencies(case: Case, slow: bool) -> None:
    timeline = replay(case.graph, case.duration, case.slowdown if slow else None)
    path = critical_path(case.graph, timeline)
    if case.graph.n_ops == 0:
        assert len(path) == 0
        return
    assert timeline.start_ns[path[0]] == 0
    assert timeline.end_ns[path[-1]] == timeline.makespan_ns
    assert np.array_equal(timeline.end_ns[path[:-1]], timeline.start_ns[path[1:]])
    for first, second in zip(path[:-1].tolist(), path[1:].tolist(), strict=True):
        assert first in predecessors(case.graph, second)


@given(cases())
@law
def test_the_same_input_gives_the_same_bytes(case: Case) -> None:
    first, second = (replay(case.graph, case.duration, case.slowdown) for _ in range(2))
    assert first.end_ns.tobytes() == second.end_ns.tobytes()
