"""Laws of ops that share links inside a graph: a naive twin, nothing lost or gained, and nothing for nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logged_replay import replay_logged
from plain_flows import plainly_shared
from test_replay_laws import Case, cases, check_causal, copies, predecessors

from windtunnel.physics.engine import Sharing, Slowdown, replay
from windtunnel.physics.engine.compiled import shared_kernels
from windtunnel.physics.engine.sharing import contenders
from windtunnel.physics.graph import GraphBuilder, OpKind

law = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Shared:
    case: Case
    sharing: Sharing

    def replay(self, slow: bool = True, sharing: Sharing | None = None):
        slowdown = self.case.slowdown if slow else None
        return replay(self.case.graph, self.case.duration, slowdown, sharing or self.sharing)

    def paths(self) -> list[dict[int, float]]:
        s = self.sharing
        bounds = zip(s.link_ptr[:-1], s.link_ptr[1:], strict=True)
        return [dict(zip(s.link_idx[a:b].tolist(), s.use[a:b].tolist(), strict=True)) for a, b in bounds]

    def unit(self, op: int) -> tuple[str, int]:
        """What goes at one speed: a rendezvous, or an op."""
        group = int(self.case.graph.rendezvous[op])
        return ("group", group) if group >= 0 else ("op", op)


@st.composite
def shared_cases(draw: st.DrawFn, max_ops: int = 40, wide: bool = False) -> Shared:
    """A graph of which about half of the ops use some of up to four links; numbers that tie often."""
    case = draw(cases(max_ops))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_links, n_demands = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    paths = [rng.choice(n_links, rng.integers(0, n_links + 1), replace=False) for _ in range(n_demands)]
    demand_of = rng.integers(-1, n_demands, case.graph.n_ops)
    demand_of[rng.random(case.graph.n_ops) < 0.3] = -1
    for group in np.unique(case.graph.rendezvous[case.graph.rendezvous >= 0]):
        members = np.flatnonzero(case.graph.rendezvous == group)
        given_by = rng.random(len(members)) < 0.7
        demand_of[members] = np.where(given_by, demand_of[members[0]], -1)
    ptr = np.cumsum([0, *map(len, paths)])
    capacity = rng.choice([0.5, 1.0, 2.0, 3.0], n_links) if not wide else np.full(n_links, 1e3)
    return Shared(
        case,
        Sharing(
            demand_of.astype(np.int32),
            ptr,
            np.concatenate(paths).astype(np.int32),
            rng.choice([0.4, 1.0, 1.0, 2.0], ptr[-1]),
            rng.choice([1.0, 1.0, 2.0, 3.5], n_demands),
            capacity,
        ),
    )


def naive_shared(given_case: Shared) -> tuple[list[int], list[int]]:
    """Start and end of every op, with all rates computed from scratch at every instant."""
    graph, slowdown = given_case.case.graph, given_case.case.slowdown
    duration, paths = given_case.case.duration.tolist(), given_case.paths()
    n, program, cls = graph.n_ops, graph.program.tolist(), slowdown.kind_class.tolist()
    unit = [given_case.unit(op) for op in range(n)]
    demand_of_unit = {unit[op]: d for op, d in enumerate(given_case.sharing.demand_of.tolist()) if d >= 0}
    before = [predecessors(graph, op) for op in range(n)]
    start, end = [-1] * n, [-1] * n
    left, rate, since, key = {}, {}, {}, {}  # of the ops that run
    now = 0
    while True:
        for op in [op for op in key if key[op] == now]:
            end[op] = now
            for state in (left, rate, since, key):
                del state[op]
        moved = True
        while moved:
            starts = [op for op in range(n) if start[op] < 0 and all(end[p] >= 0 for p in before[op])]
            for op in starts:
                start[op] = now
                if duration[op] == 0:
                    end[op] = now
                else:
                    left[op], rate[op], since[op], key[op] = float(duration[op]), 1.0, now, now + duration[op]
            moved = bool(starts)
        if not key:
            return start, end
        allowed: dict[tuple[str, int], float] = {}
        for op in key:
            beside = {cls[b] for b in key if b != op and program[b] == program[op]}
            extra = 0.0
            for b in sorted(beside):
                extra += slowdown.factor[cls[op], b]
            allowed[unit[op]] = min(allowed.get(unit[op], 1.0), 1.0 / (1.0 + extra))
        flows = [u for u in allowed if u in demand_of_unit and paths[demand_of_unit[u]]]
        links = len(given_case.sharing.capacity)
        speeds = plainly_shared(
            [*given_case.sharing.capacity.tolist(), *(allowed[u] for u in flows)],
            [paths[demand_of_unit[u]] | {links + i: 1.0} for i, u in enumerate(flows)],
            [float(given_case.sharing.weight[demand_of_unit[u]]) for u in flows],
        )
        for u, speed in zip(flows, speeds, strict=True):
            allowed[u] = shared_kernels.speed_of.py_func(speed, allowed[u])
        for op in key:
            r = allowed[unit[op]]
            if r != rate[op]:
                left[op] = max(0.0, left[op] - (now - since[op]) * rate[op])
                since[op], rate[op], key[op] = now, r, now + int(left[op] / r + 0.5)
        now = min(key.values())


@given(shared_cases())
@settings(law, max_examples=150)
def test_the_replay_equals_its_naive_twin_to_the_nanosecond(given_case: Shared) -> None:
    start, end = naive_shared(given_case)
    timeline = given_case.replay()
    assert timeline.start_ns.tolist() == start
    assert timeline.end_ns.tolist() == end


@given(shared_cases(wide=True), st.booleans())
@law
def test_links_that_are_wide_enough_change_nothing(given_case: Shared, slow: bool) -> None:
    case = given_case.case
    plain = replay(case.graph, case.duration, case.slowdown if slow else None)
    assert contenders(case.graph, case.duration, given_case.sharing) is None
    assert np.array_equal(given_case.replay(slow).end_ns, plain.end_ns)
    followed, _ = replay_logged(case.graph, case.duration, case.slowdown if slow else None, given_case.sharing)
    assert np.array_equal(followed.end_ns, plain.end_ns)
    assert np.array_equal(followed.start_ns, plain.start_ns)


@given(shared_cases(), st.booleans())
@law
def test_where_no_link_is_ever_overfull_the_plain_replay_says_the_same(given_case: Shared, slow: bool) -> None:
    """Links as wide as what the plain replay happens to put on them at once, which is less than what it might."""
    case, sharing = given_case.case, given_case.sharing
    plain = replay(case.graph, case.duration, case.slowdown if slow else None)
    demand = {given_case.unit(op): d for op, d in enumerate(sharing.demand_of.tolist()) if d >= 0}
    most = np.full(len(sharing.capacity), 1e-3)
    for now in set(plain.start_ns.tolist()):
        there = np.flatnonzero((plain.start_ns <= now) & (now < plain.end_ns)).tolist()
        load = np.zeros(len(most))
        for unit in {given_case.unit(op) for op in there} & set(demand):
            for link, use in given_case.paths()[demand[unit]].items():
                load[link] += use
        most = np.maximum(most, load)
    wide = replace(sharing, capacity=most)
    assert np.array_equal(given_case.replay(slow, wide).end_ns, plain.end_ns)
    followed, log = replay_logged(case.graph, case.duration, case.slowdown if slow else None, wide)
    assert np.array_equal(followed.end_ns, plain.end_ns)
    if not slow:
        assert set(log.speed.tolist()) <= {0.0, 1.0}


@given(shared_cases(), st.booleans())
@law
def test_leaving_out_links_that_cannot_be_too_narrow_changes_nothing(given_case: Shared, slow: bool) -> None:
    case = given_case.case
    followed, _ = replay_logged(case.graph, case.duration, case.slowdown if slow else None, given_case.sharing)
    found = given_case.replay(slow)
    assert np.array_equal(found.end_ns, followed.end_ns)
    assert np.array_equal(found.start_ns, followed.start_ns)


@given(shared_cases(), st.booleans())
@law
def test_no_link_ever_carries_more_than_its_capacity_and_all_work_is_done(given_case: Shared, slow: bool) -> None:
    case, sharing = given_case.case, given_case.sharing
    timeline, log = replay_logged(case.graph, case.duration, case.slowdown if slow else None, sharing)
    demand = {given_case.unit(op): d for op, d in enumerate(sharing.demand_of.tolist()) if d >= 0}
    ops_of: dict[tuple[str, int], list[int]] = {}
    for op in range(case.graph.n_ops):
        ops_of.setdefault(given_case.unit(op), []).append(op)
    speed: dict[tuple[str, int], float] = {}
    done = np.zeros(case.graph.n_ops)
    before = 0
    assert np.all(np.diff(log.time_ns) >= 0)
    for at in sorted(set(log.time_ns.tolist())):
        load = np.zeros(len(sharing.capacity))
        for unit, s in speed.items():
            for link, use in given_case.paths()[demand[unit]].items():
                load[link] += use * s
            for op in ops_of[unit]:
                within = max(0, min(at, timeline.end_ns[op]) - max(before, timeline.start_ns[op]))
                done[op] += within * s
        assert np.all(load <= sharing.capacity * (1 + 1e-9))
        before = at
        for i in np.flatnonzero(log.time_ns == at).tolist():
            unit = given_case.unit(int(log.op[i]))
            speed[unit] = float(log.speed[i])
            if speed[unit] == 0.0:
                del speed[unit]
    assert not speed
    for unit, d in demand.items():
        for op in ops_of[unit]:
            if given_case.paths()[d]:
                assert abs(done[op] - case.duration[op]) <= 0.5 + 1e-6  # an end is rounded to a nanosecond


@given(shared_cases(), st.booleans())
@law
def test_sharing_is_causal_and_nobody_is_faster_than_alone(given_case: Shared, slow: bool) -> None:
    timeline = given_case.replay(slow)
    check_causal(given_case.case.graph, timeline)
    assert np.all(timeline.end_ns - timeline.start_ns >= given_case.case.duration)


@given(shared_cases(max_ops=20))
@settings(law, max_examples=25)
def test_the_compiled_and_the_uncompiled_loop_agree(given_case: Shared) -> None:
    case, g = given_case.case, given_case.case.graph
    common = (g.stream, g.stream_rank, g.n_programs, g.dep_ptr, g.dep_idx, g.rendezvous, case.duration)
    outputs = []
    for kernel in (shared_kernels.replay_shared, shared_kernels.replay_shared.py_func):
        found = contenders(g, case.duration, given_case.sharing, all_links=True)
        if found is None:
            return
        out = np.empty((2, g.n_ops), np.int64)
        rates = (case.slowdown.kind_class, case.slowdown.factor)
        ran, log = kernel(*common, *rates, found.flow, found.network(), out[0], out[1], True)
        assert ran == g.n_ops
        outputs.append((out, log))
    assert np.array_equal(outputs[0][0], outputs[1][0])
    assert np.array_equal(outputs[0][1], outputs[1][1])


@given(shared_cases(), st.randoms(use_true_random=False), st.booleans())
@law
def test_the_names_of_streams_programs_demands_and_links_do_not_matter(given_case, random, slow) -> None:
    case, g, s = given_case.case, given_case.case.graph, given_case.sharing
    streams, programs, links = (list(range(n)) for n in (g.n_streams, g.n_programs, len(s.capacity)))
    demands = list(range(s.n_demands))  # demands[new] = old
    for names in (streams, programs, links, demands):
        random.shuffle(names)
    stream_rank = np.empty(g.n_streams, np.int32)
    stream_rank[streams] = np.array(programs, dtype=np.int32)[g.stream_rank]
    renamed = replace(g, stream=np.array(streams, np.int32)[g.stream], stream_rank=stream_rank, stream_names=())
    new_of_old = np.append(np.argsort(demands), -1)
    entries = [range(s.link_ptr[d], s.link_ptr[d + 1]) for d in demands]
    flat = [e for part in entries for e in part]
    capacity = np.empty(len(links))
    capacity[links] = s.capacity
    sharing = Sharing(
        new_of_old[s.demand_of].astype(np.int32),
        np.cumsum([0, *map(len, entries)]),
        np.array(links, np.int32)[s.link_idx[flat]],
        s.use[flat],
        s.weight[demands],
        capacity,
    )
    found = replay(renamed, case.duration, case.slowdown if slow else None, sharing)
    assert np.array_equal(found.end_ns, given_case.replay(slow).end_ns)


@given(shared_cases(max_ops=25), st.integers(2, 3), st.booleans())
@law
def test_folded_equals_unfolded(given_case: Shared, n: int, slow: bool) -> None:
    """n ranks alike on common links are one program that uses n times as much; on links of their own, one rank's."""
    case = given_case.case
    group = case.graph.rendezvous
    lonely = replace(case.graph, rendezvous=np.full_like(group, -1))  # else the copies would be one flow
    case = replace(case, graph=lonely)
    graph, duration, slowdown = copies(case, n)
    s = given_case.sharing
    each = replace(s, demand_of=np.tile(s.demand_of, n))
    folded = replace(s, use=s.use * n)
    one = replay(case.graph, case.duration, case.slowdown if slow else None, folded)
    many = replay(graph, duration, slowdown if slow else None, each)
    assert np.array_equal(many.end_ns, np.tile(one.end_ns, n))
    k = len(s.capacity)
    apart = Sharing(
        np.concatenate([np.where(s.demand_of < 0, -1, s.demand_of + c * s.n_demands) for c in range(n)]).astype(
            np.int32
        ),
        np.concatenate([[0], *(s.link_ptr[1:] + c * len(s.link_idx) for c in range(n))]),
        np.concatenate([s.link_idx + c * k for c in range(n)]).astype(np.int32),
        np.tile(s.use, n),
        np.tile(s.weight, n),
        np.tile(s.capacity, n),
    )
    one = replay(case.graph, case.duration, case.slowdown if slow else None, s)
    many = replay(graph, duration, slowdown if slow else None, apart)
    assert np.array_equal(many.end_ns, np.tile(one.end_ns, n))


