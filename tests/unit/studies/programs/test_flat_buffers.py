"""Ranks that hold alike parts of a flat buffer are found without running them, wherever its tensors begin and end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.studies.programs.rank_classes.flat_buffers import TENSORS, FlatBuffer, RankParts
from windtunnel.studies.programs.rank_classes.grid import Grid
from windtunnel.studies.programs.rank_classes.representatives import Table, find_axes, find_classes

GRID = Grid((256, 4), ("expert_dp", "ep"))
WORLD = range(1024)


def laid_out(members: Sequence[int], lengths: Sequence[tuple[int, int]]) -> FlatBuffer:
    """Tensors of (bytes, dimensions) one behind another, in equal parts."""
    tensors, at = [], 0
    for length, dimensions in lengths:
        tensors.append((at, at + length, dimensions))
        at += length
    return FlatBuffer(tuple(members), -(-at // len(members)), tuple(tensors))


def test_what_a_part_holds() -> None:
    buffer = FlatBuffer((0, 1, 2, 3), 10, ((0, 14, 2), (14, 16, 1), (18, 40, 2)))
    assert [buffer.pieces(place) for place in range(4)] == [(10, 2), (2, 6, 2, 1, 2), (10, 2), (10, 2)]
    assert buffer.tail() == ((0, 1, 2, 3), [1, 2])
    assert FlatBuffer((0, 1), 10, ((0, 14, 2),)).pieces(1) == (4, 2)
    assert FlatBuffer((0, 1), 10, ((0, 9, 2),)).pieces(1) == ()


def folded(program: Callable[[int], str], buffers: Sequence[FlatBuffer], odd: Sequence[int] = ()) -> tuple[Table, int]:
    """The table, and how many ranks were run for it."""
    played: set[int] = set()

    def digests(ranks: Sequence[int]) -> dict[int, str]:
        played.update(ranks)
        return {rank: program(rank) for rank in ranks}

    layout = find_axes(GRID, [])
    return find_classes(layout, digests, odd, buffers_of=lambda rank: buffers), len(played)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_every_rank_is_given_its_program_from_one_run_of_each_kind_of_part(data: st.DataObject) -> None:
    lengths = st.tuples(st.sampled_from((16, 64, 4096, 16384)), st.sampled_from((1, 2)))
    dense = laid_out(WORLD, data.draw(st.lists(lengths, min_size=1, max_size=40)))
    experts = laid_out(range(0, 1024, 4), data.draw(st.lists(lengths, min_size=1, max_size=20)))
    logs = data.draw(st.booleans())

    def program(rank: int) -> str:
        return f"{dense.pieces(rank)} {experts.pieces(rank // 4)} {logs and rank == 0}"

    table, runs = folded(program, (dense, experts))
    programs = {program(rank) for rank in WORLD}
    most = max(WORLD, key=lambda rank: len(dense.pieces(rank)) + len(experts.pieces(rank // 4)))
    interior = 0 < most // 4 < 255 and 0 < most % 4 < 3
    if interior or table.counts().keys() - {0, 1023}:  # else the parts with the most pieces lie at an end
        assert all(program(table.representative_of(rank)) == program(rank) for rank in WORLD)
    assert runs <= 9 * len(programs) + 4  # apart: the first and the last of both axes


def test_parts_that_make_no_difference_cost_three_runs() -> None:
    buffer = laid_out(WORLD, [(4000, 2), (100, 1)] * 20)
    table, runs = folded(lambda rank: "same", (buffer,))
    assert table.counts() == {0: 1024}
    assert runs <= 5


def test_a_rank_that_is_not_like_those_with_alike_parts_is_found_once_it_was_run() -> None:
    buffer = laid_out(WORLD, [(40_000, 2), (100, 1)] * 4)

    def program(rank: int) -> str:
        return f"{len(buffer.pieces(rank))} {rank == 310}"

    table, _ = folded(program, (buffer,))
    assert program(table.representative_of(310)) != program(310)
    table, _ = folded(program, (buffer,), odd=[310])
    assert all(program(table.representative_of(rank)) == program(rank) for rank in WORLD)


def test_where_alike_parts_do_not_decide_the_program_all_ranks_that_hold_such_are_run() -> None:
    """Every second layer's bias is treated otherwise, for all four experts: one rank that shows it was met."""
    experts = laid_out(range(0, 1024, 4), [(40_000, 2), (100, 1)] * 16)

    def program(rank: int) -> str:
        which = experts.pieces(rank // 4, TENSORS)
        return f"{experts.pieces(rank // 4)} {len(which) > 4 and which[-1] % 4 == 0}"

    mixed = [rank for rank in WORLD if program(rank).endswith("True")]
    assert {rank % 4 for rank in mixed} == {0, 1, 2, 3}
    for odd in mixed[:4]:
        table, runs = folded(program, (experts,), odd=[odd])
        assert all(program(table.representative_of(rank)) == program(rank) for rank in WORLD)
        assert runs < 200


def test_a_group_that_is_no_lattice_says_nothing() -> None:
    assert not RankParts(find_axes(GRID, []), [laid_out((0, 1, 7, 9), [(30, 2), (10, 1)])]).tails
