from __future__ import annotations

from time import process_time

from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.studies.serving.kv.pool import BlockPool


def test_a_known_prefix_is_shared_and_then_kept_until_it_is_needed() -> None:
    pool = BlockPool(10)
    pool.take(4)
    assert pool.name([1, 2, 3]) == [1, 2, 3]
    assert pool.leading_blocks([1, 2, 9]) == 2
    pool.share([1, 2])
    assert pool.held == 4
    pool.release(4, [1, 2, 3])
    assert (pool.held, pool.cached, pool.free) == (2, 1, 8)
    pool.release(2, [1, 2])
    assert (pool.held, pool.cached) == (0, 3)
    assert pool.fresh_needed([1, 2, 3], 3, 5) == 5  # cached blocks are free ones: taking them uses them up
    pool.take(8)
    assert pool.cached == 2
    assert pool.leading_blocks([1, 2, 3]) == 2  # the tail went first


def test_names_that_stand_for_several_blocks_are_held_whole_and_leave_from_the_tail() -> None:
    pool = BlockPool(20)
    pool.take(8)
    assert pool.name([1, 2]) == [1, 2]
    pool.release(8, [1, 2], span=4)
    assert (pool.held, pool.cached, pool.leading_blocks([1, 2], 4)) == (0, 8, 8)
    pool.take(14)
    assert (pool.cached, pool.leading_blocks([1, 2], 4)) == (6, 6)  # two blocks of the second went
    assert pool.fresh_needed([1, 2], 6, 9, 4) == 9
    assert pool.share([1, 2], 4) == [1]  # what is left of the second is its own now, and has no name
    assert (pool.held, pool.cached, pool.leading_blocks([1, 2], 4)) == (20, 0, 4)
    pool.release(6, [1], span=4)
    assert (pool.held, pool.cached) == (14, 4)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6)), max_size=60), st.sampled_from([1, 2, 4]))
def test_blocks_are_conserved_whatever_comes(moves: list[tuple[int, int]], span: int) -> None:
    pool = BlockPool(24)
    live: list[tuple[int, list[int]]] = []
    for family, count in moves:
        names, blocks = [family * 100 + place for place in range(count)], count * span
        hit = pool.leading_blocks(names, span)
        if pool.fresh_needed(names, hit, blocks, span) > pool.free:
            if live:
                pool.release(*live.pop(0), span=span)
            continue
        shared = pool.share(names[: -(-hit // span)], span)
        pool.take(blocks - hit)
        live.append((blocks, shared + pool.name(names[len(shared) :])))
        assert pool.held + pool.cached <= pool.total
        assert pool.held <= sum(held for held, _ in live)
    for one in live:
        pool.release(*one, span=span)
    assert pool.held == 0
    assert pool.free == pool.total


@given(st.integers(2, 8), st.integers(1, 8))
def test_of_a_prefix_that_nobody_holds_the_last_blocks_go_first(blocks: int, taken: int) -> None:
    """What is left of it is its beginning, which other prompts can still share."""
    pool = BlockPool(8)
    pool.take(blocks)
    pool.release(blocks, pool.name(range(blocks)))
    pool.take(taken)
    assert pool.leading_blocks(range(blocks)) == min(blocks, 8 - taken)


def test_blocks_that_leave_the_cache_cost_the_same_however_many_left_before_them() -> None:
    def seconds(blocks: int) -> float:
        pool = BlockPool(blocks)
        pool.take(blocks)
        pool.release(blocks, pool.name(range(blocks)))
        begin = process_time()
        for _ in range(blocks):
            pool.take(1)
        return process_time() - begin

    few, many = min(seconds(4_000) for _ in range(3)), seconds(40_000)
    assert many < 40 * few  # 10 times as many; about 100 times where the first is looked for past all that left
