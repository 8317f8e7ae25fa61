"""Excerpts of real logs are read as a person reads them, or refused with the line that was not understood."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

from windtunnel.errors import UserError
from windtunnel.studies.measured_run import read_run, steady_of

FILES = ("blind_excerpts.yaml", "blind_excerpts_2.yaml", "blind_excerpts_3.yaml")
CASES: list[dict[str, Any]] = [
    case for name in FILES for case in yaml.safe_load((Path(__file__).parent / name).read_text())
]


def outcome_of(case: dict[str, Any], folder: Path) -> str:
    """`right`, `refused` (with what was not understood), `silent` or `wrong`."""
    path = folder / f"run.{case.get('kind', 'log')}"
    path.write_text(case["text"])
    try:
        run = read_run([path])
    except UserError:
        return "refused"
    for name, peaks in (("allocated", run.allocated_bytes), ("reserved", run.reserved_bytes)):
        if peaks and max(peaks.values()) != pytest.approx(case.get(name, 0.0), rel=1e-3):
            return "wrong"
    for name, field in (("tps", "tokens_per_s_per_gpu"), ("world_tps", "tokens_per_s")):
        values = [value for step in run.steps if (value := getattr(step, field))]
        if values and not case.get(name, (0.0, 0.0))[0] <= median(values) <= case.get(name, (0.0, math.inf))[1]:
            return "wrong"
    has_rate = any(step.samples_per_s or step.tokens_per_s or step.tokens_per_s_per_gpu for step in run.steps)
    if has_rate and not any(step.seconds for step in run.steps):
        rates = [step.samples_per_s or 0.0 for step in run.steps]
        least, most = case.get("sps", (0.0, 0.0))
        return "right" if all(least <= rate <= most for rate in rates) else "wrong"
    try:
        seconds = steady_of(run.with_seconds(1.0, 1, 1)).seconds
    except UserError:
        if not case.keys() & {"s", "world_tps"}:
            named = set(case) >= {"allocated"} and not run.allocated_bytes
            return "silent" if named else "right"
        return "refused" if run.not_understood else "silent"
    least, most = case.get("s", (0.0, 0.0))
    return "right" if least <= seconds <= most else "wrong"


@pytest.mark.parametrize("case", CASES, ids=[case["from"] for case in CASES])
def test_an_excerpt_is_read_as_a_person_does_or_refused(case: dict[str, Any], tmp_path: Path) -> None:
    assert outcome_of(case, tmp_path) == case.get("now", case["blind"])


def test_no_excerpt_is_passed_over_or_wrong() -> None:
    assert {case.get("now", case["blind"]) for case in CASES} == {"right", "refused"}


def test_glog_has_no_year_and_no_clock_runs_backwards(tmp_path: Path) -> None:
    lines = [f"I1231 23:59:{50 + at}.5 7 solver.cpp:228] Iteration {10 * at}, loss = 1.5" for at in range(9)]
    path = tmp_path / "a.log"
    path.write_text("\n".join([*lines, "I0101 00:00:03.5 7 solver.cpp:228] Iteration 90, loss = 1.5"]))
    run = read_run([path]).with_seconds(1.0, 1, 1)
    assert [step.seconds for step in run.steps] == [None, *[pytest.approx(0.1)] * 8, None]


def test_of_several_lines_of_a_step_the_first_is_its_begin(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    lines = [
        f"2026-01-01 00:0{at // 2}:{30 * (at % 2):02d} step {at // 2 + 1} batch {at % 2} loss 3.1" for at in range(9)
    ]
    path.write_text("\n".join(lines))
    assert steady_of(read_run([path]).with_seconds(1.0, 1, 1)).seconds == pytest.approx(60.0)


def litgpt_line(number: int, of_a_step: int, ms: float) -> str:
    update = " (step)" if number % of_a_step == 0 else ""
    return f"Epoch 1 | iter {number} step {number // of_a_step} | loss train: 1.0 | iter time: {ms:.2f} ms{update}"


def test_a_step_of_litgpt_is_its_micro_steps_together(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    every = [litgpt_line(at, 4, 190.0 if at % 4 == 0 else 100.0) for at in range(1, 41)]
    path.write_text("\n".join(every))
    run = read_run([path])
    assert [step.seconds for step in run.steps] == [pytest.approx(0.49)] * 10
    path.write_text("\n".join(every[:17] + every[19:]))  # of the fifth step two lines are not there
    assert len(read_run([path]).steps) == 9
    path.write_text("\n".join(litgpt_line(at, 1, 250.0) for at in range(7, 20)))
    assert steady_of(read_run([path])).seconds == pytest.approx(0.25)
    path.write_text("\n".join(every[3::4]))  # as pretrain prints them: what came before is in part within them
    with pytest.raises(UserError, match=r"litgpt printed no two micro-steps .* TensorBoard"):
        steady_of(read_run([path]))


def test_a_log_without_a_step_names_a_line(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("\n19-08-09 08:25:25.996 - INFO: <epoch: 86, iter: 107,200, lr:2.500e-05> l_g_pix: 1.4819e-03\n")
    with pytest.raises(UserError, match=r"no line looks like a step: 19-08-09 08:25:25.996"):
        steady_of(read_run([path]))


def test_a_line_that_has_a_time_of_its_own_is_not_read_by_its_clock(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("\n".join(f"2026-01-01 00:00:{at:02d} Step {at} | loss 3.1 | took 15.2 sec" for at in range(9)))
    run = read_run([path])
    assert not run.steps
    assert run.not_understood
