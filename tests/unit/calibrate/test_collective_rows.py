"""What is made of the seconds that the ranks of a collective measured."""

import pytest

from windtunnel.calibrate.collectives import slowest_rank


def test_of_each_repetition_the_slowest_rank_counts_and_of_these_the_median() -> None:
    seconds = [{"broadcast": {"4096": [1.0, 5.0, 3.0]}}, {"broadcast": {"4096": [2.0, 4.0, 9.0]}}]
    rows, notes = slowest_rank([{"seconds": one, "steps": {}, "notes": ["no all_to_all"]} for one in seconds])
    assert rows == {"broadcast": [[4096, 5.0, pytest.approx(2.6), pytest.approx(8.2)]]}
    assert notes == ["no all_to_all"]


def test_one_round_that_others_disturbed_does_not_move_what_a_collective_adds_to_a_step() -> None:
    """Computing alone takes 10 and 12; waited for, the slowest rank counts, beside it what ranks take on average; two
    more, begun with it, add 4.
    """
    one, other = (10.0, 14.0, 12.0, 18.0, 1), (12.0, 14.0, 13.0, 17.0, 1)
    calm = [[one] * 4, [other] * 4]
    disturbed = [[one] * 3 + [(10.0, 90.0, 80.0, 99.0, 1)], [other] * 3 + [(12.0, 70.0, 60.0, 80.0, 1)]]
    for steps in (calm, disturbed):
        assert added_columns(steps) == [3.0, 1.5, 2.0]


def test_one_core_that_is_slower_is_no_part_of_what_a_collective_adds() -> None:
    """Both wait for the slower one: the step is as long as its computing and the collective."""
    even = added_columns([[(10.0, 11.0, 10.5, 12.0, 1)], [(10.0, 11.0, 10.5, 12.0, 1)]])
    uneven = added_columns([[(9.0, 11.0, 10.5, 12.0, 1)], [(11.0, 11.0, 10.5, 12.0, 1)]])
    assert even == uneven == [1.0, 0.5, 0.5]


def test_a_collective_adds_nothing_rather_than_less() -> None:
    assert added_columns([[(3.0, 2.0, 1.0, 1.5, 1)], [(3.0, 1.0, 2.0, 1.5, 1)]]) == [0.0, 0.0, 0.0]


def added_columns(steps: list[list[tuple[float, float, float, float, int]]]) -> list[float]:
    found = [
        {"seconds": {"all_reduce": {"4096": [1.0]}}, "steps": {"all_reduce": {"4096": one}}, "notes": []}
        for one in steps
    ]
    return slowest_rank(found)[0]["all_reduce"][0][4:]


def test_rounds_in_which_computing_was_slow_do_not_count() -> None:
    """Alone a product took 1 in one round and 1.4 in the others, of one rank or of both."""
    quick, slow = (10.0, 14.0, 12.0, 18.0, 10), (14.0, 30.0, 20.0, 40.0, 10)
    assert added_columns([[slow, quick, slow, slow], [quick, quick, slow, quick]]) == [4.0, 2.0, 2.0]
