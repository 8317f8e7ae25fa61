"""Which steps a rank runs and keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from windtunnel.real.capture.processes.file_mailbox import FileMailbox
from windtunnel.real.capture.processes.steps import Steps
from windtunnel.studies.programs.program import Op, RankProgram


class Loop:
    """Conditions that say so many steps."""

    def __init__(self, period: int) -> None:
        self._period = period

    def period(self) -> int:
        return self._period

    def steps_more(self, done: int) -> int:
        return 0 * done

    def unseen(self, steps: int) -> list[str]:
        return [f"of {steps}"]


def program(ops: int) -> RankProgram:
    return RankProgram(0, 2, tuple(Op(f"aten.op{number}", "compute") for number in range(ops)))


def steps_of(folder: Path, rank: int, period: int, **more: Any) -> Steps:
    made = Steps(rank, 2, FileMailbox(folder, rank), 5.0, goes_on=more.pop("goes_on", True))
    made.loop = Loop(period)  # type: ignore[assignment]
    return made


def test_rank_0_goes_on_for_a_period_and_others_do_as_it_does(tmp_path: Path) -> None:
    first, other = steps_of(tmp_path, 0, 4), steps_of(tmp_path, 1, 1)
    sizes = [3, 3, 5, 3]
    assert [first.take(program(size)) for size in sizes] == [False, False, False, True]
    assert [other.take(program(size)) for size in sizes] == [False, False, False, True]
    assert first.digest == other.digest
    assert first.period() == 4
    assert first.facts()["main"] == first.digests[0]
    assert [first.programs[key].facts["step"] for key in first.digests] == [2, 2, 4, 2]


@pytest.mark.parametrize(("sizes", "period"), [([3, 3, 3, 3], 1), ([3, 5, 3, 5], 2), ([3, 5, 5, 3], 4)])
def test_the_period_is_the_least_after_which_steps_repeat(sizes: list[int], period: int, tmp_path: Path) -> None:
    steps = steps_of(tmp_path, 0, 4)
    for size in sizes:
        steps.take(program(size))
    assert steps.period() == period


def test_without_conditions_the_wanted_step_is_the_last(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, 0, 1)
    assert steps.take(program(3))
    assert steps.digest == steps.digests[0]
    alone = steps_of(tmp_path, 5, 8, goes_on=False)
    assert alone.take(program(3))


def test_who_runs_more_steps_than_rank_0_has_is_told_that_there_are_none(tmp_path: Path) -> None:
    first, other = steps_of(tmp_path, 0, 9), steps_of(tmp_path, 1, 9)
    assert not first.take(program(3))
    first.close()  # the script is over
    assert not other.take(program(3))
    assert other.take(program(3))
