"""Attention ranks that wait for each other with their prompts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from prices import PlainPrices, plain_times

from windtunnel.studies.serving.engines.profile import Profile
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica import Replica, Rules, Sequence
from windtunnel.studies.serving.replica.ranks import RankGate
from windtunnel.studies.serving.step_time.times import TICKS_PER_S
from windtunnel.studies.serving.workload.lengths import lengths
from windtunnel.studies.serving.workload.requests import Workload

RULES = Rules(
    ranks=4,
    gather_steps=60,
    chunked=False,
    reserve="output",
    max_num_seqs=64,
    token_budget=4 * 1200,
    longest_chunk=1200,
    block_size=32,
    lag=True,
)


def _served(rules: Rules, concurrency: int = 64, count: int = 640) -> tuple[Replica, list[Sequence]]:
    prompts, outputs = lengths(count, 1024, 256, 0.8, 0)
    replica = Replica(plain_times(), rules, 100_000)
    sent, _ = simulate(Workload(prompts, outputs, None, concurrency), [replica], None, block_size=32)
    return replica, sent


def _of_rank(gate: RankGate, rank: int) -> Sequence:
    one = Sequence(0, 1, 1, 0)
    one.rank = rank
    gate.arrives(one)
    return one


def test_prompts_wait_for_every_rank_for_an_idle_rank_or_for_the_count() -> None:
    gate = RankGate(2, 60)
    gate.here = [1, 1]
    gate.decoding = [1, 0]
    assert gate.opens(10)  # the second has nothing to decode
    gate.decoding = [1, 1]
    _of_rank(gate, 0)
    assert not gate.opens(11)
    assert gate.opens_at(11) == 70
    assert gate.opens(70)
    assert not gate.opens(71)
    _of_rank(gate, 1)
    assert gate.opens(72)


def test_the_count_runs_also_while_nobody_waits() -> None:
    gate = RankGate(2, 60)
    gate.decoding = [1, 1]
    gate.waiting = [1, 0]
    assert not gate.opens(130)
    assert gate.opens_at(130) == 180


def test_what_nobody_came_for_does_not_begin_the_count_anew() -> None:
    gate = RankGate(2, 60)
    gate.decoding = [0, 1]
    assert gate.opens(30)
    gate.nobody_came()
    assert gate.opens_at(31) == 60


def test_a_request_belongs_to_the_rank_with_the_fewest() -> None:
    gate = RankGate(3, 60)
    for _ in range(7):
        gate.arrives(Sequence(0, 1, 1, 0))
    assert gate.here == [3, 2, 2]


@pytest.mark.parametrize("chunked", [False, True])
def test_every_request_ends_and_leaves_its_rank(chunked: bool) -> None:
    replica, sent = _served(replace(RULES, chunked=chunked))
    assert all(one.last_ns >= one.first_ns >= 0 for one in sent)
    assert replica.pool.held == 0
    gate = replica.admission.gate
    assert gate is not None
    assert (sum(gate.here), sum(gate.waiting), sum(gate.decoding)) == (0, 0, 0)


def test_waiting_for_each_other_costs_first_tokens_and_spares_the_others() -> None:
    def means(rules: Rules) -> tuple[float, float]:
        _, sent = _served(rules)
        first = np.mean([one.first_ns - one.arrival_ns for one in sent])
        return float(first), float(np.mean([(one.last_ns - one.first_ns) / (one.output - 1) for one in sent]))

    alone, short, long = means(replace(RULES, ranks=1)), means(replace(RULES, gather_steps=5)), means(RULES)
    assert alone[0] < short[0] < long[0]
    assert alone[1] > long[1]
    # Without a backlog a prompt waits for the count once at most.
    assert long[0] - alone[0] < 60 * alone[1]


def test_a_rank_takes_what_its_own_tokens_allow() -> None:
    """One prompt of each rank goes into a step, however many wait."""
    replica = Replica(plain_times(), replace(RULES, lag=False), 100_000)
    for index in range(9):
        replica.submit(Sequence(index, 1024, 64, 0), 0)
    replica.advance()  # the first came alone
    assert len(replica._chunks) == 4
    assert sorted(one.rank for one, _ in replica._chunks) == [0, 1, 2, 3]


class Exchanged(PlainPrices):
    def exchange(self, tokens: float) -> float:
        return 1e-6 * tokens


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_unequal_ranks_pay_for_every_chain_that_fills(ranks: int) -> None:
    """Nothing between two ranks, so much more of the exchange with each further one, and nothing in pure decodes."""
    plain = Profile(engine="plain", release="1")
    uneven = replace(plain, uneven_exchange_hop=0.2)
    chunks = [(64, 0)] * ranks
    tokens = 64 * ranks
    even, chained = (plain_times(one, Exchanged(), ranks) for one in (plain, uneven))
    more = chained.mixed(0, 0, chunks, 0) - even.mixed(0, 0, chunks, 0)
    assert more / TICKS_PER_S == pytest.approx(0.2 * max(0, ranks - 2) * 1e-6 * tokens, abs=2e-9)
    assert chained.decode(64).at(6400) == even.decode(64).at(6400)
