"""What PyTorch's CUDA caching allocator makes of allocations and frees: reserved memory, and when it runs out.

Rules (c10/cuda/CUDACachingAllocator.cpp and "CUDA semantics - Memory management" in PyTorch's documentation):

- A request is rounded up to 512 B. Up to 1 MiB it is served from the small pool, else from the large one; each stream
  has its own pools.
- The smallest free block that is large enough is taken, the lowest address first. It is split when what remains is at
  least 512 B (small pool, or expandable segments) or more than 1 MiB (large pool). An unsplit rest counts as allocated.
- Without such a block a segment is reserved: 2 MiB (small pool), 20 MiB (requests under 10 MiB), else rounded to 2 MiB.
- A freed block merges with free neighbours and stays reserved.
- If a segment does not fit, all wholly free segments go back to the driver and the reservation is tried again.
- Expandable segments: one growing segment for each pool, mapped in pages of 2 MiB (small) or 20 MiB (large); a request
  may use a free block and unmapped pages behind it together; on memory pressure wholly free pages are unmapped.
- `max_split_size_mb`: blocks from that size on are not split, serve no smaller request, and requests from that size on
  only with less than 20 MiB to spare.

Assumed: no rounding up to powers of two, no garbage-collection threshold, no private pools of CUDA graphs, and a freed
block is usable again at once (no `record_stream`). Pages and segments never fragment the driver's own memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIB = 1 << 20
BLOCK_BYTES = 512
SMALL_REQUEST_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
LARGE_SEGMENT_BYTES = 20 * MIB
OWN_SEGMENT_BYTES = 10 * MIB  # requests from here on get a segment of their own size ...
OWN_SEGMENT_ROUNDING_BYTES = 2 * MIB  # ... rounded up to this
_SPACE_BYTES = LARGE_SEGMENT_BYTES << 34  # address space of an expandable segment: whole pages, never runs out


class Block:
    """A piece of a segment: free, allocated, or (expandable segments only) address space without memory."""

    __slots__ = ("address", "following", "is_free", "is_mapped", "pool", "previous", "size")

    def __init__(self, pool: _Pool, address: int, size: int, is_mapped: bool = True) -> None:
        self.pool, self.address, self.size = pool, address, size
        self.is_free, self.is_mapped = True, is_mapped
        self.previous: Block | None = None
        self.following: Block | None = None


class _Pool:
    """The free blocks of one stream and size class, ordered by (size, address)."""

    __slots__ = ("free", "is_small", "page_bytes", "space")

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.page_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        self.free: list[tuple[int, int, Block]] = []
        self.space: Block | None = None  # the first block of the expandable segment

    def add_block(self, block: Block) -> None:
        insort(self.free, (block.size, block.address, block))

    def take(self, block: Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]


class CachingAllocator:
    """The allocator's state. `allocate` and `free` are its only transitions."""

    def __init__(
        self,
        capacity_bytes: int | None = None,
        expandable_segments: bool = False,
        max_split_bytes: int | None = None,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.expandable_segments = expandable_segments
        self.max_split_bytes = math.inf if max_split_bytes is None else max_split_bytes
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.retries = 0  # times that cached memory had to be given back to the driver
        self._pools: dict[tuple[int, bool], _Pool] = {}
        self._next_address = 0

    def allocate(self, size_bytes: int, stream: int = 0) -> Block | None:
        """A block of at least `size_bytes` > 0, or None when memory is short even after cached memory was released."""
        size = -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES
        is_small = size <= SMALL_REQUEST_BYTES
        pool = self._pools.get((stream, is_small))
        if pool is None:
            pool = self._pools[stream, is_small] = _Pool(is_small)
        block = self._best_fit(pool, size) or self._reserve(pool, size)
        if block is None:
            self.retries += 1
            self._release_cached()
            block = self._reserve(pool, size)
            if block is None:
                return None
        if self._splits(pool, size, block.size - size):
            pool.add_block(_cut(block, size))
        block.is_free = False
        self.allocated_bytes += block.size
        return block

    def _splits(self, pool: _Pool, size: int, rest: int) -> bool:
        if pool.is_small or self.expandable_segments:
            return rest >= BLOCK_BYTES
        return size < self.max_split_bytes and rest > SMALL_REQUEST_BYTES

    def free(self, block: Block) -> None:
        """Return a block to its pool, merged with its free neighbours. It must not be used afterwards."""
        assert not block.is_free, "a block is freed twice"
        self.allocated_bytes -= block.size
        block.is_free = True
        _merged(block, block.pool)

    def _best_fit(self, pool: _Pool, size: int) -> Block | None:
        free = pool.free
        at = bisect_left(free, (size, 0))
        if at == len(free):
            return None
        if self.expandable_segments:
            # The block before unmapped space counts as large as it could grow, to keep it for what fits nowhere else.
            while at + 1 < len(free) and _growable(free[at + 1][2]) < _growable(free[at][2]):
                at += 1
        most = self.max_split_bytes
        if (size < most <= free[at][0]) or (size >= most and free[at][0] >= size + LARGE_SEGMENT_BYTES):
            return None
        return free.pop(at)[2]

    def _reserve(self, pool: _Pool, size: int) -> Block | None:
        """A free block outside the pool's list, in newly reserved memory."""
        if self.expandable_segments:
            return self._expand(pool, size)
        if size <= SMALL_REQUEST_BYTES:
            segment = SMALL_SEGMENT_BYTES
        elif size < OWN_SEGMENT_BYTES:
            segment = LARGE_SEGMENT_BYTES
        else:
            segment = -(-size // OWN_SEGMENT_ROUNDING_BYTES) * OWN_SEGMENT_ROUNDING_BYTES
        if not self._fits(segment):
            return None
        self.reserved_bytes += segment
        block = Block(pool, self._next_address, segment)
        self._next_address += segment
        return block

    def _fits(self, more_bytes: int) -> bool:
        return self.capacity_bytes is None or self.reserved_bytes + more_bytes <= self.capacity_bytes

    def _expand(self, pool: _Pool, size: int) -> Block | None:
        """Map pages at the lowest address where free and unmapped space together hold `size`."""
        if pool.space is None:
            pool.space = Block(pool, len(self._pools) * _SPACE_BYTES, _SPACE_BYTES, is_mapped=False)
        block: Block | None = pool.space
        room, first = 0, None
        while block is not None and room < size:
            if block.is_free:
                first = first or block
                room += block.size
            else:
                room, first = 0, None
            block = block.following
        assert first is not None, "address space ran out"
        if first.is_mapped:
            pool.take(first)
        else:
            mapped = self._map(first, size)
            if mapped is None:
                return None
            first = mapped
        while first.size < size:
            assert first.following is not None
            more = self._map(first.following, size - first.size)
            if more is None:
                pool.add_block(first)
                return None
            first = more
        return first

    def _map(self, block: Block, size: int) -> Block | None:
        """Give memory to the first `size` bytes (whole pages) of an unmapped block; the free block that holds them."""
        pool = block.pool
        pages = min(-(-size // pool.page_bytes) * pool.page_bytes, block.size)
        if not self._fits(pages):
            return None
        self.reserved_bytes += pages
        if pages < block.size:
            _cut(block, pages)
        block.is_mapped = True
        previous, following = block.previous, block.following
        if previous is not None and previous.is_free and previous.is_mapped:
            # The caller holds the free block just before, outside of the pool.
            block = _join(previous, block)
        if following is not None and following.is_free and following.is_mapped:
            pool.take(following)
            block = _join(block, following)
        return block

    def _release_cached(self) -> None:
        """Give wholly free segments, or wholly free pages of expandable ones, back to the driver."""
        for pool in self._pools.values():
            for entry in list(pool.free):
                block = entry[2]
                if self.expandable_segments:
                    self._unmap(block)
                elif block.previous is None and block.following is None:
                    pool.take(block)
                    self.reserved_bytes -= block.size

    def _unmap(self, block: Block) -> None:
        pool = block.pool
        first = -(-block.address // pool.page_bytes) * pool.page_bytes
        end = (block.address + block.size) // pool.page_bytes * pool.page_bytes
        if end <= first:
            return
        pool.take(block)
        if first > block.address:
            inner = _cut(block, first - block.address)
            pool.add_block(block)
            block = inner
        if end < block.address + block.size:
            pool.add_block(_cut(block, end - first))
        self.reserved_bytes -= block.size
        block.is_mapped = False
        for neighbour in (block.previous, block.following):
            if neighbour is not None and neighbour.is_free and not neighbour.is_mapped:
                first_of_two = neighbour if neighbour is block.previous else block
                block = _join(first_of_two, block if first_of_two is neighbour else neighbour)


def _growable(block: Block) -> int:
    after = block.following
    return block.size + (after.size if after is not None and not after.is_mapped else 0)


def _cut(block: Block, size: int) -> Block:
    """Shorten `block` to `size` and return the rest, linked behind it and in the same state."""
    rest = Block(block.pool, block.address + size, block.size - size, block.is_mapped)
    rest.previous, rest.following = block, block.following
    if block.following is not None:
        block.following.previous = rest
    block.following = rest
    block.size = size
    return rest


def _join(first: Block, second: Block) -> Block:
    """One block for two neighbours. `first` survives, so the head of a segment keeps its identity."""
    first.size += second.size
    first.following = second.following
    if second.following is not None:
        second.following.previous = first
    return first


def _merged(block: Block, pool: _Pool) -> None:
    """Join a free block with its free, mapped neighbours and put the whole into the pool."""
    following, previous = block.following, block.previous
    if following is not None and following.is_free and following.is_mapped:
        pool.take(following)
        _join(block, following)
    if previous is not None and previous.is_free and previous.is_mapped:
        pool.take(previous)
        block = _join(previous, block)
    pool.add_block(block)


@dataclass(frozen=True, eq=False)
class AllocatorResult:
    """What the allocator did. The arrays hold one entry for each event that succeeded."""

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    oom_event: int | None  # index of the allocation that failed; the replay stops there
    retries: int
    allocated_bytes: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]


def replay_allocator(
    block_id: NDArray[np.integer],
    delta_bytes: NDArray[np.integer],
    *,
    stream: NDArray[np.integer] | None = None,
    capacity_bytes: int | None = None,
    expandable_segments: bool = False,
    max_split_bytes: int | None = None,
) -> AllocatorResult:
    """Replay events in host order: delta_bytes > 0 allocates that much under `block_id`, < 0 frees it, 0 is skipped.

    `stream`: of each allocation (default: all on one). `capacity_bytes`: what the allocator may reserve, that is the
    device's memory less context and libraries; None is unlimited. About 2 us an event.
    """
    assert len(block_id) == len(delta_bytes)
    assert stream is None or len(stream) == len(block_id)
    allocator = CachingAllocator(capacity_bytes, expandable_segments, max_split_bytes)
    live: dict[int, Block] = {}
    allocated: list[int] = []
    reserved: list[int] = []
    oom_event = None
    streams: Iterable[int] = [0] * len(block_id) if stream is None else stream.tolist()
    for event, (key, delta, queue) in enumerate(zip(block_id.tolist(), delta_bytes.tolist(), streams, strict=True)):
        if delta > 0:
            assert key not in live, f"event {event} allocates block {key} twice"
            block = allocator.allocate(delta, queue)
            if block is None:
                oom_event = event
                break
            live[key] = block
        elif delta < 0:
            assert key in live, f"event {event} frees block {key}, which is not allocated"
            allocator.free(live.pop(key))
        allocated.append(allocator.allocated_bytes)
        reserved.append(allocator.reserved_bytes)
    allocated_bytes, reserved_bytes = np.array(allocated, dtype=np.int64), np.array(reserved, dtype=np.int64)
    return AllocatorResult(
        peak_allocated_bytes=max(allocated, default=0),
        peak_reserved_bytes=max(reserved, default=0),
        oom_event=oom_event,
        retries=allocator.retries,
        allocated_bytes=allocated_bytes,
        reserved_bytes=reserved_bytes,
    )
