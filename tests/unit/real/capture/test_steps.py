"""Which steps a rank runs and keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from windtunnel.real.capture.processes.file_mailbox import FileMailbox
from windtunnel.real.capture.processes.steps import Steps
from windtunnel.real.capture.source.conditions import MOST_STEPS
from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.program import Op, RankProgram


class Loop:
    """Conditions that say so many steps."""

    lengths: ClassVar[dict[tuple[str, int, str], int]] = {}
    leaves: ClassVar[dict[str, None]] = {}

    def __init__(self, period: int) -> None:
        self._period = period

    def period(self) -> int:
        return self._period

    def steps_more(self, done: int) -> int:
        return 0 * done

    def rounds(self) -> int:
        return 0

    def changes(self) -> bool:
        return False

    def not_met(self, paths: Mapping[str, str]) -> list[str]:
        return list(paths.values())

    def unseen(self, steps: int, compared: int) -> list[str]:
        return [f"of {steps}"] if compared >= steps else []


def program(ops: int) -> RankProgram:
    return RankProgram(0, 2, tuple(Op(f"aten.op{number}", "compute") for number in range(ops)))


def steps_of(folder: Path, rank: int, period: int, **more: Any) -> Steps:
    made = Steps(rank, 2, FileMailbox(folder, rank), 5.0, **{"goes_on": True, **more})
    made.loop = Loop(period)  # type: ignore[assignment]
    return made


def taken(steps: Steps, letters: str) -> int:
    """How many steps it takes of those, the last one again and again; letters that are alike are steps that are."""
    for at in range(1000):
        if steps.take(program("abcdefgh".index(letters[min(at, len(letters) - 1)]) + 1)):
            return at + 1
    raise AssertionError("no end")


def test_rank_0_goes_on_for_a_period_and_others_do_as_it_does(tmp_path: Path) -> None:
    first, other = steps_of(tmp_path, 0, 4), steps_of(tmp_path, 1, 1)
    sizes = [3, 3, 5, 3]
    assert [first.take(program(size)) for size in sizes] == [False, False, False, True]
    assert [other.take(program(size)) for size in sizes] == [False, False, False, True]
    assert first.digest == other.digest
    assert first.facts()["period"] == 4
    assert first.facts()["main"] == first.digests[0]
    assert [first.programs[key].facts["step"] for key in first.digests] == [2, 2, 4, 2]


@pytest.mark.parametrize(("letters", "period"), [("aaaa", 1), ("abab", 2), ("abba", 4)])
def test_the_period_is_the_least_after_which_steps_repeat(letters: str, period: int, tmp_path: Path) -> None:
    steps, later = steps_of(tmp_path, 0, 4), steps_of(tmp_path, 1, 1)
    assert taken(steps, letters) == 4
    assert (steps.facts()["period"], len(steps.digests)) == (period, 4)  # as the conditions ask
    assert taken(later, letters) == 4
    assert later.digest == steps.digest


@pytest.mark.parametrize(
    ("letters", "period", "kept"),
    [
        ("abc" * 50, 3, 3),
        ("aaaab" * 30, 5, 5),
        ("d" + "aab" * 50, 3, 4),
        ("a" * 150, 1, 1),
        ("abcdefg" * 10 + "h", 1, 135),
    ],
)
def test_what_no_condition_says_is_looked_for_until_it_was_seen_twice(
    letters: str, period: int, kept: int, tmp_path: Path
) -> None:
    steps, later = (
        steps_of(tmp_path, rank, 1, files=lambda: {"train.py": "train.py:3: `step % every`"}) for rank in (0, 1)
    )
    assert taken(steps, letters * 2) == 135
    assert (steps.facts()["period"], len(steps.digests)) == (period, kept)
    assert taken(later, letters * 2) == kept
    assert later.digest == steps.digest
    said = steps.unseen()
    assert said[-1] == "train.py:3: `step % every` was not evaluated, and 136 steps were seen"
    assert any("differ" in one for one in said) == (kept == 135)


def test_the_first_steps_may_have_more_to_say_to_each_other(tmp_path: Path) -> None:
    """As DistributedDataParallel's second step has: the one after it is kept."""
    call = Communication("broadcast", "0", (0, 1), 0, 8, is_control=True)
    told = RankProgram(0, 2, (Op("c10d.broadcast_", "communication", communication=call),))
    steps, other = steps_of(tmp_path, 0, 1), steps_of(tmp_path, 1, 1)
    for one in (steps, other):
        assert [one.take(step) for step in (told, program(2))] == [False, True]
        assert one.main == one.digests[1]
    assert steps.facts()["period"] == 1
    again = steps_of(tmp_path, 0, 1)
    assert [again.take(step) for step in (told, told)] == [False, True]
    assert again.digest == again.digests[0]


