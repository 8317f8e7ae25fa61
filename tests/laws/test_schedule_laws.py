"""Laws of pipeline schedules: complete, deadlock-free, and the bubble and memory that their papers state."""

from __future__ import annotations

import heapq
from dataclasses import replace

import numpy as np
import pytest
from complete_schedule import check
from hypothesis import given, settings
from hypothesis import strategies as st
from ideal_schedule import durations, in_flight, makespan

from windtunnel.studies.training.schedules import NAMES, Kind, Schedule, chunks_in_flight, schedule, walk

law = settings(deadline=None)  # the machine may be busy
times = st.floats(0.1, 3.0)


def legal(name: str, stages: int, factor: int, rest: int, chunks: int) -> Schedule:
    """A legal schedule near the numbers drawn."""
    if name == "interleaved":
        if rest:  # groups of any size, the last one of what is left
            micro_batches = 1 + (factor - 1) * stages + rest
            return schedule(name, stages, micro_batches, chunks, min(rest, micro_batches))
        return schedule(name, stages, stages * factor, chunks)
    if name == "dualpipe":
        stages += stages % 2
        return schedule(name, stages, 2 * stages + 2 * rest)
    if name == "dualpipe-v":
        return schedule(name, stages, 2 * stages + rest)
    return schedule(name, stages, 1 + (factor - 1) * stages + rest)


schedules = st.builds(
    legal, st.sampled_from(NAMES), st.integers(1, 8), st.integers(1, 4), st.integers(0, 7), st.integers(2, 4)
)


def work(s: Schedule, f: float, b: float, w: float) -> float:
    return float(durations(s, f, b, w)[s.rank == 0].sum())


def bubble(s: Schedule, f: float, b: float, w: float, fused: float | None = None) -> float:
    return makespan(s, f, b, w, fused) - work(s, f, b, w)


@law
@given(schedules)
def test_every_piece_sees_every_micro_batch_once_and_the_schedule_ends(s):
    check(s)
    size = s.n_virtual * s.micro_batches
    assert np.count_nonzero(s.kind == Kind.FORWARD) == size
    assert np.count_nonzero((s.kind == Kind.BACKWARD) | (s.kind == Kind.BACKWARD_INPUT)) == size
    assert np.all(np.diff(s.rank) >= 0)
    assert np.array_equal(np.bincount(s.rank, minlength=s.stages), np.diff(s.rank_offset))


@law
@given(schedules)
def test_dependencies_are_the_chain_rule(s):
    """Against a dictionary of actions, one at a time."""
    at = {
        (int(k), int(v), int(m)): i for i, (k, v, m) in enumerate(zip(s.kind, s.stage_of, s.micro_batch, strict=True))
    }

    def backward(v: int, m: int) -> int:
        return at[(Kind.BACKWARD, v, m)] if (Kind.BACKWARD, v, m) in at else at[(Kind.BACKWARD_INPUT, v, m)]

    pointer, index = s.depends()
    for (kind, v, m), i in at.items():
        if kind == Kind.FORWARD:
            want = {at[(kind, v - 1, m)]} if v > 0 else set()
        elif kind == Kind.BACKWARD_WEIGHT:
            want = {at[(Kind.BACKWARD_INPUT, v, m)]}
        else:
            want = {at[(Kind.FORWARD, v, m)]} | ({backward(v + 1, m)} if v + 1 < s.n_virtual else set())
        found = index[pointer[i] : pointer[i + 1]].tolist()
        assert set(found) == want
        assert len(found) == len(want)


@law
@given(schedules, times, times, times)
def test_no_schedule_beats_its_work_or_its_longest_chain(s, f, b, w):
    total = makespan(s, f, b, w)
    chain = s.n_virtual * (f + b)
    assert total >= max(work(s, f, b, w), chain) - 1e-9
    assert total <= durations(s, f, b, w).sum() + 1e-9