@given(cases(), st.integers(0, 5), st.sampled_from([0.25, 1.0, 3.0]), st.sampled_from([1.0, 1.25, 2.0, 8.0]))
@law
def test_a_faster_link_never_delays_flows_that_are_never_two_at_once(case, stream, capacity, faster) -> None:
    """All ops of one stream on one link: it can only be too narrow for each by itself."""
    g = case.graph
    mine = (g.stream == stream % max(1, g.n_streams)) & (g.rendezvous < 0)
    one = Sharing(
        np.where(mine, 0, -1).astype(np.int32),
        np.array([0, 1]),
        np.zeros(1, np.int32),
        np.array([2.0]),
        np.ones(1),
        np.array([capacity]),
    )
    wider = replace(one, capacity=one.capacity * faster)
    slow, fast = (replay(g, case.duration, None, sharing) for sharing in (one, wider))
    assert np.all(fast.end_ns <= slow.end_ns)
    speed = min(1.0, capacity / 2.0)
    lasts = (slow.end_ns - slow.start_ns)[mine]
    assert np.array_equal(lasts, np.floor(case.duration[mine] / speed + 0.5).astype(np.int64))


@given(st.integers(1, 10**12), st.integers(1, 5), st.booleans(), st.sampled_from([0.1, 1.0, 7.0]))
@law
def test_equals_on_one_full_link_take_as_many_times_as_long_and_on_links_apart_no_longer(duration, n, apart, capacity):
    builder = GraphBuilder()
    for rank in range(n):
        builder.op(OpKind.COLLECTIVE, builder.stream(rank, "comm"), duration_ns=duration)
    links = np.arange(n, dtype=np.int32) if apart else np.zeros(n, np.int32)
    sharing = Sharing(
        np.arange(n, dtype=np.int32),
        np.arange(n + 1),
        links,
        np.full(n, capacity),
        np.ones(n),
        np.full(n, capacity),
    )
    timeline = replay(builder.build(), builder.duration_ns(), None, sharing)
    times = 1 if apart else n
    tolerance = 1 if times == 1 else 1 + duration * n * 2**-40
    assert np.all(np.abs(timeline.end_ns - duration * times) < tolerance)