def test_without_conditions_the_wanted_step_is_the_last(tmp_path: Path) -> None:
    steps = steps_of(tmp_path, 0, 1)
    assert steps.take(program(3))
    assert steps.digest == steps.digests[0]
    alone = steps_of(tmp_path, 5, 8, goes_on=False)
    assert alone.take(program(3))


@pytest.mark.parametrize(("context", "goes_on"), [("no_grad()", True), ("Join([model])", False)])
def test_within_join_inner_rounds_are_not_waited_for(context: str, goes_on: bool, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(f"with {context}:\n    pass\n")
    first = steps_of(tmp_path, 0, 1, files=lambda: {str(path): "train.py"})
    first.loop.rounds = lambda: 4  # type: ignore[method-assign]
    first.loop.not_met = lambda _: []  # type: ignore[method-assign]
    assert (taken(first, "a") > 1) == goes_on


def test_who_was_told_to_go_on_before_rank_0_left_steps_out_keeps_as_many(tmp_path: Path) -> None:
    first, beside = (steps_of(tmp_path, rank, 1, files=lambda: {"train.py": "hidden"}) for rank in (0, 1))
    for _ in range(7):  # side by side, to the script's own end
        assert not first.take(program(3))
        assert not beside.take(program(3))
    first.close()
    beside.close()
    assert (first.last_step, beside.last_step) == (2, 2)
    assert first.digest == beside.digest


def test_who_runs_more_steps_than_rank_0_has_is_told_that_there_are_none(tmp_path: Path) -> None:
    first, beside = steps_of(tmp_path, 0, 9), steps_of(tmp_path, 1, 9)
    assert not first.take(program(3))
    assert not beside.take(program(3))
    first.close()  # the script is over
    assert beside.take(program(3))
    assert steps_of(tmp_path, 2, 9).take(program(3))


def test_where_a_round_may_be_left_all_go_on_and_only_compare(tmp_path: Path) -> None:
    first, other, short = (steps_of(tmp_path, rank, 1) for rank in (0, 1, 2))
    first.loop.leaves = {"train.py:5: `except StopIteration`": None}  # type: ignore[misc]
    assert taken(first, "ab") == MOST_STEPS - 1  # the first of all was not wanted
    assert taken(other, "ab") == MOST_STEPS - 1
    assert not any(short.take(program(1)) for _ in range(9))
    short.close()
    for steps in (first, other, short):
        assert (len(steps.digests), steps.last_step) == (1, MOST_STEPS)


def test_who_goes_round_once_more_than_rank_0_is_compared_so_far(tmp_path: Path) -> None:
    first, other = (steps_of(tmp_path, rank, 1) for rank in (0, 1))
    first.loop.leaves = {"train.py:5: `except StopIteration`": None}  # type: ignore[misc]
    assert not any(first.take(program(1)) for _ in range(9))
    first.close()
    assert taken(other, "a") == 10
    assert (first.last_step, other.last_step) == (10, 11)


def test_an_error_behind_the_compared_steps_is_the_script_s_end(tmp_path: Path) -> None:
    first, beside, short = (steps_of(tmp_path, rank, 1) for rank in (0, 1, 2))
    assert not first.is_behind()
    first.loop.leaves = {"train.py:5: `except StopIteration`": None}  # type: ignore[misc]
    for steps, count in ((first, 9), (beside, 9), (short, 5)):
        assert not any(steps.take(program(1)) for _ in range(count))
        if steps is first:
            assert first.is_behind()
            first.close()
    assert beside.is_behind()
    assert not short.is_behind()  # it raises where others go on


def test_what_takes_long_behind_a_step_ends_the_script_for_all(tmp_path: Path) -> None:
    first, other = steps_of(tmp_path, 0, 4), steps_of(tmp_path, 1, 1)
    assert [first.take(program(3)), first.take(program(5))] == [False, False]
    assert first.patience_s > 15.0  # as much of the budget as is left, and 10 s
    ahead = steps_of(tmp_path, 2, 1)
    assert [ahead.take(program(3)), ahead.patience_s > 0] == [False, True]
    assert not ahead.may_be_cut()  # rank 0 may want more of it
    assert first.may_be_cut()
    first.is_cut = True
    assert first.is_behind()  # whatever the script makes of it
    first.close()
    assert not ahead.may_be_cut()  # it has one step of two
    assert [other.take(program(3)), other.take(program(5))] == [False, True]
    assert other.may_be_cut()
    assert any("behind step 3 takes long" in text for text in first.unseen())
