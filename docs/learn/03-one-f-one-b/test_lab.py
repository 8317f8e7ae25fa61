"""Grades lab 3: laws, the worked example, then windtunnel's own schedules."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from windtunnel.studies.training.schedules import Kind, walk
from windtunnel.studies.training.schedules import schedule as their_schedule

SHAPES = [(1, 4), (2, 2), (2, 7), (4, 4), (4, 8), (4, 2), (8, 32)]


def orders(lab: ModuleType, name: str, stages: int, micro_batches: int) -> list[list[Any]]:
    return [getattr(lab, name)(stages, micro_batches, rank) for rank in range(stages)]


# ------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b"])
@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
def test_every_pass_runs_once_and_backward_after_forward(
    lab: ModuleType, name: str, stages: int, micro_batches: int
) -> None:
    for actions in orders(lab, name, stages, micro_batches):
        assert sorted(actions) == sorted((kind, i) for kind in "FB" for i in range(micro_batches))
        for i in range(micro_batches):
            assert actions.index(("F", i)) < actions.index(("B", i))


@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
def test_1f1b_keeps_no_more_activations_than_stages_follow(lab: ModuleType, stages: int, micro_batches: int) -> None:
    for rank, actions in enumerate(orders(lab, "one_f_one_b", stages, micro_batches)):
        assert lab.most_in_flight(actions) == min(micro_batches, stages - rank)
    for actions in orders(lab, "gpipe", stages, micro_batches):
        assert lab.most_in_flight(actions) == micro_batches


@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES)
def test_both_waste_the_same_time(lab: ModuleType, stages: int, micro_batches: int) -> None:
    """(p - 1)(F + B), whatever F and B are."""
    for forward_s, backward_s in ((1.0, 2.0), (1.5, 1.0)):
        work_s = micro_batches * (forward_s + backward_s)
        for name in ("gpipe", "one_f_one_b"):
            ends = lab.ends_s(orders(lab, name, stages, micro_batches), forward_s, backward_s)
            step_s = max(end for rank in ends for end in rank)
            assert step_s - work_s == pytest.approx((stages - 1) * (forward_s + backward_s))
            assert (step_s - work_s) / work_s == pytest.approx(lab.bubble_share(stages, micro_batches))


def test_nothing_starts_before_what_it_needs(lab: ModuleType) -> None:
    given = orders(lab, "one_f_one_b", 4, 6)
    ends = lab.ends_s(given, 1.0, 2.0)
    at = {(rank, *one): end for rank in range(4) for one, end in zip(given[rank], ends[rank], strict=True)}
    for (rank, kind, i), end in at.items():
        if kind == "F" and rank > 0:
            assert end - 1.0 >= at[rank - 1, "F", i]
        if kind == "B":
            assert end - 2.0 >= at[rank, "F", i]
        if kind == "B" and rank < 3:
            assert end - 2.0 >= at[rank + 1, "B", i]


def test_ranks_that_wait_for_each_other_are_found(lab: ModuleType) -> None:
    """The last rank wants micro-batch 1 first, the first will send it only after the backward of 0."""
    first = [lab.Action("F", 0), lab.Action("B", 0), lab.Action("F", 1), lab.Action("B", 1)]
    last = [lab.Action("F", 1), lab.Action("B", 1), lab.Action("F", 0), lab.Action("B", 0)]
    with pytest.raises(lab.DeadlockError):
        lab.ends_s([first, last], 1.0, 2.0)


def test_a_backward_waits_for_the_forward_of_its_own_rank(lab: ModuleType) -> None:
    with pytest.raises(lab.DeadlockError):
        lab.ends_s([[lab.Action("B", 0), lab.Action("F", 0)]], 1.0, 2.0)


# --------------------------------------------------------------------------------------------------- worked example


def test_the_example_of_the_page(lab: ModuleType) -> None:
    words = ["".join(f"{kind}{i} " for kind, i in one).strip() for one in orders(lab, "one_f_one_b", 3, 4)]
    assert words == ["F0 F1 F2 B0 F3 B1 B2 B3", "F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]
    ends = lab.ends_s(orders(lab, "one_f_one_b", 3, 4), 1.0, 2.0)
    assert ends[2] == [3.0, 5.0, 6.0, 8.0, 9.0, 11.0, 12.0, 14.0]
    assert ends[0][-1] == 18.0
    assert lab.bubble_share(3, 4) == 0.5


# ------------------------------------------------------------------------------------------- windtunnel as the oracle


@pytest.mark.parametrize(("mine", "theirs"), [("gpipe", "gpipe"), ("one_f_one_b", "1f1b")])
@pytest.mark.parametrize(("stages", "micro_batches"), SHAPES[1:])
def test_orders_and_ends_are_windtunnels(
    lab: ModuleType, mine: str, theirs: str, stages: int, micro_batches: int
) -> None:
    table = their_schedule(theirs, stages, micro_batches)
    their_ends = walk(table, np.where(table.kind == Kind.FORWARD, 1.0, 2.5))
    given = orders(lab, mine, stages, micro_batches)
    my_ends = lab.ends_s(given, 1.0, 2.5)
    for rank in range(stages):
        rows = table.of_rank(rank)
        kinds = ["F" if kind == Kind.FORWARD else "B" for kind in table.kind[rows].tolist()]
        assert given[rank] == list(zip(kinds, table.micro_batch[rows].tolist(), strict=True))
        assert my_ends[rank] == pytest.approx(their_ends[rows])
