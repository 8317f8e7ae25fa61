"""Phases of logs in the words of frameworks, and predictions anchored on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.studies.rl.test_rl_study import asked
from windtunnel.errors import InputFileError, SpecError
from windtunnel.studies.rl.anchor import anchor_of, read_log

VERL = (
    "step:{k} - timing_s/gen:{gen} - timing_s/old_log_prob:2.0 - timing_s/ref:1.0"
    " - timing_s/update_actor:6.0 - timing_s/update_weights:1.5 - timing_s/step:{step}\n"
)
NEMO = "Timing:\n  • Total step time: 50.25s\n  • policy_training: 10.5s (20.9%)\n  • generation: 30.0s (59.7%)\n"


def test_phases_of_logs(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("".join(VERL.format(k=k, gen=gen, step=gen + 12) for k, gen in enumerate((90.0, 20.0, 22.0, 24.0))))
    assert read_log(path) == {
        "step": 34.0, "generation": 22.0, "logprob": 2.0, "reference": 1.0, "training": 6.0, "refit": 1.5
    }  # fmt: skip
    path.write_text(NEMO)
    assert read_log(path) == {"step": 50.25, "generation": 30.0, "training": 10.5}
    path.write_text("nothing here\n")
    with pytest.raises(InputFileError, match="no phase"):
        read_log(path)


def test_an_anchored_answer_is_what_was_logged(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("".join(VERL.format(k=k, gen=20.0, step=33.5) for k in range(3)))
    found = asked(beside={"log": str(path)})
    assert found.step_time_s == pytest.approx(33.5, rel=0.02)
    assert found.phases.generation_s == pytest.approx(20.0, rel=0.02)
    assert found.phases.weight_sync_s == 1.5
    assert found.phases.training_s == pytest.approx(6.0, rel=0.02)
    assert found.phases.logprob_s + found.phases.ref_logprob_s == pytest.approx(3.0, rel=0.02)
    plain = asked()
    assert found.p95_s / found.p5_s < plain.p95_s / plain.p5_s
    again = asked(beside={"anchor": found.spec["anchor"]})
    assert again.step_time_s == pytest.approx(found.step_time_s, rel=0.01)
    other = asked(beside={"anchor": found.spec["anchor"]}, prompts=32)
    assert other.step_time_s > again.step_time_s


def test_a_step_without_phases_is_met_and_carried_by_half(tmp_path: Path) -> None:
    path, plain = tmp_path / "run.log", asked()
    path.write_text(f"timing_s/step:{1.44 * plain.step_time_s}\n")
    own = asked(beside={"log": str(path)})
    assert own.spec["anchor"] == "step=1.44"
    moved = plain.phases.generation_s + plain.phases.training_s + plain.phases.logprob_s + plain.phases.ref_logprob_s
    assert own.step_time_s == pytest.approx(plain.step_time_s + 0.44 * moved, rel=0.03)
    carried = asked(beside={"anchor": own.spec["anchor"]})
    assert carried.step_time_s == pytest.approx(plain.step_time_s + 0.2 * moved, rel=0.03)
    assert carried.spec["anchor"] == own.spec["anchor"]
    assert carried.p95_s / carried.step_time_s > own.p95_s / own.step_time_s


def test_overlapped_pools_are_anchored_by_the_wait_for_them(tmp_path: Path) -> None:
    apart = {"cluster": "h100-sxm:16", "generate": 8, "train": 8, "async_steps": 1.0}
    plain, path = asked(**apart), tmp_path / "run.log"
    refit_s, learner = plain.phases.weight_sync_s, 0.5 * plain.phases.training_s
    for wait_s, beside_s in ((0.8, 7.5), (3.0, 1.0)):  # what is in no phase of the log is beside the step
        step_s = wait_s + learner + refit_s + beside_s
        path.write_text(f"timing_s/update_actor:{learner} - timing_s/gen:{wait_s} - timing_s/step:{step_s}\n")
        found = asked(beside={"log": str(path)}, **apart)
        assert found.step_time_s == pytest.approx(step_s, rel=0.03)
        assert found.phases.training_s == pytest.approx(learner, rel=0.1)
        assert found.phases.other_s == pytest.approx(beside_s, abs=0.01)
        assert found.phases.exposed_generation_s == pytest.approx(wait_s, abs=0.04 * step_s)


def test_a_wrong_anchor_is_named() -> None:
    with pytest.raises(SpecError, match="anchor"):
        anchor_of("speed=2")