@given(shared_cases())
@law
def test_an_interference_of_zero_is_none(given_case: Shared) -> None:
    case = given_case.case
    zero = Slowdown(case.slowdown.kind_class, case.slowdown.factor * 0.0)
    found = replay(case.graph, case.duration, zero, given_case.sharing)
    assert np.array_equal(found.end_ns, given_case.replay(False).end_ns)


@pytest.mark.parametrize("seed", range(3))
def test_hundreds_of_flows_end_alike_in_whatever_order_their_shares_are_summed(seed: int) -> None:
    """Ties of half nanoseconds are common here; the last digits of a sum must not decide them."""
    rng = np.random.default_rng(seed)
    n_programs, n_links, n = 24, 6, 400
    of_program, lasts = rng.integers(0, n_programs, n), rng.integers(1, 60, n)
    paths = [rng.choice(n_links, rng.integers(1, 4), replace=False) for _ in range(n_programs)]
    uses = [rng.choice([0.3, 0.7, 1.0], len(path)) for path in paths]
    weights, capacity = rng.choice([1.0, 3.0, 7.0], n_programs), rng.choice([1.0, 2.0, 5.0], n_links)
    found = []
    for order in (np.arange(n_programs), rng.permutation(n_programs)):
        builder = GraphBuilder()
        new = np.argsort(order)
        for program in order:
            builder.stream(int(new[program]), "comm")
        for program, ns in zip(of_program.tolist(), lasts.tolist(), strict=True):
            builder.op(OpKind.COLLECTIVE, builder.stream(int(new[program]), "comm"), duration_ns=ns)
        sharing = Sharing(
            new[of_program].astype(np.int32),
            np.cumsum([0, *(len(paths[p]) for p in order)]),
            np.concatenate([paths[p] for p in order]).astype(np.int32),
            np.concatenate([uses[p] for p in order]),
            weights[order],
            capacity,
        )
        case = Case(builder.build(), builder.duration_ns(), Slowdown(np.zeros(n, np.uint8), np.zeros((1, 1))), 1)
        timeline = Shared(case, sharing).replay()
        found.append(timeline.end_ns.tolist())
        assert found[-1] == naive_shared(Shared(case, sharing))[1]
    assert found[0] == found[1]