@law
@given(schedules, times, times, times, st.floats(0.0, 2.0))
def test_time_never_falls_when_an_action_takes_longer(s, f, b, w, more):
    assert makespan(s, f + more, b, w) >= makespan(s, f, b, w) - 1e-9
    assert makespan(s, f, b + more, w) >= makespan(s, f, b, w) - 1e-9
    assert makespan(s, f, b, w + more) >= makespan(s, f, b, w) - 1e-9
    slow = np.full((s.stages, s.chunks), f)
    slow[s.stages // 2] += more
    assert makespan(s, slow, b, w) >= makespan(s, f, b, w) - 1e-9


@law
@given(schedules, times, times, times, st.randoms(use_true_random=False))
def test_relabelling_micro_batches_changes_nothing(s, f, b, w, random):
    label = list(range(s.micro_batches))
    random.shuffle(label)
    other = replace(s, micro_batch=np.array(label, np.int32)[s.micro_batch])
    check(other)
    assert makespan(other, f, b, w) == makespan(s, f, b, w)
    assert np.array_equal(in_flight(other), in_flight(s))


@law
@given(st.sampled_from(NAMES), st.integers(1, 12), st.integers(1, 4))
def test_one_stage_is_plain_gradient_accumulation(name, micro_batches, chunks):
    s = schedule(name, 1, micro_batches, chunks if name == "interleaved" else 1)
    assert makespan(s, 1.0, 0.75, 0.5) == 2.25 * micro_batches * s.chunks
    assert in_flight(s).tolist() == [s.chunks]
    order = s.micro_batch.tolist()
    assert order == sorted(order)
    assert set(s.kind.tolist()) == {Kind.FORWARD, Kind.BACKWARD}


@law
@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 8), st.integers(0, 20), times, times, times)
def test_gpipe_and_1f1b_bubble_is_p_minus_1_over_m(name, p, more, f, b, w):
    m = p + more
    s = schedule(name, p, m)
    assert bubble(s, f, b, w) / work(s, f, b, w) == pytest.approx((p - 1) / m)


@law
@given(st.integers(2, 8), st.integers(1, 3), st.integers(2, 5), times, times, times)
def test_interleaved_bubble_is_p_minus_1_over_v_m(p, groups, v, f, b, w):
    m = p * groups
    s = schedule("interleaved", p, m, v)
    assert bubble(s, f / v, b / v, w / v) / work(s, f / v, b / v, w / v) == pytest.approx((p - 1) / (v * m))


@law
@given(st.integers(2, 6), st.integers(0, 4), st.integers(1, 3), st.integers(0, 9), st.integers(2, 4), times, times)
def test_groups_of_at_least_p_have_the_same_bubble_and_hold_more(p, more, groups, rest, v, f, b):
    """Whole groups, and one of what is left where that is at least p: nobody waits between groups."""
    n = p + more
    rest = rest if p <= rest < n else 0
    m = n * groups + rest
    s = schedule("interleaved", p, m, v, n)
    assert bubble(s, f, b, 0.0) / work(s, f, b, 0.0) == pytest.approx((p - 1) / (v * m))
    rank = np.arange(p)
    assert in_flight(s).tolist() == np.minimum(m * v, 2 * (p - 1 - rank) + (v - 1) * n + 1).tolist()


