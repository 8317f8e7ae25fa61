from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from windtunnel.studies.programs.rank_classes.draws import draw
from windtunnel.studies.programs.rank_classes.grid import Grid, RankAxes, find_grid
from windtunnel.studies.programs.rank_classes.representatives import find_axes, find_classes
from windtunnel.studies.programs.rank_classes.uneven_shards import likely_cuts, short_from


def lattice(grid: Grid, rank: int, dimensions: Sequence[int]) -> tuple[int, ...]:
    """The group along these dimensions that `rank` is in."""
    places = list(grid.coordinates(rank))
    found = []
    for moved in product(*(range(grid.sizes[d]) for d in dimensions)):
        for d, at in zip(dimensions, moved, strict=True):
            places[d] = at
        found.append(grid.rank(places))
    return tuple(found)


grids = st.lists(st.sampled_from([2, 3, 4, 8]), min_size=1, max_size=4).map(
    lambda sizes: Grid(tuple(sizes), tuple(f"d{at}" for at in range(len(sizes))))
)


@given(grids, st.data())
def test_the_grid_is_found_from_the_groups_of_any_rank(grid: Grid, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, grid.world_size - 1))
    groups = [lattice(grid, rank, [d]) for d in range(len(grid.sizes))]
    assert find_grid(grid.world_size, groups).sizes == grid.sizes


@given(grids, st.data())
def test_moved_groups_are_the_groups_of_the_other_rank(grid: Grid, data: st.DataObject) -> None:
    one, other = (data.draw(st.integers(0, grid.world_size - 1)) for _ in range(2))
    dimensions = sorted(data.draw(st.sets(st.sampled_from(range(len(grid.sizes))), min_size=1)))
    assert grid.members_for(other, lattice(grid, one, dimensions)) == lattice(grid, other, dimensions)


@given(grids)
def test_coordinates_and_ranks_are_inverse(grid: Grid) -> None:
    assert [grid.rank(grid.coordinates(rank)) for rank in range(grid.world_size)] == list(range(grid.world_size))


def test_names_come_from_the_mesh_of_the_whole_world() -> None:
    mesh = (("pp", "dp", "tp"), (16, 64, 8))
    grid = find_grid(8192, [tuple(range(8)), tuple(range(8192))], [mesh, (("tp",), (8,))])
    assert (grid.sizes, grid.names) == ((16, 64, 8), ("pp", "dp", "tp"))
    assert grid.label(8191) == "pp 15, dp 63, tp 7"


def test_groups_that_are_no_lattice_do_not_spoil_the_grid() -> None:
    grid = find_grid(16, [(0, 1), (0, 5, 9), (0, 3), tuple(range(0, 16, 4))])
    assert grid.sizes == (4, 2, 2)


def test_a_world_of_one() -> None:
    grid = find_grid(1, [(0,)])
    table = find_classes(find_axes(grid, []), lambda ranks: dict.fromkeys(ranks, "same"))
    assert table.representative_of(0) == 0


@given(grids, st.data())
def test_places_and_ranks_are_inverse_in_any_layout(grid: Grid, data: st.DataObject) -> None:
    exact = data.draw(st.sets(st.sampled_from(range(len(grid.sizes)))))
    layout = RankAxes(grid, tuple(sorted(exact)))
    assert [layout.rank(*layout.place(rank)) for rank in range(grid.world_size)] == list(range(grid.world_size))


