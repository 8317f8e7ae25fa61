"""What is made of the seconds that the ranks of a collective measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.real.calibrate.collectives import slowest_rank


def test_of_each_repetition_the_slowest_rank_counts_and_of_these_the_median() -> None:
    seconds = [{"broadcast": {"4096": [1.0, 5.0, 3.0]}}, {"broadcast": {"4096": [2.0, 4.0, 9.0]}}]
    rows, notes = slowest_rank([{"seconds": one, "steps": {}, "notes": ["no all_to_all"]} for one in seconds])
    assert rows == {"broadcast": [[4096, 5.0, pytest.approx(2.6), pytest.approx(8.2)]]}
    assert notes == ["no all_to_all"]


def test_one_round_that_others_disturbed_does_not_move_what_a_collective_adds_to_a_step() -> None:
    """The last comes at 12 and both leave at 14; computing takes 11 on average, beside the collective 12.5; two more,
    begun with it, are done 4 later.
    """
    one, other = (
        row(10.0, looped(10.0, 14.0), 12.0, looped(10.0, 18.0)),
        row(12.0, looped(12.0, 14.0), 13.0, looped(12.0, 18.0)),
    )
    hit, hit_too = (
        row(10.0, looped(10.0, 90.0), 80.0, looped(10.0, 99.0)),
        row(12.0, looped(12.0, 70.0), 60.0, looped(12.0, 80.0)),
    )
    for steps in ([[one] * 4, [other] * 4], [[one] * 3 + [hit], [other] * 3 + [hit_too]]):
        assert added_columns(steps) == [2.0, 1.5, 2.0]


def test_computing_that_is_slower_after_waiting_is_no_part_of_what_a_collective_adds() -> None:
    """A real rank waits as long and finds its caches as cold."""
    slowed = [[10.0, 25.0], [14.0, 29.0]]  # 11 from leaving to coming, alone 10
    assert added_columns([[row(10.0, slowed, 10.0, slowed)]] * 2)[0] == 4.0


@given(st.lists(st.floats(-3.0, 3.0), min_size=2, max_size=2))
def test_when_ranks_come_is_no_part_of_what_a_collective_adds(early: list[float]) -> None:
    """It takes 5 from when the last is there, however long the other waited."""
    came = [20.0 + by for by in early]
    steps = [[row(at, looped(at, max(came) + 5.0), at, looped(at, max(came) + 5.0))] for at in came]
    assert added_columns(steps)[0] == pytest.approx(5.0)


def test_a_collective_adds_nothing_rather_than_less() -> None:
    assert added_columns([[row(3.0, looped(3.0, 4.0), 1.0, looped(3.0, 3.5))]] * 2) == [1.0, 0.0, 0.0]


Row = tuple[float, list[list[float]], float, list[list[float]], int]


def looped(came: float, left: float) -> list[list[float]]:
    """When a rank came and left, twice the same, computing as long as before it came first."""
    return [[came, left + came], [left, 2 * left]]


def row(alone: float, waited: list[list[float]], beside: float, queued: list[list[float]], products: int = 1) -> Row:
    """As a rank writes it."""
    return alone, waited, beside, queued, products


def added_columns(steps: list[list[Row]]) -> list[float]:
    found = [
        {"seconds": {"all_reduce": {"4096": [1.0]}}, "steps": {"all_reduce": {"4096": one}}, "notes": []}
        for one in steps
    ]
    return slowest_rank(found)[0]["all_reduce"][0][4:]


def test_rounds_in_which_computing_took_more_or_less_than_usual_do_not_count() -> None:
    """Alone a product usually takes 1, of one rank or the other 1.4 or 0.7 in a round."""
    usual = row(10.0, looped(10.0, 14.0), 12.0, looped(10.0, 18.0), 10)
    slow = row(14.0, looped(14.0, 30.0), 20.0, looped(14.0, 40.0), 10)
    quick = row(7.0, looped(7.0, 8.0), 7.5, looped(7.0, 9.0), 10)
    assert added_columns([[slow, usual, quick, usual, usual], [usual, usual, usual, slow, quick]]) == [4.0, 2.0, 2.0]
