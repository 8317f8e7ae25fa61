from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.physics.graph import AllocatorResult, replay_allocator
from windtunnel.physics.graph.allocator import MIB, Block, CachingAllocator


def run(*events: tuple[int, float], **options) -> AllocatorResult:
    """Events as (id, MiB): positive allocates, negative frees."""
    ids = np.array([i for i, _ in events], dtype=np.int64)
    sizes = np.array([round(mib * MIB) for _, mib in events], dtype=np.int64)
    return replay_allocator(ids, sizes, **options)


@pytest.mark.parametrize(
    ("request_bytes", "allocated", "reserved"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 12 * MIB, 12 * MIB),  # the rest of 1 MiB is too small to split off the large pool
        (10 * MIB + 512, 10 * MIB + 512, 12 * MIB),  # a rest of almost 2 MiB is
    ],
)
def test_one_request(request_bytes: int, allocated: int, reserved: int) -> None:
    got = replay_allocator(np.array([0]), np.array([request_bytes]))
    assert (got.peak_allocated_bytes, got.peak_reserved_bytes) == (allocated, reserved)


def test_small_requests_share_a_segment_and_never_use_the_large_pool() -> None:
    got = run((0, 5), (1, 1), (2, 1), (3, 1))
    assert (got.reserved_bytes / MIB).tolist() == [20, 22, 22, 24]


def test_medium_requests_share_a_segment_of_20_mib() -> None:
    got = run((0, 9), (1, 9), (2, 2), (3, 2))
    assert (got.reserved_bytes / MIB).tolist() == [20, 20, 20, 40]
    assert (got.allocated_bytes / MIB).tolist() == [9, 18, 20, 22]


def test_cached_memory_is_reused_and_the_best_fit_wins() -> None:
    got = run((0, 40), (1, 30), (0, -40), (1, -30), (2, 29), (3, 40))
    assert got.peak_reserved_bytes == 70 * MIB
    assert got.allocated_bytes[-1] == 70 * MIB  # 29 takes all of the 30: the rest of 1 MiB is not split off


def test_neighbours_coalesce() -> None:
    got = run((0, 6), (1, 6), (2, 8), (0, -6), (1, -6), (3, 12))
    assert got.peak_reserved_bytes == 20 * MIB


def test_cached_segments_are_given_back_before_memory_runs_out() -> None:
    got = run((0, 20), (0, -20), (1, 22), capacity_bytes=30 * MIB)
    assert got.oom_event is None
    assert got.retries == 1
    assert (got.reserved_bytes / MIB).tolist() == [20, 20, 22]


def test_a_split_segment_cannot_be_given_back_so_fragmentation_runs_out_of_memory() -> None:
    fill = [(i, 5.0) for i in range(8)]
    holes = [(i, -5.0) for i in range(0, 8, 2)]
    got = run(*fill, *holes, (9, 10), capacity_bytes=40 * MIB)
    assert got.oom_event == 12
    assert got.allocated_bytes[-1] == 20 * MIB
    assert len(got.allocated_bytes) == 12
    assert run(*fill, *holes, (9, 10), capacity_bytes=50 * MIB).oom_event is None


def test_an_expandable_segment_grows_where_a_fixed_one_strands_memory() -> None:
    growing = [event for i, mib in enumerate([10, 14, 18, 22, 26]) for event in ((i, mib), (i, -mib))]
    assert run(*growing).peak_reserved_bytes == (10 + 14 + 18 + 22 + 26) * MIB
    expandable = run(*growing, expandable_segments=True)
    assert expandable.peak_reserved_bytes == 40 * MIB
    assert run(*growing, expandable_segments=True, capacity_bytes=40 * MIB).oom_event is None
    assert run(*growing, expandable_segments=True, capacity_bytes=39 * MIB).oom_event == 6


def test_free_pages_of_an_expandable_segment_are_unmapped_under_pressure() -> None:
    # 0-40 freed, 40-60 live, and the small pool needs memory: both free pages go back, later the hole is filled again.
    events = [(0, 40), (1, 20), (0, -40), *((i, 1) for i in range(2, 6)), (6, 20), (7, 20)]
    got = run(*events, expandable_segments=True, capacity_bytes=62 * MIB)
    assert got.retries == 2
    assert got.oom_event == 8
    assert (got.reserved_bytes / MIB).tolist() == [40, 60, 60, 62, 62, 24, 24, 44]


def test_streams_do_not_share_blocks() -> None:
    ids, sizes = np.array([0, 0, 1]), np.array([20 * MIB, -20 * MIB, 20 * MIB])
    assert replay_allocator(ids, sizes, stream=np.array([0, 0, 0])).peak_reserved_bytes == 20 * MIB
    assert replay_allocator(ids, sizes, stream=np.array([0, 0, 1])).peak_reserved_bytes == 40 * MIB


def test_misuse_fails() -> None:
    with pytest.raises(AssertionError, match="event 1 allocates block 0 twice"):
        run((0, 1), (0, 1))
    with pytest.raises(AssertionError, match="event 0 frees block 3"):
        run((3, -1))


def test_no_events() -> None:
    got = run()
    assert (got.peak_allocated_bytes, got.peak_reserved_bytes) == (0, 0)


sizes = st.one_of(st.integers(1, 4096), st.integers(1, 3 * MIB), st.integers(1, 64 * MIB))
steps = st.lists(st.tuples(st.booleans(), sizes, st.integers(0, 1), st.integers(0, 10**6)), max_size=60)


def overlap(blocks: list[Block]) -> bool:
    spans = sorted((b.address, b.address + b.size) for b in blocks)
    return any(left[1] > right[0] for left, right in pairwise(spans))


@settings(deadline=None)
@given(steps, st.booleans(), st.sampled_from([None, 40 * MIB, 200 * MIB]))
def test_laws(steps: list, expandable: bool, capacity: int | None) -> None:
    allocator = CachingAllocator(capacity, expandable)
    live: list[Block] = []
    for is_free, size, stream, pick in steps:
        if is_free and live:
            allocator.free(live.pop(pick % len(live)))
        elif (block := allocator.allocate(size, stream)) is not None:
            assert block.size >= size
            live.append(block)
        else:
            assert capacity is not None
        cached = [entry[2] for pool in allocator._pools.values() for entry in pool.free]
        assert not overlap(live + cached)
        assert allocator.allocated_bytes == sum(b.size for b in live)
        assert allocator.reserved_bytes == allocator.allocated_bytes + sum(b.size for b in cached)
        assert capacity is None or allocator.reserved_bytes <= capacity
        for pool in allocator._pools.values():
            assert pool.free == sorted(pool.free)
    for block in live:
        allocator.free(block)
    assert allocator.allocated_bytes == 0
    allocator.capacity_bytes = 2 * MIB
    assert allocator.allocate(8192 * MIB) is None
    assert allocator.reserved_bytes == 0, "with nothing allocated, all memory can be given back"


@settings(deadline=None)
@given(steps)
def test_expandable_segments_never_have_a_hole_that_a_page_could_fill_when_all_is_free(steps: list) -> None:
    allocator = CachingAllocator(None, True)
    live: list[Block] = []
    for is_free, size, stream, pick in steps:
        if is_free and live:
            allocator.free(live.pop(pick % len(live)))
        else:
            block = allocator.allocate(size, stream)
            assert block is not None
            live.append(block)
    for block in live:
        allocator.free(block)
    for pool in allocator._pools.values():
        assert len(pool.free) == 1, "all free memory of a pool is one block"
        assert pool.free[0][0] % pool.page_bytes == 0
