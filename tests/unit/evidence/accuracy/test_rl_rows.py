"""Rows of RL steps in the words of their authors."""

from __future__ import annotations

import pytest

from windtunnel.evidence.accuracy.rl.run import RlRow, question_of
from windtunnel.questions.asked.rl import Rl

ROW = {
    **{"id": "a", "framework": "verl", "model": "qwen3-8b", "gpu": "H100", "n_gpus": "16", "gen_gpus": "8"},
    **{"train_gpus": "8", "rollouts_per_step": "128", "mean_total_len": "2000", "total_step_s": "60"},
}


def asked(**cells: str) -> Rl:
    return question_of(RlRow({**ROW, **cells}))


@pytest.mark.parametrize("no", ["0", "no", "False"])
def test_pools_apart_whichever_way_it_is_said(no: str) -> None:
    assert asked(colocated=no).generate == 8
    assert asked(colocated="yes").generate is None


@pytest.mark.parametrize(("mode", "lag", "steps"), [("async", "", 1.0), ("async", "2", 2.0), ("sync", "", 0.0)])
def test_a_lag_that_is_not_said_is_that_of_the_mode(mode: str, lag: str, steps: float) -> None:
    assert asked(colocated="0", mode=mode, max_lag_steps=lag).async_steps == steps


def test_formats_engines_and_trainers_in_other_letters() -> None:
    question = asked(
        gen_precision="FP8 blockwise", train_precision="FP8", gen_engine="SGLang 0.5", train_backend="DTensor"
    )
    assert (question.rollout.weights, question.rollout.engine) == ("fp8", "sglang")
    assert (question.learner.precision, question.learner.trainer) == ("fp8", "fsdp")
    assert asked(recompute="yes").learner.recompute == "full"
    assert asked(generations_per_prompt="8").prompts == 16