@law
@given(st.integers(2, 8), st.integers(1, 7), st.integers(1, 20), st.integers(2, 4), times, times)
def test_groups_smaller_than_p_hold_less_and_wait(p, n, m, v, f, b):
    n = min(n, p - 1, m)
    s = schedule("interleaved", p, m, v, n)
    assert bubble(s, f, b, 0.0) >= (p - 1) * (f + b) - 1e-9
    whole = schedule("interleaved", p, p * -(-m // p), v)
    assert np.all(in_flight(s) <= in_flight(whole))
    if m <= n:  # one group: as long as one of p would take, but for the passes that are not there
        assert makespan(s, f, b, 0.0) <= makespan(schedule("interleaved", p, p, v), f, b, 0.0) + 1e-9


@law
@given(st.integers(2, 8), st.integers(1, 12), st.integers(1, 20), st.integers(2, 4))
def test_passes_in_flight_are_those_before_the_first_backward(p, n, m, v):
    s = schedule("interleaved", p, m, v, min(n, m))
    chunks = chunks_in_flight(p, m, v, min(n, m))
    for rank in range(p):
        kind, chunk = s.kind[s.of_rank(rank)], s.chunk[s.of_rank(rank)]
        first = int(np.argmax(kind == Kind.BACKWARD))
        assert chunks[rank].tolist() == np.bincount(chunk[:first], minlength=v).tolist()


@law
@given(st.integers(2, 8), st.integers(0, 16), times, times, st.floats(0.0, 1.0))
def test_zb_h1_bubble(p, more, f, b, share):
    w = share * min(f, b)
    s = schedule("zb-h1", p, p + more)
    assert bubble(s, f, b, w) == pytest.approx((p - 1) * (f + b - w))
    assert bubble(s, f, f, f) == pytest.approx(bubble(schedule("1f1b", p, p + more), f, f, f) / 3)


@law
@given(st.integers(2, 8), st.integers(0, 12), times)
def test_zb_v_ranks_never_idle_once_started_when_times_are_equal(p, more, f):
    s = schedule("zb-v", p, 2 * p - 1 + more)
    duration = durations(s, f, f, f)
    end = walk(s, duration)
    start = end - duration
    for rank in range(p):
        mine = slice(s.rank_offset[rank], s.rank_offset[rank + 1])
        assert start[mine].min() == pytest.approx(rank * f)
        assert end[mine].max() - start[mine].min() == pytest.approx(duration[mine].sum())


@law
@given(st.booleans(), st.integers(1, 4), st.integers(0, 8), times, times)
def test_dualpipe_bubble_of_the_report(two_chains, half, more, f, share):
    """Table 2 of the DeepSeek-V3 report: (p/2 - 1)(F&B + B - 3W), for equal F, input and weight gradient."""
    if two_chains:
        s = schedule("dualpipe", 2 * half, 4 * half + 2 * more)
    else:
        s = schedule("dualpipe-v", half, 2 * half + more)
    pair, backward = 3 * f, 2 * f
    if half > 1 or two_chains:
        assert bubble(s, f, f, f, fused=1.0) == pytest.approx((half - 1) * (pair + backward - 3 * f))
    assert bubble(s, f, f, f) <= bubble(s, f, f, f, fused=1.0) + 1e-9
    hidden = min(1.0, share)
    assert makespan(s, f, f, f, fused=hidden) <= makespan(s, f, f, f, fused=1.0) + 1e-9


@law
@given(st.integers(2, 8), st.integers(1, 24), st.integers(2, 4))
def test_activations_in_flight(p, m, v):
    rank = np.arange(p)
    assert in_flight(schedule("gpipe", p, m)).tolist() == [m] * p
    assert in_flight(schedule("1f1b", p, m)).tolist() == np.minimum(m, p - rank).tolist()
    assert in_flight(schedule("zb-h1", p, m)).tolist() == np.minimum(m, p - rank).tolist()
    assert in_flight(schedule("zb-h1", p, m), kept_after_input=1.0).tolist() == [min(m, p)] * p
    megatron = np.minimum(p * m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1)
    assert in_flight(schedule("interleaved", p, p * m, v)).tolist() == megatron.tolist()
    full = schedule("zb-v", p, 2 * p - 1 + m)
    assert in_flight(full, weight=0.5, kept_after_input=1.0).tolist() == [p] * p
    assert in_flight(schedule("zb-v", p, m), kept_after_input=1.0).max() <= 2 * p
    assert in_flight(schedule("dualpipe-v", p, 2 * p + m)).max() == 2 * p + 1


@law
@given(st.integers(1, 4), st.integers(0, 8))
def test_dualpipe_holds_p_plus_1_activations_and_every_stage_twice(half, more):
    p, m = 2 * half, 4 * half + 2 * more
    s = schedule("dualpipe", p, m)
    assert in_flight(s).max() == p + 1
    assert sorted(s.virtual_stage.ravel().tolist()) == sorted(2 * list(range(p)))
    assert np.array_equal(s.virtual_stage.sum(axis=1), np.full(p, p - 1))
    way = s.chunk  # the chain down is chunk 0 of every rank, the chain up chunk 1
    assert np.array_equal(way == 1, s.micro_batch >= m // 2)


@law
@given(st.integers(2, 5), st.integers(0, 6))
def test_overlapped_pairs_are_a_forward_and_a_backward_side_by_side(p, more):
    s = schedule("dualpipe-v", p, 2 * p + more)
    first = np.flatnonzero((s.overlap >= 0) & (s.overlap > np.arange(len(s.rank))))
    assert len(first) > 0
    assert np.array_equal(s.overlap[first], first + 1)
    assert np.array_equal(s.overlap[first + 1], first)
    assert np.all(s.rank[first] == s.rank[first + 1])
    assert np.all(s.kind[first] == Kind.FORWARD)
    assert np.all(s.kind[first + 1] == Kind.BACKWARD)
    assert np.all(s.chunk[first] != s.chunk[first + 1])


@law
@given(st.integers(1, 8), st.integers(1, 20), times, times, times)
def test_1f1b_makespan_against_an_event_simulation(p, m, f, b, w):
    """An event loop that knows 1F1B by its rule (backward first when one is ready, at most p - r in flight)."""
    forward_ready = [0] * p  # micro-batches whose input has come
    backward_ready = [0] * p
    forward_ready[0] = m
    held, busy, now = [0] * p, [False] * p, 0.0
    events: list[tuple[float, int, int, str]] = []
    while True:
        for r in range(p):
            if busy[r]:
                continue
            if backward_ready[r]:
                backward_ready[r] -= 1
                heapq.heappush(events, (now + b + w, len(events), r, "backward"))
            elif forward_ready[r] and held[r] < p - r:
                forward_ready[r] -= 1
                held[r] += 1
                heapq.heappush(events, (now + f, len(events), r, "forward"))
            else:
                continue
            busy[r] = True
        if not events:
            break
        now = events[0][0]
        while events and events[0][0] <= now:
            _, _, r, what = heapq.heappop(events)
            busy[r] = False
            if what == "backward":
                held[r] -= 1
                if r > 0:
                    backward_ready[r - 1] += 1
            elif r + 1 < p:
                forward_ready[r + 1] += 1
            else:
                backward_ready[r] += 1
    assert makespan(schedule("1f1b", p, m), f, b, w) == pytest.approx(now)
