"""Laws of a serving replica: runs equal single steps to the nanosecond, nothing is lost, blocks are conserved."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prices import PlainPrices, plain_times

from windtunnel.studies.serving.batching import ContinuousBatching
from windtunnel.studies.serving.engines.profile import Profile
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica import Replica, Rules, Sequence, StepwiseReplica
from windtunnel.studies.serving.replica.runs import steps_until
from windtunnel.studies.serving.replica.tally import GAP_SHIFT
from windtunnel.studies.serving.routing import LeastLoaded, RoundRobin
from windtunnel.studies.serving.step_time.times import TICKS_PER_NS
from windtunnel.studies.serving.workload.lengths import arrivals
from windtunnel.studies.serving.workload.requests import Workload

BLOCK = 16


def _stamps(sent: list[Sequence]) -> list[tuple[int, ...]]:
    ordered = sorted(sent, key=lambda one: one.index)
    return [(o.queued_ns, o.scheduled_ns, o.first_ns, o.last_ns, o.preemptions) for o in ordered]


def _workload(seed: int, n: int, rate: float, concurrency: int | None = None, longest: int = 700) -> Workload:
    draw = np.random.default_rng(seed)
    prompts, outputs = draw.integers(1, longest, n), draw.integers(1, 300, n)
    times = None if concurrency else arrivals(n, rate, 1.0, seed)
    return Workload(prompts, outputs, times, concurrency)


@st.composite
def _cases(draw: st.DrawFn) -> tuple[Workload, Rules, int]:
    closed = draw(st.booleans())
    load = _workload(
        draw(st.integers(0, 10_000)),
        draw(st.integers(1, 40)),
        draw(st.floats(0.5, 80.0)),
        draw(st.integers(1, 12)) if closed else None,
    )
    rules = Rules(
        batching=draw(st.sampled_from(["mixed", "prefill_first"])),
        chunked=draw(st.booleans()),
        reserve=draw(st.sampled_from(["prompt", "output", "ratio"])),
        max_num_seqs=draw(st.integers(1, 20)),
        token_budget=draw(st.integers(64, 1024)),
        longest_chunk=draw(st.sampled_from([64, 256, 1024])),
        block_size=BLOCK,
        watermark_blocks=draw(st.integers(0, 2)),
    )
    return load, rules, draw(st.integers(70, 400))


@settings(max_examples=120, deadline=None)
@given(_cases())
def test_runs_of_steps_equal_single_steps_to_the_nanosecond(case: tuple[Workload, Rules, int]) -> None:
    load, rules, blocks = case
    if rules.reserve == "ratio":  # looked at every few steps in runs, and after each one here
        rules = Rules(**{**_fields(rules), "reserve": "output"})
    times = plain_times()
    fast, slow = Replica(times, rules, blocks), StepwiseReplica(times, rules, blocks, ContinuousBatching())
    swift, _ = simulate(load, [fast], None, block_size=BLOCK, longest=blocks * BLOCK)
    plain, _ = simulate(load, [slow], None, block_size=BLOCK, longest=blocks * BLOCK)
    assert _stamps(swift) == _stamps(plain)
    assert fast.tally.steps == slow.tally.steps
    assert fast.tally.tokens == slow.tally.tokens


@settings(max_examples=60, deadline=None)
@given(_cases(), st.booleans())
def test_every_request_ends_once_and_all_blocks_come_back(case: tuple[Workload, Rules, int], lag: bool) -> None:
    load, rules, blocks = case
    rules = Rules(**{**_fields(rules), "lag": lag, "prefix_caching": True})
    names = [tuple(range(int(size) // BLOCK)) for size in load.input_tokens]
    named = Workload(load.input_tokens, load.output_tokens, load.arrival_ns, load.concurrency, names, BLOCK)
    replica = Replica(plain_times(), rules, blocks)
    sent, refused = simulate(named, [replica], None, block_size=BLOCK, longest=blocks * BLOCK)
    assert len(sent) + len(refused) == len(named)
    assert sorted([o.index for o in sent] + [o.index for o in refused]) == list(range(len(named)))
    for one in sent:
        assert one.arrival_ns <= one.queued_ns <= one.last_ns
        assert one.scheduled_ns < one.first_ns <= one.last_ns
        assert one.generated == one.output
    assert replica.load == 0
    assert replica.pool.held == 0
    assert replica.outstanding_tokens == 0
    _check_gaps(replica, sent)


@settings(max_examples=60, deadline=None)
@given(_cases())
def test_gaps_between_tokens_fill_the_time_from_first_to_last_token(case: tuple[Workload, Rules, int]) -> None:
    load, rules, blocks = case
    for replica in (
        Replica(plain_times(), rules, blocks),
        StepwiseReplica(plain_times(), rules, blocks, ContinuousBatching()),
    ):
        sent, _ = simulate(load, [replica], None, block_size=BLOCK, longest=blocks * BLOCK)
        _check_gaps(replica, sent)


def _check_gaps(replica: Replica | StepwiseReplica, sent: list[Sequence]) -> None:
    """A gap before each token but the first; together they are what passes between first and last token."""
    counts = replica.tally.gap_counts
    tokens = sum(one.output - 1 for one in sent)
    assert sum(counts.values()) == tokens
    unit_ns = (1 << GAP_SHIFT) / TICKS_PER_NS
    counted = sum((key + 0.5) * count for key, count in counts.items()) * unit_ns
    assert counted == pytest.approx(sum(one.last_ns - one.first_ns for one in sent), abs=unit_ns * tokens)


def _fields(rules: Rules) -> dict[str, Any]:
    return {field.name: getattr(rules, field.name) for field in fields(rules)}


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 10**15), st.integers(1, 10**10), st.integers(0, 10**6))
def test_the_step_of_an_arrival_is_the_first_that_is_late_enough(ticks: int, first: int, growth: int) -> None:
    def until(steps: int) -> int:
        return steps * first + growth * (steps * (steps - 1) // 2)

    steps = steps_until(ticks, first, growth)
    assert until(steps) >= ticks
    assert steps == 1 or until(steps - 1) < ticks


def test_batch_of_one_is_an_m_d_1_queue() -> None:
    """One sequence at a time, equal service: the Pollaczek-Khinchine mean wait, rho / (2 (1 - rho)) services."""
    n, rho = 60_000, 0.7
    times = plain_times(Profile(engine="plain", release="1"), PlainPrices(per_context_s=0.0))
    rules = Rules(max_num_seqs=1, block_size=BLOCK)
    ones = np.full(n, 32, dtype=np.int64)
    alone, _ = simulate(
        Workload(ones[:1], ones[:1], np.zeros(1, np.int64)), [Replica(times, rules, 100)], None, block_size=BLOCK
    )
    service_s = (alone[0].last_ns - alone[0].arrival_ns) * 1e-9
    load = Workload(ones, ones, arrivals(n, rho / service_s, 1.0, 4))
    sent, _ = simulate(load, [Replica(times, rules, 100)], None, block_size=BLOCK)
    wait_s = float(np.mean([one.last_ns - one.arrival_ns for one in sent])) * 1e-9 - service_s
    assert wait_s == pytest.approx(service_s * rho / (2 * (1 - rho)), rel=0.05)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.floats(1.0, 30.0))
def test_more_rate_never_lowers_the_load(seed: int, rate: float) -> None:
    def busy(factor: float) -> float:
        replica = Replica(plain_times(), Rules(block_size=BLOCK), 2000)
        load = _workload(seed, 60, rate * factor)
        sent, _ = simulate(load, [replica], None, block_size=BLOCK)
        return replica.tally.busy_ticks / (max(o.last_ns for o in sent) * 1024)

    assert busy(2.0) >= busy(1.0) * (1 - 1e-9)


def test_the_same_seed_gives_the_same_stamps_and_a_replica_never_idles_with_work() -> None:
    load = _workload(3, 200, 20.0)
    runs = []
    for _ in range(2):
        replica = Replica(plain_times(), Rules(block_size=BLOCK), 3000)
        sent, _ = simulate(load, [replica], None, block_size=BLOCK)
        runs.append(_stamps(sent))
    assert runs[0] == runs[1]
    present = sorted((o.arrival_ns, o.last_ns) for o in sent)
    covered, end = 0, -1
    for begin, last in present:  # time during which at least one request is there
        covered += max(0, last - max(begin, end))
        end = max(end, last)
    assert replica.tally.busy_ticks / 1024 == pytest.approx(covered, abs=len(sent) * 2.0)


def test_replicas_in_turn_are_the_same_simulated_one_by_one_or_together() -> None:
    class Turns:
        def __init__(self) -> None:
            self.inner = RoundRobin()

        def choose(self, one: Sequence, servers: Any) -> int:
            return self.inner.choose(one, servers)

    load = _workload(11, 300, 40.0)
    stamps = []
    for router in (RoundRobin(), Turns()):
        servers = [Replica(plain_times(), Rules(block_size=BLOCK), 300) for _ in range(3)]
        sent, _ = simulate(load, servers, router, block_size=BLOCK, longest=900)
        stamps.append(_stamps(sent))
    assert stamps[0] == stamps[1]


@pytest.mark.parametrize("router", [RoundRobin, LeastLoaded])
def test_replicas_share_the_requests(router: Any) -> None:
    load = _workload(5, 400, 60.0)
    servers = [Replica(plain_times(), Rules(block_size=BLOCK), 3000) for _ in range(4)]
    sent, _ = simulate(load, servers, router(), block_size=BLOCK)
    assert len(sent) == 400
    tokens = [server.tally.tokens for server in servers]
    assert min(tokens) > 0.1 * sum(tokens)
    assert sum(tokens) == int(load.input_tokens.sum() + load.output_tokens.sum()) - 400
    assert all(server.pool.held == 0 for server in servers)


@pytest.mark.parametrize("lag", [False, True])
@pytest.mark.parametrize(("arrives_s", "steps"), [(0.35, 60), (0.95, 120), (1.25, 180)])
def test_an_engine_that_polls_admits_at_the_steps_at_which_it_looks(arrives_s: float, steps: int, lag: bool) -> None:
    """The first request decodes alone; the second waits for the next multiple of 60 steps since the first's prompt.

    Where a step is planned while the one before it runs, the second is planned at that look, and runs one step later.
    """
    times = plain_times()
    stamps = {}
    for every in (1, 60):
        replica = Replica(times, Rules(receive_steps=every, lag=lag), 4000)
        load = Workload(np.array([100, 100]), np.array([400, 10]), np.array([0, int(arrives_s * 1e9)]))
        sent, _ = simulate(load, [replica], None, block_size=16)
        stamps[every] = sent
    first, second = stamps[60]
    line = times.decode(1)
    ticks = first.first_ns * 1024 + sum(line.at(100 + step) for step in range(1, steps + 1))
    assert second.scheduled_ns == pytest.approx(ticks / 1024, abs=2)
    assert second.scheduled_ns >= stamps[1][1].scheduled_ns
    assert first.last_ns > first.first_ns


def test_no_request_is_scheduled_before_it_came_where_plans_lag() -> None:
    rules = Rules(lag=True, block_size=BLOCK)  # the second comes while the first, of one token, is computed
    load = Workload(np.array([64, 64]), np.array([1, 1]), np.array([0, 1000]))
    replica = Replica(plain_times(), rules, 100)
    sent, _ = simulate(load, [replica], None, block_size=BLOCK)
    first, second = sorted(sent, key=lambda one: one.index)
    assert first.last_ns > 1000
    assert second.scheduled_ns == pytest.approx(first.last_ns, abs=1)
