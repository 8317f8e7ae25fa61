"""Grades lab 4: laws, the worked example, then windtunnel's own allocator."""

from __future__ import annotations

from itertools import pairwise
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from windtunnel.physics.graph.allocator import CachingAllocator

KIB, MIB = 1 << 10, 1 << 20


def requests(seed: int, n: int = 250) -> list[tuple[str, int]]:
    """Allocations of sizes of all kinds, and frees of blocks by their place among those in use."""
    rng = np.random.default_rng(seed)
    events: list[tuple[str, int]] = []
    live = 0
    for _ in range(n):
        if live and rng.random() < 0.47:
            events.append(("free", int(rng.integers(live))))
            live -= 1
        else:
            largest = int(rng.choice([4 * KIB, MIB, 2 * MIB, 12 * MIB, 60 * MIB]))
            events.append(("allocate", int(rng.integers(1, largest))))
            live += 1
    return events


def played(allocator: Any, events: list[tuple[str, int]]) -> list[tuple[int, int]]:
    """Allocated and reserved bytes after each event, up to the first that found no memory."""
    live: list[Any] = []
    seen = []
    for what, value in events:
        if what == "free":
            allocator.free(live.pop(value))
        else:
            block = allocator.allocate(value)
            if block is None:
                break
            live.append(block)
        seen.append((allocator.allocated_bytes, allocator.reserved_bytes))
    return seen


# ------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("seed", range(4))
def test_blocks_in_use_never_overlap_and_are_large_enough(lab: ModuleType, seed: int) -> None:
    allocator = lab.CachingAllocator()
    live: list[Any] = []
    for what, value in requests(seed):
        if what == "free":
            allocator.free(live.pop(value))
        else:
            live.append(allocator.allocate(value))
            assert live[-1].size >= value
        spans = sorted((one.address, one.address + one.size) for one in live)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert allocator.allocated_bytes == sum(one.size for one in live) <= allocator.reserved_bytes


@pytest.mark.parametrize("seed", range(4))
def test_after_all_is_freed_the_same_requests_reserve_nothing_more(lab: ModuleType, seed: int) -> None:
    """Neighbours merge: no segment stays cut."""
    allocator = lab.CachingAllocator()
    sizes = [value for what, value in requests(seed) if what == "allocate"]
    for one in [allocator.allocate(size) for size in sizes]:
        allocator.free(one)
    assert allocator.allocated_bytes == 0
    reserved = allocator.reserved_bytes
    for size in sorted(sizes, reverse=True)[:40]:  # the largest find the segments that were made for them
        allocator.allocate(size)
    assert allocator.reserved_bytes == reserved > 0


def test_reserved_memory_never_passes_the_capacity(lab: ModuleType) -> None:
    allocator = lab.CachingAllocator(100 * MIB)
    seen = played(allocator, [("allocate", 9 * MIB)] * 40)
    assert len(seen) == 10  # two in each of five segments of 20 MiB
    assert seen[-1] == (90 * MIB, 100 * MIB)


def test_a_rest_of_a_mebibyte_is_not_cut_off(lab: ModuleType) -> None:
    """The first request leaves 10.5 MiB; the second takes all of it, for 1 MiB would be left."""
    seen = played(lab.CachingAllocator(), [("allocate", 19 * MIB // 2)] * 2)
    assert [one for one, _ in seen] == [19 * MIB // 2, 20 * MIB]


def test_free_segments_are_given_back_before_memory_is_out(lab: ModuleType) -> None:
    allocator = lab.CachingAllocator(64 * MIB)
    block = allocator.allocate(40 * MIB)
    allocator.free(block)
    assert allocator.reserved_bytes == 40 * MIB
    assert allocator.allocate(50 * MIB) is not None
    assert allocator.reserved_bytes == 50 * MIB
    assert allocator.allocate(20 * MIB) is None


def test_free_segments_are_given_back_even_if_that_is_not_enough(lab: ModuleType) -> None:
    allocator = lab.CachingAllocator(64 * MIB)
    allocator.free(allocator.allocate(40 * MIB))
    assert allocator.allocate(100 * MIB) is None
    assert allocator.reserved_bytes == 0


def test_of_equal_blocks_the_lowest_address_is_taken(lab: ModuleType) -> None:
    allocator = lab.CachingAllocator()
    blocks = [allocator.allocate(12 * MIB) for _ in range(3)]
    addresses = [one.address for one in blocks]
    for place in (1, 0, 2):
        allocator.free(blocks[place])
    assert [allocator.allocate(12 * MIB).address for _ in range(3)] == addresses


# --------------------------------------------------------------------------------------------------- worked example


def test_sizes_of_the_page(lab: ModuleType) -> None:
    assert [lab.rounded(size) for size in (1, 512, 513, MIB)] == [512, 512, 1024, MIB]
    sizes = (512, MIB, MIB + 512, 10 * MIB - 512, 10 * MIB, 11 * MIB, 37 * MIB + 512)
    assert [lab.segment_size(size) // MIB for size in sizes] == [2, 2, 20, 20, 10, 12, 38]


def test_the_example_of_the_page(lab: ModuleType) -> None:
    allocator = lab.CachingAllocator()
    events = [("allocate", 1000), ("allocate", 3 * MIB), ("allocate", 18 * MIB), ("free", 2)]
    events += [("allocate", 35 * MIB // 2), ("free", 1), ("allocate", 19 * MIB)]
    seen = played(allocator, events)
    assert [reserved // MIB for _, reserved in seen] == [2, 22, 40, 40, 40, 40, 40]
    assert [(allocated - 1024) // MIB for allocated, _ in seen] == [0, 3, 21, 3, 21, 18, 38]


# ------------------------------------------------------------------------------------------- windtunnel as the oracle


@pytest.mark.parametrize("capacity_bytes", [None, 400 * MIB, 150 * MIB])
@pytest.mark.parametrize("seed", range(4))
def test_every_event_leaves_what_windtunnels_allocator_has(
    lab: ModuleType, seed: int, capacity_bytes: int | None
) -> None:
    events = requests(seed)
    theirs = played(CachingAllocator(capacity_bytes), events)
    assert len(theirs) > 10
    mine = played(lab.CachingAllocator(capacity_bytes), events)
    for place, (event, here, there) in enumerate(zip(events, mine, theirs, strict=False)):
        assert here == there, f"(allocated, reserved) bytes after event {place}, {event}"
    assert len(mine) == len(theirs), "memory was out at another event"
