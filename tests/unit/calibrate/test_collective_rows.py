"""What is made of the seconds that the ranks of a collective measured."""

import pytest

from windtunnel.calibrate.collectives import slowest_rank


def test_of_each_repetition_the_slowest_rank_counts_and_of_these_the_median() -> None:
    seconds = [{"broadcast": {"4096": [1.0, 5.0, 3.0]}}, {"broadcast": {"4096": [2.0, 4.0, 9.0]}}]
    rows, notes = slowest_rank([{"seconds": one, "added": {}, "notes": ["no all_to_all"]} for one in seconds])
    assert rows == {"broadcast": [[4096, 5.0, pytest.approx(2.6), pytest.approx(8.2)]]}
    assert notes == ["no all_to_all"]


def test_one_round_that_others_disturbed_does_not_move_what_a_collective_adds_to_a_step() -> None:
    """Waited for, the slowest rank counts; beside computing, each rank's own loss, which is none below zero."""
    calm = [[(2.0, 1.0)] * 4, [(3.0, 0.5)] * 4]
    disturbed = [[(2.0, 1.0)] * 3 + [(90.0, 80.0)], [(3.0, 0.5)] * 3 + [(70.0, 60.0)]]
    for added in (calm, disturbed):
        assert added_columns(added) == [3.0, 0.75]
    assert added_columns([[(-1.0, -2.0)], [(-3.0, 1.0)]]) == [0.0, 0.0]


def added_columns(added: list[list[tuple[float, float]]]) -> list[float]:
    found = [
        {"seconds": {"all_reduce": {"4096": [1.0]}}, "added": {"all_reduce": {"4096": one}}, "notes": []}
        for one in added
    ]
    return slowest_rank(found)[0]["all_reduce"][0][4:]
