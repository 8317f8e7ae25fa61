from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from prices import plain_times

from windtunnel.serving.disaggregated.server import Disaggregated
from windtunnel.serving.replica import Replica, Rules
from windtunnel.serving.simulate import simulate
from windtunnel.serving.workload.lengths import arrivals
from windtunnel.serving.workload.requests import Workload


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 999), st.integers(1, 3), st.integers(1, 3), st.integers(60, 300), st.floats(1.0, 60.0))
def test_prompts_move_once_and_nothing_is_lost(seed: int, senders: int, takers: int, blocks: int, rate: float) -> None:
    draw = np.random.default_rng(seed)
    prompts, outputs = draw.integers(1, 600, 40), draw.integers(1, 200, 40)
    load = Workload(prompts, outputs, arrivals(40, rate, 1.0, seed))
    rules = Rules(max_num_seqs=8)
    server = Disaggregated(
        [Replica(plain_times(), rules, blocks) for _ in range(senders)],
        [Replica(plain_times(), rules, blocks) for _ in range(takers)],
        lambda tokens: 1_000_000 + 2_000 * tokens,
    )
    sent, refused = simulate(load, [server], None, block_size=16, longest=blocks * 16)
    assert len(sent) == 40 - len(refused)
    for one in sent:
        assert one.last_ns >= one.first_ns > one.arrival_ns
        assert one.generated == one.output
    assert server.copied_tokens == sum(one.prompt for one in sent if one.output > 1)
    for replica in (*server.prefill, *server.decode):
        assert replica.pool.held == 0
        assert replica.load == 0


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
