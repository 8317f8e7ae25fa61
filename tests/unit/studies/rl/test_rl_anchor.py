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
    plain = asked()
    assert found.p95_s / found.p5_s < plain.p95_s / plain.p5_s
    again = asked(beside={"anchor": found.spec["anchor"]})
    assert again.step_time_s == pytest.approx(found.step_time_s, rel=0.01)
    other = asked(beside={"anchor": found.spec["anchor"]}, prompts=32)
    assert other.step_time_s > again.step_time_s


def test_a_wrong_anchor_is_named() -> None:
    with pytest.raises(SpecError, match="anchor"):
        anchor_of("speed=2")
