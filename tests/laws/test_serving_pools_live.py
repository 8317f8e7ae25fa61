"""Laws of prefill and decode pools under a clock: what a client sees is the simulation, and nothing is left behind."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from prices import plain_times

from windtunnel.studies.serving.disaggregated.server import Disaggregated
from windtunnel.studies.serving.disaggregated.units import cancel, replicas_of, unfinished
from windtunnel.studies.serving.emulator.fleet import Fleet
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica import Replica, Rules, Sequence
from windtunnel.studies.serving.replica.sequence import NEVER
from windtunnel.studies.serving.routing import LeastLoaded
from windtunnel.studies.serving.workload.lengths import arrivals
from windtunnel.studies.serving.workload.requests import Workload

N = 30


def _load(seed: int, rate: float) -> Workload:
    draw = np.random.default_rng(seed)
    return Workload(draw.integers(1, 400, N), draw.integers(1, 80, N), arrivals(N, rate, 1.0, seed))


def _server(senders: int, takers: int, blocks: int) -> Disaggregated:
    rules = Rules(max_num_seqs=8, token_budget=512, longest_chunk=512)
    sides = [[Replica(plain_times(), rules, blocks) for _ in range(count)] for count in (senders, takers)]
    return Disaggregated(sides[0], sides[1], lambda tokens: 3_000_000 + 40_000 * tokens)


def _nothing_left(server: Disaggregated) -> bool:
    parts = replicas_of(server)
    counts = [(part.load, part.pool.held, part.outstanding_tokens) for part in parts]
    return server.load == 0 and set(counts) == {(0, 0, 0)} and not server.unwanted


shapes = st.tuples(st.integers(1, 2), st.integers(1, 2), st.integers(60, 200))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 9999), shapes, st.integers(1, 2), st.floats(2.0, 60.0))
def test_a_clock_sees_the_stamps_of_the_simulation(
    seed: int, shape: tuple[int, int, int], units: int, rate: float
) -> None:
    load = _load(seed, rate)
    sent, _ = simulate(load, [_server(*shape) for _ in range(units)], LeastLoaded(), block_size=16)
    fleet = Fleet(lambda: _server(*shape), units, LeastLoaded())
    assert load.arrival_ns is not None
    coming = load.arrival_ns.tolist()
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    tokens = dict.fromkeys(range(N), 0)
    now, place = 0, 0
    while place < N or len(fleet):
        now = max(now, min(fleet.next_ns(now), coming[place] if place < N else NEVER))
        for told in fleet.advance(now):
            tokens[told.index] += told.tokens
            first.setdefault(told.index, told.at_ns)
            if told.finished:
                assert told.index not in last
                last[told.index] = told.at_ns
        if place < N and coming[place] <= now:
            sequence = Sequence(place, int(load.input_tokens[place]), int(load.output_tokens[place]), coming[place])
            assert fleet.submit(sequence, coming[place])
            place += 1
    for told in fleet.advance(now + 1):
        tokens[told.index] += told.tokens
        last[told.index] = told.at_ns
    assert tokens == dict(enumerate(load.output_tokens.tolist()))
    assert last == {one.index: one.last_ns for one in sent}
    assert all(abs(first[one.index] - one.first_ns) <= 1 for one in sent)
    assert [gauge.kv_use for gauge in fleet.gauges(now)] == [0.0] * units


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 9999), shapes, st.floats(5.0, 80.0))
def test_who_hangs_up_leaves_nothing_behind(seed: int, shape: tuple[int, int, int], rate: float) -> None:
    load = _load(seed, rate)
    assert load.arrival_ns is not None
    draw = np.random.default_rng(seed + 1)
    server = _server(*shape)
    events = [(int(at), 0, index) for index, at in enumerate(load.arrival_ns.tolist())]
    events += [(at + int(draw.exponential(0.2e9)), 1, index) for at, _, index in list(events) if draw.random() < 0.7]
    ended: set[int] = set()
    left: set[int] = set()
    for now, what, index in sorted(events):
        while server.next_ns <= now:
            ended |= {one.index for one in server.advance()}
        if what == 0:
            prompt, output = int(load.input_tokens[index]), int(load.output_tokens[index])
            server.submit(Sequence(index, prompt, output, now), now)
        elif cancel(server, index, now):
            assert index not in ended
            left.add(index)
    while server.next_ns < NEVER:
        ended |= {one.index for one in server.advance()}
    assert ended | left == set(range(N))
    assert not ended & left
    assert _nothing_left(server)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9999), shapes, st.floats(0.05, 2.0))
def test_lost_pools_give_back_every_request_with_the_tokens_its_client_had(
    seed: int, shape: tuple[int, int, int], at_s: float
) -> None:
    load = _load(seed, 20.0)
    assert load.arrival_ns is not None
    now = int(at_s * 1e9)
    fleet = Fleet(lambda: _server(*shape), 1, LeastLoaded())
    server = fleet.replicas[0]
    assert isinstance(server, Disaggregated)
    had = {}
    for index, at in enumerate(load.arrival_ns.tolist()):
        if at <= now:
            prompt, output = int(load.input_tokens[index]), int(load.output_tokens[index])
            assert fleet.submit(Sequence(index, prompt, output, at), at)
            had[index] = 0
    ended = set()
    for told in fleet.advance(now):
        had[told.index] += told.tokens
        ended |= {told.index} if told.finished else set()
    gone = unfinished(server, now)
    assert {one.index for one in gone} == set(had) - ended
    assert server.next_ns == NEVER
    for one in gone:
        assert one.generated == had[one.index] < one.output
        assert one.known == one.prompt + one.generated
        assert (one.first_ns >= 0) == (one.generated > 0)
    again = _server(*shape)
    for one in gone:
        again.submit(one, now)
    while again.next_ns < NEVER:
        again.advance()
    assert all(one.generated == one.output and one.last_ns > now for one in gone)
    assert _nothing_left(again)
