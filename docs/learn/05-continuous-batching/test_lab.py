"""Grades lab 5: laws, the worked example, then windtunnel's own replica under its own continuous batching."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from windtunnel.studies.serving.batching.continuous import ContinuousBatching
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.stepwise import StepwiseReplica
from windtunnel.studies.serving.step_time.times import TICKS_PER_NS
from windtunnel.studies.serving.workload.requests import Workload

MS = 1_000_000
ROOMY = (8, 64, 16, 400)  # sequences, token budget, block size, blocks
TIGHT = (8, 48, 4, 45)
LAST = (6, 512, 16, 14)


def step_ns(tokens: int) -> int:
    return 7 * MS + 100_003 * tokens


class Times:
    """The same step times for windtunnel's replica, which counts in ticks."""

    def decode(self, sequences: int) -> Any:
        return SimpleNamespace(at=lambda context_sum: step_ns(sequences) * TICKS_PER_NS)

    def mixed(self, decoding: int, context_sum: int, chunks: Sequence[tuple[int, int]], finishing: int) -> int:
        return step_ns(decoding + sum(n for n, _ in chunks)) * TICKS_PER_NS


def drawn(lab: ModuleType, seed: int, n: int = 30) -> list[Any]:
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.integers(1, 60 * MS, n)).tolist()
    return [lab.Request(at, int(rng.integers(1, 120)), int(rng.integers(1, 60))) for at in arrivals]


# ------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("limits", [ROOMY, TIGHT, LAST])
@pytest.mark.parametrize("seed", range(3))
def test_no_step_breaks_a_limit_and_every_request_ends(
    lab: ModuleType, monkeypatch: pytest.MonkeyPatch, seed: int, limits: tuple[int, int, int, int]
) -> None:
    rules = lab.Rules(*limits)
    plan = lab.plan

    def checked(running: Sequence[Any], waiting: Sequence[Any], free: int, given: Any) -> Any:
        assert free == rules.blocks - sum(one.blocks for one in running) >= 0, "blocks held and free are not all blocks"
        step = plan(running, waiting, free, given)
        admitted = [one for one, _ in step.chunks if one.blocks == 0]
        kept = [one for one in running if one not in step.preempt]
        assert step.chunks or step.decode, "an engine with requests must not stand still"
        assert len(step.decode) + sum(n for _, n in step.chunks) <= rules.token_budget, "more than the token budget"
        assert len(kept) + len(admitted) <= rules.max_num_seqs, "more than max_num_seqs run"
        assert all(n > 0 for _, n in step.chunks), "a chunk without tokens"
        assert set(step.decode) <= set(kept), "a preempted sequence cannot decode"
        assert admitted == list(waiting)[: len(admitted)], "first come, first served"
        freed = sum(one.blocks for one in step.preempt)
        taken = sum(-(-one.known // rules.block_size) for one in admitted) + lab.growth(step.decode, rules.block_size)
        assert taken <= free + freed, "more blocks than are free"
        return step

    monkeypatch.setattr(lab, "plan", checked)
    requests = drawn(lab, seed)
    lab.serve(requests, rules, step_ns)
    for one in requests:
        assert one.generated == one.output
        assert one.blocks == 0
        assert one.arrival_ns + step_ns(1) <= one.first_ns <= one.last_ns
        assert one.last_ns - one.first_ns >= (one.output - 1) * step_ns(1)


def test_a_decoding_sequence_gets_a_token_in_every_step(lab: ModuleType) -> None:
    """Chunked prefill: a long prompt is computed beside a running answer, which does not wait for it."""
    answer, prompt = lab.Request(0, 8, 20), lab.Request(20 * MS, 300, 1)
    lab.serve([answer, prompt], lab.Rules(8, 32, 16, 100), step_ns)
    assert answer.last_ns - answer.first_ns <= 19 * step_ns(32)
    assert prompt.first_ns > answer.arrival_ns + 300 // 32 * step_ns(32)


def test_a_full_last_block_grows(lab: ModuleType) -> None:
    requests = [lab.Request(0, 8, 1, context=context) for context in (15, 16, 17, 32)]
    assert lab.growth(requests, 16) == 2
    assert lab.growth(requests, 1) == 4
    assert lab.growth([], 16) == 0


def test_out_of_blocks_the_last_to_decode_goes_back_and_loses_no_token(lab: ModuleType) -> None:
    """Two prompts of 8 fill four blocks of 4. The first token of both needs two more, and one is there."""
    first, second = lab.Request(0, 8, 12), lab.Request(1, 8, 12)
    lab.serve([first, second], lab.Rules(8, 64, 4, 5), step_ns)
    assert (first.preemptions, second.preemptions) == (0, 1)
    assert second.known == second.prompt + 1
    assert first.last_ns < second.last_ns
    assert second.generated == 12


# --------------------------------------------------------------------------------------------------- worked example


def test_the_example_of_the_page(lab: ModuleType) -> None:
    requests = [lab.Request(0, 4, 2), lab.Request(1, 4, 6), lab.Request(2, 4, 2), lab.Request(3, 4, 2)]
    assert lab.serve(requests, lab.Rules(2, 8, 4, 100), lambda tokens: 10) == 7
    assert [one.first_ns for one in requests] == [10, 20, 30, 50]
    assert [one.last_ns for one in requests] == [20, 70, 40, 60]


# ------------------------------------------------------------------------------------------- windtunnel as the oracle


@pytest.mark.parametrize("limits", [ROOMY, TIGHT, LAST])
@pytest.mark.parametrize("seed", range(4))
def test_stamps_are_windtunnels(lab: ModuleType, seed: int, limits: tuple[int, int, int, int]) -> None:
    sequences, budget, size, blocks = limits
    requests = drawn(lab, seed)
    rules = Rules(max_num_seqs=sequences, token_budget=budget, longest_chunk=budget, block_size=size)
    workload = Workload(
        np.array([one.prompt for one in requests]),
        np.array([one.output for one in requests]),
        np.array([one.arrival_ns for one in requests]),
    )
    replica = StepwiseReplica(Times(), rules, blocks, ContinuousBatching())  # type: ignore[arg-type]
    theirs, refused = simulate(workload, [replica], None, block_size=size)
    assert not refused
    lab.serve(requests, lab.Rules(*limits), step_ns)
    stamps = [  # the earliest first: what differs there is the cause of what differs later
        (getattr(one, name), f"request {place}: {name}", getattr(mine, name))
        for place, (mine, one) in enumerate(zip(requests, theirs, strict=True))
        for name in ("first_ns", "last_ns")
    ]
    for right_ns, what, mine_ns in sorted(stamps):
        assert mine_ns == right_ns, what
    assert [one.preemptions for one in requests] == [one.preemptions for one in theirs]
    if limits != ROOMY:
        assert any(one.preemptions for one in requests), "the example must be tight enough to preempt"
