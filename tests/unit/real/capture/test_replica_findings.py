"""What replicas must have alike, and calls within `Join` that nobody makes for those that are through."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.real.capture.source.branches import calls_beside_join
from windtunnel.real.capture.uneven_loops import uneven_loops
from windtunnel.studies.programs.program_file import runs_of
from windtunnel.studies.programs.rank_classes.findings import CallEntry, CallLog, GroupEntry
from windtunnel.studies.programs.rank_classes.replicas import compare_replicas

Drawn = list[tuple[int, str] | None]


def step(
    members: tuple[int, ...], number: int, rate: float, drawn: Drawn | None = None, parameters: int = 1, stop: str = ""
) -> list[object]:
    return [runs_of(members), 0, number, parameters, [["lr", rate]], drawn or [], "train.py:9", "train.py:8", stop]


def test_the_first_step_with_another_rate_is_told_of_the_fewest_ranks() -> None:
    rates = {0: (0.1, 0.2, 0.3), 1: (0.1, 0.2, 0.3), 2: (0.1, 0.1, 0.2)}
    facts = {rank: [step((0, 1, 2, 3), n, rate) for n, rate in enumerate(of, 1)] for rank, of in rates.items()}
    (found,) = compare_replicas(facts, 4)
    assert (found.kind, found.ranks, found.line, found.is_fatal) == ("replicas", (2,), "train.py:9", False)
    assert "lr 0.1 where 0, 1 step with 0.2" in found.text
    assert "world" in found.group


@pytest.mark.parametrize(
    "other",
    [
        *(step((2, 3), 1, 0.2), step((0, 1), 2, 0.2), step((0, 1), 1, 0.2, parameters=2), step((0, 1), 1, 0.1)),
        step((0, 1), 1, 0.2, stop="train.py:12"),  # where the rank did more, or less, than the other so far
    ],
)
def test_other_members_steps_parameters_or_stops_are_no_replicas(other: list[object]) -> None:
    assert compare_replicas({0: [step((0, 1), 1, 0.1)], 1: [other]}, 4) == []


@pytest.mark.parametrize(
    ("mine", "its", "told"),
    [
        ([(1, "a.py:1")], [(2, "a.py:1")], True),
        ([(1, "a.py:1")], [(1, "a.py:1")], False),
        ([(1, "a.py:1")], [None], False),
        ([(1, "a.py:1"), None], [(1, "a.py:1"), (2, "a.py:1")], False),
    ],
)
def test_parameters_of_unlike_seeds_are_told_where_both_are_known(mine: Drawn, its: Drawn, told: bool) -> None:
    found = compare_replicas({0: [step((0, 1), 1, 0.1, mine)], 1: [step((0, 1), 1, 0.1, its)]}, 2)
    assert [one.line for one in found] == ["train.py:8"] * told


SCRIPT = """
with {context}:
    for x in rows:
        step(x)
        dist.all_reduce(mean)
dist.all_reduce(total)
"""


@pytest.mark.parametrize(
    ("context", "more", "lines"),
    [
        ("Join([model])", "", {"train.py:5"}),
        ("model.join()", "", {"train.py:5"}),
        ("open(os.path.join(a, b))", "", set()),
        ("Join([model, meter])", "class Meter(Joinable): pass\n", set()),
        ("Join([model], throw_on_early_termination=True)", "", set()),
    ],
)
def test_calls_of_the_script_within_join(context: str, more: str, lines: set[str], tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(context=context) + more)
    assert calls_beside_join({str(path): "train.py"}, 3, ("all_reduce",)) == lines
    assert calls_beside_join({str(path): "train.py"}, 4, ("all_reduce",)) == set()


def test_a_call_that_hangs_on_a_test_may_be_made_by_all(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(context="Join([model])").replace("dist.", "if first: dist."))
    assert calls_beside_join({str(path): "train.py"}, 3, ("all_reduce",)) == set()


@pytest.mark.parametrize(("members", "told"), [((2, 3), False), ((0, 2), True)])
def test_within_join_who_goes_round_as_often_may_call_together(
    members: tuple[int, ...], told: bool, tmp_path: Path
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(context="Join([model])"))
    files = {str(path): "train.py"}
    loops = {rank: [("train.py", 3, "for x in rows", 5 if rank > 1 else 4)] for rank in range(4)}
    log = CallLog(2, [GroupEntry("", members, 0)], [CallEntry(0, 0, "all_reduce", line="train.py:5")])
    found = uneven_loops({rank: {"files": files, "loops": of} for rank, of in loops.items()}, {2: log}, 4)
    assert [(one.kind, one.line, one.ranks) for one in found] == [("rounds", "train.py:5", (2, 3))] * told