@settings(deadline=None)
@given(st.data())
def test_programs_that_change_at_a_few_places_are_all_found(data: st.DataObject) -> None:
    """Uneven tails, an extra first rank, other stages: every rank is given its own program, from few runs."""
    pp, dp, tp = data.draw(st.sampled_from([(4, 16, 4), (2, 64, 2), (1, 128, 8), (3, 8, 1)]))
    grid = Grid((pp, dp, tp), ("pp", "dp", "tp"))
    tails = [sorted(data.draw(st.sets(st.integers(1, max(1, dp - 1)), max_size=2))) for _ in range(pp)]
    logs = data.draw(st.booleans())
    # Shapes differ between stages at the ends and the middle, or nowhere: what else there is, drawn ranks have to see.
    assume(any(tails[stage] for stage in (0, pp // 2, pp - 1)) or not any(tails))

    def program(rank: int) -> str:
        stage, shard, place = grid.coordinates(rank)
        return f"{stage} {sum(shard >= tail for tail in tails[stage])} {logs and place == 0}"

    played: set[int] = set()

    def digests(ranks: Sequence[int]) -> dict[int, str]:
        played.update(ranks)
        return {rank: program(rank) for rank in ranks}

    layout = find_axes(grid, [(0, dp * tp)] if pp > 1 else [])
    table = find_classes(layout, digests)
    for rank in range(grid.world_size):
        assert program(table.representative_of(rank)) == program(rank)
    assert sum(table.counts().values()) == grid.world_size
    assert len(played) <= pp * min(dp * tp, 4 + 2 * 3 * 8 + 2 * 6 * 4)


def test_equal_ranks_take_one_run_a_stage_and_three_more() -> None:
    grid = Grid((16, 64, 8), ("pp", "dp", "tp"))
    played: list[int] = []

    def digests(ranks: Sequence[int]) -> dict[int, str]:
        played.extend(ranks)
        return {rank: str(grid.coordinates(rank)[0]) for rank in ranks}

    layout = find_axes(grid, [(0, 512), (512, 1024)])
    assert layout.exact == (0,)
    table = find_classes(layout, digests)
    assert len(played) == 16 + 3
    assert table.counts() == {512 * stage: 512 for stage in range(16)}
    assert {table.representative_of(rank) for rank in range(1024, 1536)} == {1024}


@pytest.mark.parametrize("empty_from", [1, 26, 29, 31, 32])
def test_a_tail_over_two_dimensions_is_found_exactly(empty_from: int) -> None:
    """Shards over dp x cp: the tail begins inside a row, where no single dimension shows it."""
    grid = Grid((8, 2, 4), ("dp", "tp", "cp"))

    def program(rank: int) -> str:
        dp, _, cp = grid.coordinates(rank)
        return str(dp * 4 + cp >= empty_from)

    table = find_classes(find_axes(grid, []), lambda ranks: {rank: program(rank) for rank in ranks})
    assert all(program(table.representative_of(rank)) == program(rank) for rank in range(64))


def test_parts_of_a_context_and_a_tail_at_once() -> None:
    """Every cp rank has a mask of its own, and the shards over dp x cp have a tail."""
    grid = Grid((16, 4), ("dp", "cp"))

    def program(rank: int) -> str:
        return f"{rank % 4} {rank >= 57}"

    table = find_classes(find_axes(grid, []), lambda ranks: {rank: program(rank) for rank in ranks})
    assert all(program(table.representative_of(rank)) == program(rank) for rank in range(64))


def test_a_rank_that_was_found_to_differ_is_taken_into_the_search() -> None:
    """Ranks 20 to 29 of 64 differ, both ends are equal: no cut is seen until one of them is known."""
    grid = Grid((64,), ("dp",))

    def digests(ranks: Sequence[int]) -> dict[int, str]:
        return {rank: str(20 <= rank < 30) for rank in ranks}

    layout = find_axes(grid, [])
    assert find_classes(layout, digests).counts() == {0: 64}
    table = find_classes(layout, digests, ranks_run=[23])
    assert table.counts() == {0: 54, 20: 10}
    assert [table.representative_of(rank) for rank in (19, 20, 29, 30)] == [0, 20, 20, 0]


def test_drawn_ranks_are_new_of_one_pipeline_and_the_same_for_a_seed() -> None:
    layout = find_axes(Grid((4, 8, 2), ("pp", "dp", "tp")), [(0, 16)])
    drawn = draw(layout, 3, 7, ranks_run=range(0, 64, 16))
    assert len(drawn) == len(set(drawn)) == 3
    assert len({rank % 16 for rank in drawn}) == 1
    assert drawn == draw(layout, 3, 7, ranks_run=range(0, 64, 16))
    assert not {0, 16, 32, 48} & set(drawn)
    assert len({tuple(draw(layout, 3, seed, ranks_run=())) for seed in range(20)}) > 10
    assert draw(layout, 1000, 0, ranks_run=()) == list(range(64))


def test_an_axis_where_all_ranks_differ_is_not_run_to_its_end() -> None:
    grid = Grid((4096,), ("dp",))
    played: list[int] = []

    def digests(ranks: Sequence[int]) -> dict[int, str]:
        played.extend(ranks)
        return {rank: str(rank) for rank in ranks}

    with pytest.raises(Exception, match="differ"):
        find_classes(find_axes(grid, []), digests)
    assert len(played) < 40


SHORT_OUTER = Grid((16, 64, 8), ("pp", "dp", "tp"))


def short_outer(rank: int) -> str:
    """A program for each stage, and one more for the short last shard of the first stage and of the last."""
    pp, dp, _ = SHORT_OUTER.coordinates(rank)
    return f"{pp} {pp in (0, 15) and dp == 63}"


def short_outer_digests(played: list[int]) -> Callable[[Sequence[int]], dict[int, str]]:
    def digests(ranks: Sequence[int]) -> dict[int, str]:
        played.extend(ranks)
        return {rank: short_outer(rank) for rank in ranks}

    return digests


def test_short_last_shards_of_the_outer_stages_cost_a_few_runs() -> None:
    """Embedding and output matrix do not divide by the shards: the last shard of the first and last stage is short."""
    grid, played = SHORT_OUTER, list[int]()
    digests = short_outer_digests(played)
    table = find_classes(find_axes(grid, [(0, 512)]), digests)
    assert all(short_outer(table.representative_of(rank)) == short_outer(rank) for rank in range(0, 8192, 3))
    assert len(table.counts()) == 18
    assert len(played) == 2 * 16 + 2 * 3  # both ends of each stage, and what finds a cut and tests its parts


def test_a_first_rank_that_does_more_than_all_others_costs_two_runs() -> None:
    """It writes the logs, or generates: ten halvings would come to the same."""
    played = list[int]()

    def digests(ranks: Sequence[int]) -> dict[int, str]:
        played.extend(ranks)
        return {rank: "first" if rank == 0 else "other" for rank in ranks}

    table = find_classes(find_axes(Grid((1024,), ("dp",)), []), digests)
    assert table.counts() == {0: 1, 1: 1023}
    assert played == [0, 1023, 1022, 1]


def test_stages_of_a_kind_are_looked_at_once_and_known_tails_are_cut_at_once() -> None:
    """The same, where it is known which stages do the same ops, and that the last part of 16,032 rows is short."""
    grid, played = SHORT_OUTER, list[int]()
    digests = short_outer_digests(played)

    def kind_of(rank: int) -> object:
        stage = grid.coordinates(rank)[0]
        return stage if stage in (0, 15) else "middle"

    def tails_of(rank: int) -> list[tuple[tuple[int, ...], set[int]]]:
        return [(lattice(grid, rank, [1]), short_from(16_032, 64))]

    layout = find_axes(grid, [(0, 512)])
    table = find_classes(layout, digests, kind_of=kind_of, tails_of=tails_of)
    assert all(short_outer(table.representative_of(rank)) == short_outer(rank) for rank in range(0, 8192, 3))
    assert len(table.counts()) == 18
    assert len(played) == 16 + 3 + 2 * 2  # first ranks; a last one of each kind; the ends of two parts of two stages


def test_a_kind_whose_middle_stage_is_uneven_is_looked_at_stage_by_stage() -> None:
    grid = Grid((8, 32), ("pp", "dp"))

    def program(rank: int) -> str:
        pp, dp = grid.coordinates(rank)
        return f"{pp} {pp > 1 and dp >= 20 + pp}"

    layout = find_axes(grid, [(0, 32)])
    table = find_classes(layout, lambda ranks: {rank: program(rank) for rank in ranks}, kind_of=lambda rank: rank < 64)
    assert all(program(table.representative_of(rank)) == program(rank) for rank in range(256))


@given(st.data())
def test_wrong_tails_cost_runs_and_nothing_else(data: st.DataObject) -> None:
    grid = Grid((64, 4), ("dp", "cp"))
    world = range(256)
    really, told = (data.draw(st.sets(st.integers(1, 255), max_size=3)) for _ in range(2))
    told = {at for at in really if data.draw(st.booleans())} | told

    def program(rank: int) -> str:
        return str(sum(rank >= at for at in really))

    played: set[int] = set()

    def digests(ranks: Sequence[int]) -> dict[int, str]:
        played.update(ranks)
        return {rank: program(rank) for rank in ranks}

    table = find_classes(find_axes(grid, []), digests, tails_of=lambda rank: [(tuple(world), told)])
    assert all(program(table.representative_of(rank)) == program(rank) for rank in world)
    if really <= told:
        assert len(played) <= 2 * (2 * len(told) + 1) + 8 * len(told)


def test_tails_of_tiny_tensors_over_thousands_of_ranks_take_two_runs_a_class() -> None:
    """Rows of 128, 256 and 512: from the 128th, the 256th and the 512th rank on, parts are empty."""
    grid = Grid((8192,), ("dp",))
    played: list[int] = []

    def digests(ranks: Sequence[int]) -> dict[int, str]:
        played.extend(ranks)
        return {rank: str([rank < rows for rows in (128, 256, 512)]) for rank in ranks}

    tails = [(tuple(range(8192)), short_from(rows, 8192)) for rows in (128, 256, 512)]
    table = find_classes(find_axes(grid, []), digests, tails_of=lambda rank: tails)
    assert table.counts() == {0: 128, 128: 128, 256: 256, 512: 8192 - 512}
    assert len(played) == 8


@given(st.integers(1, 300), st.integers(1, 40))
def test_parts_become_shorter_where_chunks_do(length: int, size: int) -> None:
    each = -(-length // size)
    parts = [max(0, min(each, length - at * each)) for at in range(size)]
    assert short_from(length, size) == {at for at in range(1, size) if parts[at] != parts[at - 1]}


def test_a_tail_that_begins_inside_a_row_cuts_the_row_off() -> None:
    layout = find_axes(Grid((8, 2, 4), ("dp", "tp", "cp")), [])
    group = tuple(dp * 8 + cp for dp in range(8) for cp in range(4))  # dp x cp of tp 0
    assert likely_cuts(layout, [(group, [26])]) == [{6, 7}, set(), {2}]
    assert likely_cuts(layout, [(group, [28])]) == [{7}, set(), set()]


def test_an_axis_of_parts_that_are_all_different_is_run_to_its_end() -> None:
    """Each of 64 context-parallel ranks has a mask of its own."""
    grid = Grid((128, 64), ("dp", "cp"))
    played: list[int] = []

    def digests(ranks: Sequence[int]) -> dict[int, str]:
        played.extend(ranks)
        return {rank: str(rank % 64) for rank in ranks}

    table = find_classes(find_axes(grid, []), digests)
    assert table.counts() == dict.fromkeys(range(64), 128)
    assert len(played) <= 2 * 64 + 64
