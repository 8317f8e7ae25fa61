"""Steps that differ are priced each, and count as often as they come."""

from pathlib import Path
from typing import Any

import pytest
from handmade import Script

from windtunnel.physics.step.result import Result
from windtunnel.studies.programs.folder import publish
from windtunnel.studies.programs.predict import predict_captured
from windtunnel.studies.programs.program import RankProgram
from windtunnel.studies.programs.program_file import write_program

CLUSTER = "h100-sxm:1"


def step(products: int) -> RankProgram:
    script = Script(0, 1)
    for _ in range(products):
        script.mm(8192, 8192, 8192)
    return RankProgram(0, 1, tuple(script.ops))


def document(**more: Any) -> dict[str, Any]:
    return {
        "world_size": 1,
        "grid": {"sizes": [1], "names": ["dp"]},
        "runs": [[0, 1]],
        "classes": [{"rank": 0}],
        **more,
    }


def captured(folder: Path, kinds: list[tuple[int, RankProgram]]) -> Path:
    """A folder of a job whose period has so many steps of each program."""
    files = []
    for number, (_, program) in enumerate(kinds):
        files.append({0: folder / f"program_{number}"})
        files[-1][0].write_bytes(write_program(program))
    names = [f"kind_{number}" if number else "." for number in range(len(kinds))]
    period = [{"folder": name, "steps": steps} for name, (steps, _) in zip(names, kinds, strict=True)]
    others = {name: (document(), of) for name, of in zip(names[1:], files[1:], strict=True)}
    publish(folder / "job", document(period=period) if others else document(), files[0], others)
    return folder / "job"


def alone(folder: Path, program: RankProgram) -> Result:
    folder.mkdir()
    return predict_captured(captured(folder, [(1, program)]), CLUSTER)


def test_the_mean_step_is_that_of_its_kinds(tmp_path: Path) -> None:
    light, heavy = step(2), step(8)
    mean = predict_captured(captured(tmp_path, [(3, light), (1, heavy)]), CLUSTER)
    one, other = alone(tmp_path / "light", light), alone(tmp_path / "heavy", heavy)
    expected = (3 * one.step_time_ns + other.step_time_ns) / 4
    assert one.step_time_ns < mean.step_time_ns < other.step_time_ns
    assert mean.step_time_ns == pytest.approx(expected, abs=1)
    assert sum(mean.breakdown_ns.values()) == mean.step_time_ns
    done = (3 * one.flops_per_rank + other.flops_per_rank) / 4
    assert mean.flops_per_rank == pytest.approx(done, rel=1e-6)  # times are whole nanoseconds
    assert mean.step_time_p5_ns < mean.step_time_ns < mean.step_time_p95_ns
    assert any("the mean step of a period of 4" in text for text in mean.defaults)


def test_a_period_of_equal_steps_is_a_step(tmp_path: Path) -> None:
    program = step(3)
    both = predict_captured(captured(tmp_path, [(2, program), (2, program)]), CLUSTER)
    one = alone(tmp_path / "one", program)
    assert both.step_time_ns == one.step_time_ns
    assert both.mfu == pytest.approx(one.mfu)
    assert both.breakdown_ns == one.breakdown_ns
