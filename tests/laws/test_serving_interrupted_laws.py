"""Laws of a replica that is disturbed between its events: what a clock sees is what the simulation says."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from prices import plain_times

from windtunnel.studies.serving.emulator.fleet import Fleet
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica import Replica, Rules, Sequence
from windtunnel.studies.serving.replica.interruption import blocks_held, cancel, tokens_given, unfinished
from windtunnel.studies.serving.replica.sequence import NEVER
from windtunnel.studies.serving.routing import LeastLoaded
from windtunnel.studies.serving.workload.lengths import arrivals
from windtunnel.studies.serving.workload.requests import Workload

BLOCK = 4  # small, so that few examples meet every residue of it


def _workload(seed: int, n: int, rate: float) -> Workload:
    draw = np.random.default_rng(seed)
    return Workload(draw.integers(1, 500, n), draw.integers(1, 120, n), arrivals(n, rate, 1.0, seed))


@st.composite
def _rules(draw: st.DrawFn) -> Rules:
    gather = draw(st.sampled_from([1, 2]))
    ranks = 1 if gather > 1 else draw(st.sampled_from([1, 1, 3]))
    return Rules(
        batching=draw(st.sampled_from(["mixed", "prefill_first"])),
        chunked=draw(st.booleans()),
        reserve=draw(st.sampled_from(["prompt", "output"])),
        max_num_seqs=draw(st.integers(1, 12)),
        token_budget=draw(st.integers(64, 700)),
        longest_chunk=draw(st.sampled_from([64, 512])),
        block_size=BLOCK,
        prefix_caching=draw(st.booleans()),
        lag=draw(st.booleans()),
        gather=gather,
        gather_steps=3 if gather > 1 or ranks > 1 else 0,
        ranks=ranks,
        receive_steps=draw(st.sampled_from([1, 1, 7])),
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9999), _rules(), st.integers(1, 3), st.integers(180, 1200), st.floats(2.0, 60.0))
def test_a_clock_sees_the_stamps_of_the_simulation(
    seed: int, rules: Rules, replicas: int, blocks: int, rate: float
) -> None:
    load = _workload(seed, 25, rate)
    times = plain_times()
    servers = [Replica(times, rules, blocks) for _ in range(replicas)]
    sent, _ = simulate(load, servers, LeastLoaded(), block_size=BLOCK)
    first, last = {o.index: o.first_ns for o in sent}, {o.index: o.last_ns for o in sent}

    fleet = Fleet(lambda: Replica(times, rules, blocks), replicas, LeastLoaded())
    assert load.arrival_ns is not None
    coming = list(zip(load.arrival_ns.tolist(), load.input_tokens.tolist(), load.output_tokens.tolist(), strict=True))
    seen_first: dict[int, int] = {}
    seen_last: dict[int, int] = {}
    tokens: dict[int, int] = {}
    now, place = 0, 0
    while place < len(coming) or len(fleet):
        now = max(now, min(fleet.next_ns(now), coming[place][0] if place < len(coming) else NEVER))
        for told in fleet.advance(now):
            tokens[told.index] = tokens.get(told.index, 0) + told.tokens
            if told.tokens:
                seen_first.setdefault(told.index, told.at_ns)
            if told.finished:
                assert told.index not in seen_last
                seen_last[told.index] = told.at_ns
        if place < len(coming) and coming[place][0] <= now:
            at_ns, prompt, output = coming[place]
            assert fleet.submit(Sequence(place, prompt, output, at_ns), at_ns)
            place += 1
    for told in fleet.advance(now + 1):
        tokens[told.index] += told.tokens
        seen_last[told.index] = told.at_ns
    assert tokens == dict(enumerate(load.output_tokens.tolist()))
    assert seen_last == last
    assert all(abs(seen_first[index] - at_ns) <= 1 for index, at_ns in first.items())


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 9999), _rules(), st.integers(180, 800), st.floats(5.0, 80.0))
def test_who_hangs_up_leaves_nothing_behind(seed: int, rules: Rules, blocks: int, rate: float) -> None:
    load = _workload(seed, 30, rate)
    assert load.arrival_ns is not None
    draw = np.random.default_rng(seed + 1)
    replica = Replica(plain_times(), rules, blocks)
    events = [(int(at), 0, index) for index, at in enumerate(load.arrival_ns.tolist())]
    events += [(at + int(draw.exponential(0.6e9)), 1, index) for at, _, index in list(events) if draw.random() < 0.7]
    ended: set[int] = set()
    left: set[int] = set()
    for now, what, index in sorted(events):
        while replica.next_ns <= now:
            ended |= {one.index for one in replica.advance()}
        if what == 0:
            prompt = int(load.input_tokens[index])
            names = tuple(range(prompt // BLOCK)) if rules.prefix_caching else ()
            replica.submit(Sequence(index, prompt, int(load.output_tokens[index]), now, names), now)
        elif cancel(replica, index, now):
            assert index not in ended
            left.add(index)
            assert replica.next_ns >= now  # what has passed stays as it was
        assert 0 <= blocks_held(replica, replica.steps_done(now)) <= blocks
    while replica.next_ns < NEVER:
        ended |= {one.index for one in replica.advance()}
    assert ended | left == set(range(30))
    assert not ended & left
    assert (replica.load, replica.pool.held, replica.outstanding_tokens) == (0, 0, 0)
    assert replica.batch.context_sum == 0
    assert not any(replica.batch.due)
    assert replica.cache.promised == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), _rules(), st.floats(0.01, 3.0))
def test_a_lost_replica_gives_back_every_request_with_the_tokens_it_had(seed: int, rules: Rules, at_s: float) -> None:
    load = _workload(seed, 30, 20.0)
    assert load.arrival_ns is not None
    now = int(at_s * 1e9)
    replica = Replica(plain_times(), rules, 600)
    ended: set[int] = set()
    sent = [index for index, at in enumerate(load.arrival_ns.tolist()) if at <= now]
    for index in sent:
        at = int(load.arrival_ns[index])
        while replica.next_ns <= at:
            ended |= {one.index for one in replica.advance()}
        replica.submit(Sequence(index, int(load.input_tokens[index]), int(load.output_tokens[index]), at), at)
    while replica.next_ns <= now:
        ended |= {one.index for one in replica.advance()}
    done = replica.steps_done(now)
    had = {one.index: tokens_given(replica, one, done) for one in replica.running.values()}
    gone = unfinished(replica, now)
    assert {one.index for one in gone} | ended == set(sent)
    for one in gone:
        assert one.known == one.prompt + one.generated
        assert one.generated == had.get(one.index, one.generated)
        assert 0 <= one.generated < one.output
    again = Replica(plain_times(), rules, 600)
    for one in gone:
        again.submit(one, now)
    while again.next_ns < NEVER:
        again.advance()
    assert all(one.generated == one.output and one.last_ns > now for one in gone)
    assert again.pool.held == 0
