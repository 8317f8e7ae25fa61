"""Pipelines of a replica: micro-batches follow each other through the stages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from prices import PlainPrices, plain_times

from windtunnel.studies.serving import Deployment
from windtunnel.studies.serving.engines.profile import Profile
from windtunnel.studies.serving.replica.rules import rules_of
from windtunnel.studies.serving.step_time.times import TICKS_PER_S

STAGES = 4
QUIET = Profile(engine="plain", release="1", asynchronous=True)


@dataclass(frozen=True)
class OfOneStage(PlainPrices):
    """The plain prices of a whole model, cut into equal stages; the head is the last one's."""

    def dense(self, tokens: float) -> float:
        return super().dense(tokens) / self.stages

    def prefill(self, chunk: int, past: int) -> float:
        return super().prefill(chunk, past) / self.stages

    def head(self, sequences: float) -> float:
        return 0.0


WHOLE, CUT = (plain_times(QUIET, OfOneStage(stages=stages)) for stages in (1, STAGES))


@pytest.mark.parametrize("tokens", [256, 1024, 4096])
def test_a_prompt_alone_is_no_faster_through_more_stages(tokens: int) -> None:
    """It passes them one after another: each has a part of the layers, and all of its tokens."""
    alone = [(tokens, 0)]
    assert CUT.mixed(0, 0, alone, 1) == pytest.approx(WHOLE.mixed(0, 0, alone, 1), rel=1e-6)


@pytest.mark.parametrize("tokens", [256, 1024, 4096])
def test_as_many_prompts_as_stages_take_the_time_of_one(tokens: int) -> None:
    one, all_stages = [(tokens, 0)], [(tokens, 0)] * STAGES
    assert CUT.mixed(0, 0, all_stages, STAGES) == pytest.approx(CUT.mixed(0, 0, one, 1), rel=1e-6)


def test_the_fullest_micro_batch_sets_the_pace() -> None:
    uneven = [(1024, 0)] * (STAGES + 1)
    two = [(1024, 0)] * 2
    assert CUT.mixed(0, 0, uneven, STAGES + 1) == pytest.approx(WHOLE.mixed(0, 0, two, 2), rel=1e-6)


@dataclass(frozen=True)
class _Headless(PlainPrices):
    def head(self, sequences: float) -> float:
        return 0.0


def test_the_last_stages_head_is_waited_for_by_every_micro_batch() -> None:
    headed, headless = (plain_times(QUIET, prices(stages=STAGES)) for prices in (PlainPrices, _Headless))
    more = headed.decode(64).at(64 * 500) - headless.decode(64).at(64 * 500)
    assert more == pytest.approx(STAGES * PlainPrices().head(16) * TICKS_PER_S, rel=1e-3)


def test_a_host_that_is_not_hidden_walks_over_all_sequences_for_each_micro_batch() -> None:
    busy = replace(QUIET, sequence_s=1e-5, step_s=1e-3)
    seen = replace(busy, pipeline_hides_host=False)
    context = 64 * 500
    free, hidden, shown = (
        plain_times(one, OfOneStage(stages=STAGES)).decode(64).at(context) for one in (QUIET, busy, seen)
    )
    assert hidden == free  # shorter than a round
    assert shown - free == pytest.approx(STAGES * (1e-3 + 64 * 1e-5) * TICKS_PER_S, rel=1e-3)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_one_sequence_is_no_faster_through_more_stages(asynchronous: bool) -> None:
    busy = replace(QUIET, asynchronous=asynchronous, step_s=1e-3)
    one, more = (plain_times(busy, OfOneStage(stages=stages)).decode(1).at(500) for stages in (1, STAGES))
    assert more >= one * (1 - 1e-6)


def test_each_micro_batch_has_a_budget_and_some_engines_give_it_a_batch() -> None:
    deployment = Deployment(pp=STAGES, max_num_seqs=8, max_num_batched_tokens=512)
    counted = rules_of(QUIET, deployment, 1000)
    assert (counted.max_num_seqs, counted.token_budget, counted.longest_chunk) == (8, STAGES * 512, 512)
    assert rules_of(replace(QUIET, seqs_per_stage=True), deployment, 1000).max_num_seqs == STAGES * 8
