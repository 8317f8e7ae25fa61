from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prices import plain_times

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.serving import Deployment, load_engine
from windtunnel.studies.serving.disaggregated.pools import Pools, pools_of, run_pools
from windtunnel.studies.serving.disaggregated.server import Disaggregated
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.measures import gap_distribution
from windtunnel.studies.serving.replica import Replica, Rules
from windtunnel.studies.serving.workload.lengths import arrivals
from windtunnel.studies.serving.workload.requests import Workload


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 999), st.integers(1, 3), st.integers(1, 3), st.integers(60, 300), st.floats(1.0, 60.0),
    st.sampled_from(["mixed", "prefill_first"]),
)  # fmt: skip
@example(529, 1, 1, 60, 3.0, "mixed")  # the last that decodes needs a block while caches on their way hold the others
def test_prompts_move_once_and_nothing_is_lost(
    seed: int, senders: int, takers: int, blocks: int, rate: float, batching: Literal["mixed", "prefill_first"]
) -> None:
    draw = np.random.default_rng(seed)
    prompts, outputs = draw.integers(1, 600, 40), draw.integers(1, 200, 40)
    load = Workload(prompts, outputs, arrivals(40, rate, 1.0, seed))
    rules = Rules(max_num_seqs=8, batching=batching)
    copied: list[int] = []

    def copy_ns(tokens: int) -> int:
        copied.append(tokens)
        return 1_000_000 + 2_000 * tokens

    server = Disaggregated(
        [Replica(plain_times(), rules, blocks) for _ in range(senders)],
        [Replica(plain_times(), rules, blocks) for _ in range(takers)],
        copy_ns,
    )
    sent, refused = simulate(load, [server], None, block_size=16, longest=blocks * 16)
    assert len(sent) == 40 - len(refused)
    for one in sent:
        assert one.last_ns >= one.first_ns > one.arrival_ns
        assert one.generated == one.output
    assert sum(copied) == sum(one.prompt for one in sent if one.output > 1)
    for replica in (*server.prefill, *server.decode):
        assert replica.pool.held == 0
        assert replica.load == 0
    gaps = gap_distribution(one.tally.gap_counts for one in (*server.prefill, *server.decode))
    tokens = sum(one.output - 1 for one in sent)
    if gaps is not None:  # from the first token, which comes with the cache, to the last
        between = sum(one.last_ns - one.first_ns for one in sent) * 1e-9
        assert abs(gaps.mean * tokens - between) < 1e-5 * tokens


def test_decodes_are_not_held_up_by_prompts() -> None:
    load = Workload(np.full(80, 1500), np.full(80, 100), arrivals(80, 8.0, 1.0, 0))
    rules = Rules()
    together = Replica(plain_times(), rules, 4000)
    mixed, _ = simulate(load, [together], None, block_size=16)
    server = Disaggregated(
        [Replica(plain_times(), rules, 4000)], [Replica(plain_times(), rules, 4000)], lambda _: 10**6
    )
    apart, _ = simulate(load, [server], None, block_size=16)

    def tpot(sent: list) -> float:  # type: ignore[type-arg]
        return float(np.mean([(one.last_ns - one.first_ns) / (one.output - 1) for one in sent]))

    assert tpot(apart) < 0.8 * tpot(mixed)


def test_an_empty_replica_gives_all_its_blocks_to_a_prompt_that_comes() -> None:
    rules = Rules(watermark_blocks=3)
    server = Disaggregated([Replica(plain_times(), rules, 10)], [Replica(plain_times(), rules, 10)], lambda _: 1000)
    load = Workload(np.full(4, 150), np.full(4, 5), arrivals(4, 5.0, 0.0, 0))  # 10 blocks at the end
    sent, refused = simulate(load, [server], None, block_size=16, longest=160)
    assert not refused
    assert all(one.last_ns > 0 for one in sent)


def _pools(**changes: object) -> Pools:
    side = (1, Deployment(engine="vllm-0.12", num_gpu_blocks=200))
    found = pools_of(
        load_model("llama-3.1-8b"), parse_cluster("h100-sxm:2"), (1, replace(side[1], num_gpu_blocks=2000)), side
    )
    profile = replace(load_engine("vllm-0.12"), **changes)  # type: ignore[arg-type]
    return replace(
        found, prefill=replace(found.prefill, profile=profile), decode=replace(found.decode, profile=profile)
    )


def test_blocks_are_counted_against_the_pool_they_are_of() -> None:
    load = Workload(np.full(60, 600), np.full(60, 40), arrivals(60, 400.0, 0.0, 0))
    found = run_pools(_pools(), parse_cluster("h100-sxm:2"), load, {})
    assert 0.5 < found.kv_use_peak <= 1.0
    assert 0.0 < found.kv_use_mean <= 1.0


def test_what_the_front_end_takes_is_in_the_answer_of_pools() -> None:
    load = Workload(np.full(5, 600), np.full(5, 40), arrivals(5, 1.0, 0.0, 0))
    plain, slow = (run_pools(_pools(first_token_s=s), parse_cluster("h100-sxm:2"), load, {}) for s in (0.0, 0.25))
    assert plain.ttft is not None
    assert slow.ttft is not None
    assert abs(slow.ttft.mean - plain.ttft.mean - 0.25) < 1e-6
    assert slow.tpot is not None
    assert plain.tpot is not None
    assert slow.tpot.mean == pytest.approx(plain.tpot.mean, rel=1e-9)  # stamps are moved alike


def test_a_decode_pool_that_falls_behind_is_over_its_limit() -> None:
    """Prompts are computed at once and wait for a place: that is queueing, and the queue grows."""
    model, cluster = load_model("llama-3.1-8b"), parse_cluster("h100-sxm:4")
    pools = pools_of(model, cluster, (3, Deployment()), (1, Deployment(max_num_seqs=8)))
    for rate, regime in ((40.0, "over"), (1.0, "stable")):
        load = Workload(np.full(300, 200), np.full(300, 100), arrivals(300, rate, 1.0, 0))
        found = run_pools(pools, cluster, load, {})
        assert found.regime == regime
        assert found.queue is not None
        assert (found.queue.mean > 1.0) == (regime == "over")


def test_pools_hand_their_first_token_on_later() -> None:
    load = Workload(np.full(5, 600), np.full(5, 40), arrivals(5, 1.0, 0.0, 0))
    plain, slow = (run_pools(_pools(pools_token_s=s), parse_cluster("h100-sxm:2"), load, {}) for s in (0.0, 0.1))
    assert plain.ttft is not None
    assert slow.ttft is not None
    assert slow.ttft.mean - plain.ttft.mean == pytest.approx(0.1, abs=1e-6)
