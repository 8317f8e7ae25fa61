"""FastServe's queues on the stepwise replica: every request ends, blocks are conserved, short ones pass long ones."""

from __future__ import annotations

import numpy as np
import pytest
from fitted_times import FittedTimes
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.studies.serving.batching.continuous import ContinuousBatching
from windtunnel.studies.serving.batching.plan import Batching
from windtunnel.studies.serving.batching.skip_join import SkipJoinBatching
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.sequence import Sequence
from windtunnel.studies.serving.replica.stepwise import StepwiseReplica
from windtunnel.studies.serving.workload.requests import Workload

TIMES = FittedTimes((18.0, 0.1, 0.0), (20.0, 0.0006, 0.04), (7.0, 0.0006, 0.16), 95)
RULES = Rules(max_num_seqs=4, token_budget=512, longest_chunk=512, chunked=False, swap_ticks_per_block=100_000_000)


def skip_join(host_blocks: int = 60, proactive: bool = True) -> SkipJoinBatching:
    def prefill_ns(tokens: int) -> int:
        return TIMES.mixed(0, 0, [(tokens, 0)], 1) // 1024

    return SkipJoinBatching(prefill_ns, batch=4, prompt_tokens=512, host_blocks=host_blocks, proactive=proactive)


def served(policy: Batching, workload: Workload, blocks: int, host: int = 60) -> tuple[list[Sequence], StepwiseReplica]:
    replica = StepwiseReplica(TIMES, RULES, blocks, policy, host)
    sent, refused = simulate(workload, [replica], None, block_size=16)
    assert not refused
    return sent, replica


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 25), st.integers(25, 80), st.integers(0, 60), st.booleans(), st.integers(0, 2**31))
def test_every_request_ends_once_and_all_blocks_come_back(
    n: int, blocks: int, host: int, proactive: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    arrivals = np.sort(rng.integers(0, 3_000_000_000, n)).astype(np.int64)
    workload = Workload(rng.integers(1, 256, n), rng.integers(1, 120, n), arrivals)
    sent, replica = served(skip_join(host, proactive), workload, blocks, host)
    assert all(one.last_ns >= one.first_ns > one.arrival_ns >= 0 for one in sent)
    assert all(one.generated == one.output for one in sent)
    assert replica.pool.held == 0
    assert replica.host_pool.held == 0


def test_a_short_request_passes_a_long_one_that_came_first() -> None:
    """Four long answers fill the batch; a short one that comes later ends long before them, and under FCFS after."""
    n = 5
    outputs = np.array([400, 400, 400, 400, 5])
    arrivals = np.array([0, 0, 0, 0, 1_000_000_000], np.int64)
    workload = Workload(np.full(n, 32), outputs, arrivals)
    aware, _ = served(skip_join(), workload, 400)
    plain, _ = served(ContinuousBatching(), workload, 400)
    assert aware[4].last_ns < aware[0].last_ns / 5
    assert plain[4].last_ns > plain[0].last_ns


def test_a_long_prompt_joins_below_the_first_queue() -> None:
    """Its prefill of 69 ms does not fit 10, 20 or 40 ms: two short prompts that come with it go before it."""
    arrivals = np.array([0, 1_000_000, 1_000_000, 1_000_000], np.int64)  # the first keeps the replica busy
    workload = Workload(np.array([20, 500, 20, 20]), np.array([2, 2, 2, 2]), arrivals)
    sent, _ = served(skip_join(), workload, 400)
    assert sent[2].first_ns < sent[1].first_ns
    assert sent[3].first_ns < sent[1].first_ns


def test_swaps_happen_and_lose_no_work() -> None:
    rng = np.random.default_rng(3)
    n = 16
    workload = Workload(np.full(n, 100), rng.integers(50, 150, n), np.arange(n, dtype=np.int64) * 200_000_000)
    sent, replica = served(skip_join(host_blocks=400), workload, 60, 400)
    assert replica.host_pool.peak > 0
    assert replica.tally.preemptions == 0
    assert replica.tally.tokens == sum(one.prompt + one.output - 1 for one in sent)


@pytest.mark.parametrize("batch", [1, 7, 95, 96, 200])
def test_fitted_times_are_the_lines_of_the_table(batch: int) -> None:
    line = TIMES.decode(batch)
    a, b, c = (20.0, 0.0006, 0.04) if batch <= 95 else (7.0, 0.0006, 0.16)
    assert line.at(1000) / 1024e6 == pytest.approx(a + b * 1000 + c * batch, rel=1e-4)
    assert TIMES.mixed(0, 0, [(100, 0), (50, 0)], 2) / 1024e6 == pytest.approx(18.0 + 0.1 * 150)
