"""SpotServe's mapping against brute force, migration's closed forms; DistMind's pipeline and routing."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.studies.serving.spot.mapping import (
    Layout,
    map_positions,
    maximum_matching,
    missing_layers,
    overlap,
    positions_of,
)
from windtunnel.studies.serving.spot.reconfigure import Choice, Receipt, choose, migrate
from windtunnel.studies.serving.weight_pool.loads import Holder, first_answer_s, route


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 5), st.integers(0, 2), st.data())
def test_the_matching_is_the_best_of_all(columns: int, more: int, data: st.DataObject) -> None:
    rows = columns + more
    row = st.lists(st.integers(0, 20), min_size=columns, max_size=columns)
    value = data.draw(st.lists(row, min_size=rows, max_size=rows))
    matched = maximum_matching(value)
    assert len(set(matched)) == columns
    ours = sum(value[matched[c]][c] for c in range(columns))
    assert ours == max(sum(value[p[c]][c] for c in range(columns)) for p in permutations(range(rows), columns))


@pytest.mark.parametrize(("old", "new"), [((1, 2, 4), (1, 4, 2)), ((2, 2, 2), (1, 2, 4)), ((1, 3, 2), (2, 2, 1))])
def test_positions_share_what_both_hold(old: tuple[int, int, int], new: tuple[int, int, int]) -> None:
    """The parts of a new rank that the ranks of one old replica hold add up to that rank's own part."""
    for wanted in positions_of(new):
        parts = [overlap(mine, old, wanted, new) for mine in positions_of(old) if mine[0] == 0]
        assert sum(parts) == pytest.approx(1.0 / (new[1] * new[2]))


def test_the_same_layout_moves_nothing_and_a_lost_gpu_only_its_part() -> None:
    layout = (1, 2, 4)
    held = list(positions_of(layout))
    same = map_positions(held, layout, layout, 80.0, [8.0], {0: 0})
    assert same.moved_bytes == pytest.approx(0.0)
    assert same.gpu_of == tuple(range(8))
    held[3] = None  # a fresh GPU in its place
    lost = map_positions(held, layout, layout, 80.0, [8.0], {0: 0})
    assert lost.moved_bytes == pytest.approx(88.0 / 8)
    assert lost.received_bytes[3] == pytest.approx(11.0)


def test_matching_never_moves_more_than_taking_gpus_in_order() -> None:
    old, new = (2, 3, 4), (2, 2, 4)
    held = [one for place, one in enumerate(positions_of(old)) if place % 5 != 2][:18]
    ours = map_positions(held, old, new, 100.0)
    in_order = sum(
        max(0.0, 100.0 / 8 - 100.0 * overlap(held[place], old, wanted, new))
        for place, wanted in enumerate(positions_of(new))
    )
    assert ours.moved_bytes < in_order


def test_layouts_are_chosen_for_latency_while_the_rate_is_met() -> None:
    choices = [
        Choice((1, 1, 4), 8, 2.0, 1.0),
        Choice((2, 1, 4), 8, 4.0, 1.0),
        Choice((1, 1, 8), 8, 3.0, 0.6),
        Choice((1, 2, 8), 8, 5.0, 0.7),
    ]
    assert choose(choices, 8, 2.5) == choices[2]
    assert choose(choices, 8, 3.5) == choices[1]
    assert choose(choices, 8, 9.0) == choices[1]
    assert choose(choices, 16, 4.5) == choices[3]
    assert choose(choices, 3, 1.0) is None


def test_serving_starts_with_the_front_and_never_waits_for_a_later_layer() -> None:
    """Eight layers of a second each behind two seconds of cache, then the same cut into two stages."""
    whole = [Receipt(2.0, 0, [1.0] * 8)]
    slow = migrate(whole, 1.0, 0.1)
    assert (slow.serving_s, slow.done_s) == (pytest.approx(10.0 - 7 * 0.1), 10.0)
    assert migrate(whole, 1.0, 5.0).serving_s == pytest.approx(3.0)
    assert migrate(whole, 1.0, 0.0).serving_s == 10.0
    stages = [Receipt(1.0, 0, [1.0] * 4), Receipt(1.0, 4, [1.0] * 4)]
    assert migrate(stages, 1.0, 0.5).serving_s == pytest.approx(5.0 - 3 * 0.5)
    assert migrate(stages, 1.0, 2.0).serving_s == pytest.approx(2.0)
    nothing = migrate([Receipt(0.0, 0, [0.0] * 4)], 1.0, 0.0)
    assert (nothing.serving_s, nothing.done_s) == (0.0, 0.0)


@pytest.mark.parametrize(("old", "new"), [((1, 3, 2), (2, 2, 4)), ((2, 2, 2), (1, 3, 2)), ((1, 1, 4), (1, 1, 4))])
def test_layers_that_are_missing_add_up_to_the_weights_that_are_received(old: Layout, new: Layout) -> None:
    for wanted in positions_of(new):
        for mine in [None, *positions_of(old)]:
            held = [mine if place == 0 else None for place in range(len(positions_of(new)))]
            front, lacks = missing_layers(mine, old, wanted, new, 44, 100.0)
            share = 0.0 if mine is None else overlap(mine, old, wanted, new)
            assert sum(lacks) == pytest.approx(100.0 * (1.0 / (new[1] * new[2]) - share))
            assert front <= wanted[1] * 44 / new[1] < front + 1
            assert map_positions(held, old, new, 100.0).moved_bytes <= 100.0 * new[0]


def test_a_load_in_three_stages_is_as_long_as_its_slowest_and_its_ends() -> None:
    layers, compute = [1e9] * 10, [0.02] * 10
    piped = first_answer_s(layers, compute, 10e9, 20e9)
    assert piped == pytest.approx(10 * 0.1 + 0.05 + 0.02)
    assert first_answer_s(layers, compute, 10e9, 20e9, pipelined=False) == pytest.approx(10 * 0.17)
    assert first_answer_s(layers, compute, 10e9, 20e9, [True] * 10) == pytest.approx(10 * 0.05 + 0.02)
    assert first_answer_s([2e9], [0.1], 10e9, 20e9) == pytest.approx(0.2 + 0.1 + 0.1)


def test_requests_go_where_the_model_is_unless_that_server_is_full() -> None:
    servers = [
        Holder(frozenset({"a"}), 7, None),
        Holder(frozenset({"a", "b"}), 2, None),
        Holder(frozenset({"c"}), 0, 5.0),
        Holder(frozenset(), 0, 3.0),
    ]
    assert route("a", servers) == 1
    assert route("b", servers, most_backlog=2) == 3
    assert route("d", servers) == 3
    assert route("d", servers[:2]) is None
