"""What replicas must have alike, and calls within `Join` that nobody makes for those that are through."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.real.capture.source.branches import calls_beside_join
from windtunnel.studies.programs.program_file import runs_of
from windtunnel.studies.programs.rank_classes.replicas import compare_replicas

Drawn = list[tuple[int, str] | None]


def step(
    members: tuple[int, ...], number: int, rate: float, drawn: Drawn | None = None, sizes: int = 1
) -> list[object]:
    return [runs_of(members), 0, number, sizes, [["lr", rate]], drawn or [], "train.py:9", "train.py:8"]


def test_the_first_step_with_another_rate_is_told_of_the_fewest_ranks() -> None:
    rates = {0: (0.1, 0.2, 0.3), 1: (0.1, 0.2, 0.3), 2: (0.1, 0.1, 0.2)}
    facts = {rank: [step((0, 1, 2, 3), n, rate) for n, rate in enumerate(of, 1)] for rank, of in rates.items()}
    (found,) = compare_replicas(facts, 4)
    assert (found.kind, found.ranks, found.line, found.is_fatal) == ("replicas", (2,), "train.py:9", False)
    assert "lr 0.1 where 0, 1 step with 0.2" in found.text
    assert "world" in found.group


@pytest.mark.parametrize(
    "other", [step((2, 3), 1, 0.2), step((0, 1), 2, 0.2), step((0, 1), 1, 0.2, sizes=2), step((0, 1), 1, 0.1)]
)
def test_other_members_steps_or_shapes_are_no_replicas(other: list[object]) -> None:
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
    ],
)
def test_calls_of_the_script_within_join(context: str, more: str, lines: set[str], tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(context=context) + more)
    assert calls_beside_join({str(path): "train.py"}, 3, ("all_reduce",)) == lines
    assert calls_beside_join({str(path): "train.py"}, 4, ("all_reduce",)) == set()
