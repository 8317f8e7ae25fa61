"""Laws of a run of RL post-training: tokens, staleness, overlap, closed form, more generators."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.model.catalogue import load_model
from windtunnel.questions.reading import read
from windtunnel.studies.rl import job
from windtunnel.studies.rl.clock import Rules, Run, Times
from windtunnel.studies.rl.generators import Generator
from windtunnel.studies.rl.learner import Passes
from windtunnel.studies.rl.lengths import answers_of
from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.step_time.times import TICKS_PER_S

ANSWERS = answers_of("mean=200,cap=700")
MODES = [
    Rules(8, 4),
    Rules(8, 4, async_steps=1.0, partial=True),
    Rules(8, 4, async_steps=1.0, partial=False),
    Rules(8, 4, async_steps=3.0, partial=True, in_order=False),
    Rules(8, 4, async_steps=0.5, partial=True, in_order=False, keep_cache=False),
    Rules(8, 4, async_steps=2.0, partial=True, in_order=False, useful=0.6, turns=3, tool_tokens=20),
    Rules(8, 4, async_steps=2.0, partial=True, chunks=True, useful=0.6, in_flight=5),
]


@cache
def engine() -> Engine:
    """A small model on one GPU."""
    return engine_of(load_model("llama-3.2-1b"), parse_cluster("h100-sxm:8"), Deployment(engine="vllm-0.12"))


def run(
    rules: Rules,
    generators: int = 2,
    steps: int = 6,
    learner_s: float = 0.8,
    refit_s: float = 0.1,
    reward_s: float = 0.0,
) -> Run:
    """So many steps of it."""

    def passes(tokens: NDArray[np.int64]) -> Passes:
        return Passes(0.0, 0.0, learner_s)

    def lengths(batch: int) -> NDArray[np.int64]:
        return ANSWERS.batch(rules.groups, rules.samples, batch)

    times = Times(refit_s, tool_s=0.05, reward_s=reward_s)
    found = Run(rules, times, lengths, passes, [Generator(engine()) for _ in range(generators)])
    found.until(steps)
    return found


@pytest.mark.parametrize("reward_s", [0.0, 0.3])  # the second comes while weights change, too
@pytest.mark.parametrize("rules", MODES)
def test_tokens_that_are_begun_are_trained_dropped_or_still_open(rules: Rules, reward_s: float) -> None:
    found = run(rules, reward_s=reward_s)
    gone = found.tokens_trained + found.tokens_training + found.tokens_dropped
    assert found.tokens_begun == gone + found.open_tokens()
    extra = rules.prompt_tokens + (rules.turns - 1) * rules.tool_tokens
    samples = len(found.steps) * rules.groups * rules.samples
    assert sum(step.tokens for step in found.steps) == found.tokens_trained + samples * extra
    assert (found.dropped > 0) == (rules.useful < 1.0)


@pytest.mark.parametrize("rules", MODES)
def test_no_sample_is_staler_than_the_bound(rules: Rules) -> None:
    ages = [age for step in run(rules, steps=8, learner_s=0.05).steps for age in step.ages]
    assert max(ages) <= rules.oldest
    assert min(ages) >= 0
    if not rules.async_steps:
        assert set(ages) == {0}


@pytest.mark.parametrize("learner_s", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("ahead", [1.0, 2.0])
def test_overlapped_pools_are_never_slower_than_pools_in_turn(learner_s: float, ahead: float) -> None:
    in_turn = run(Rules(8, 4), steps=6, learner_s=learner_s)
    overlapped = run(Rules(8, 4, async_steps=ahead, partial=True), steps=6, learner_s=learner_s)
    assert overlapped.steps[-1].end_s <= in_turn.steps[-1].end_s
    # No gain is invented: neither the learner nor the weight update becomes shorter.
    span = overlapped.steps[-1].end_s - overlapped.steps[0].end_s
    assert span >= 5 * (learner_s + 0.1) - 1e-6


@pytest.mark.parametrize("most", [3, 8])
def test_no_more_prompts_are_under_way_than_may_be_and_fewer_take_longer(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    seen: list[int] = []
    begin = Run._begin

    def watched(self: Run, number: int, now_ns: int) -> None:
        begin(self, number, now_ns)
        seen.append(self.in_flight)

    monkeypatch.setattr(Run, "_begin", watched)
    free = Rules(8, 4, async_steps=2.0, partial=True)
    ends = run(free, learner_s=0.05).steps[-1].end_s
    assert max(seen) > most
    seen.clear()
    assert run(replace(free, in_flight=most), learner_s=0.05).steps[-1].end_s >= ends
    assert max(seen) == most


def test_one_generator_with_equal_answers_takes_the_closed_form() -> None:
    n, prompt, answer = 8, 150, 400
    rules = Rules(n, 1, prompt_tokens=prompt)

    def lengths(batch: int) -> NDArray[np.int64]:
        return np.full(n, answer, np.int64)

    found = Run(rules, Times(0.0), lengths, lambda tokens: Passes(0.0, 0.0, 0.0), [Generator(engine())])
    found.until(1)
    times = engine().times
    # The first prompt is computed alone, the others beside its second token; then all decode until it ends, then they.
    ticks = times.mixed(0, 0, [(prompt, 0)], 1) + times.mixed(1, prompt + 1, [(prompt, 0)] * (n - 1), n - 1)
    ticks += sum(times.decode(n).at(n * (prompt + 1 + k) + 1) for k in range(answer - 2))
    ticks += times.decode(n - 1).at((n - 1) * (prompt + answer - 1))
    assert found.steps[0].complete_s == pytest.approx(ticks / TICKS_PER_S, rel=1e-6)


def test_more_generators_are_never_slower() -> None:
    times = [run(Rules(16, 4, chunks=True), n, steps=2, learner_s=0.0).steps[-1].end_s for n in (1, 2, 4, 8, 16)]
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


def test_a_slower_generator_is_slower_by_its_factor() -> None:
    rules = Rules(4, 2)

    def seconds(factor: float) -> float:
        found = Run(
            rules,
            Times(0.0),
            lambda batch: ANSWERS.batch(4, 2, batch),
            lambda tokens: Passes(0.0, 0.0, 0.0),
            [Generator(engine(), factor)],
        )
        found.until(1)
        return found.steps[0].complete_s

    assert seconds(1.5) == pytest.approx(1.5 * seconds(1.0), rel=1e-3)


def test_a_pause_moves_what_is_under_way_by_its_length() -> None:
    from windtunnel.studies.serving.replica.sequence import NEVER, Sequence

    def end_ns(pause_ns: int, drop: bool) -> int:
        generator = Generator(engine())
        generator.submit(Sequence(0, 100, 300, 0), 0)
        if pause_ns:
            generator.pause(10**8, pause_ns)
        if drop:
            generator.begin_again(10**8)
        last = 0
        while generator.next_ns != NEVER:
            last = generator.next_ns
            generator.advance()
        return last

    assert end_ns(10**9, False) == end_ns(0, False) + 10**9
    assert end_ns(10**9, True) > end_ns(10**9, False)  # its cache is computed again


@pytest.mark.parametrize("framework", ["nemo-rl", "verl", "slime"])
@pytest.mark.parametrize("lengths", ["mean=3000,cap=16384", "mean=500,cap=600"])
def test_no_batch_ends_before_its_bound(framework: str, lengths: str) -> None:
    question = read(
        {
            "question": "rl",
            "model": "qwen3-8b",
            "cluster": "h100-sxm:8",
            "framework": framework,
            "prompts": 16,
            "samples": 8,
            "lengths": lengths,
        },
        verb="rl",
    )
    draft = job.drafted(question)
    times = []
    for tp in (1, 2, 4, 8):
        engine = job.generator_engine(draft, draft.engine.cluster, job.deployment(draft, tp))
        took = job.batch_time_s(draft, engine, 8 // tp)
        assert 0.5 * took < job.least_batch_s(draft, engine, 8 // tp) <= took
        times.append(took)
    # What was left out for its bound is none that ends first.
    assert job.batch_time_s(draft, draft.engine, draft.replicas) == min(times)


def test_a_later_turn_computes_what_is_new_and_not_its_context() -> None:
    def took(turns: int) -> float:
        batch = np.full(64, 4096, np.int64)
        learner = Passes(0.0, 0.0, 0.0)
        generators = [Generator(engine()) for _ in range(2)]
        found = Run(Rules(8, 8, turns=turns), Times(0.1), lambda _: batch, lambda _: learner, generators)
        found.until(1)
        return found.steps[0].complete_s

    # Of 32 turns each computes the 128 tokens of the last one again, and what is no whole name: not 2,000 on average.
    assert took(1) < took(32) < 1.15 * took(1)
