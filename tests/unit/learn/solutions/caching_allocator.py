"""Lab 4, solved: one list of all blocks in the order of their addresses, searched from end to end."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20
UNIT = 512


@dataclass(eq=False)
class Block:
    """A piece of a segment."""

    segment: int
    address: int
    size: int
    is_small: bool
    is_free: bool = True


def rounded(size_bytes: int) -> int:
    """Up to 512 B."""
    return -(-size_bytes // UNIT) * UNIT


def segment_size(size: int) -> int:
    """What is reserved for a rounded request."""
    if size <= MIB:
        return 2 * MIB
    if size < 10 * MIB:
        return 20 * MIB
    return -(-size // (2 * MIB)) * 2 * MIB


class CachingAllocator:
    """The allocator of one device."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self._blocks: list[Block] = []
        self._segments = 0
        self._next_address = 0

    def allocate(self, size_bytes: int) -> Block | None:
        """Best fit, then a new segment, then a new segment after free ones were given back."""
        size = rounded(size_bytes)
        block = self._best_fit(size) or self._reserve(size)
        if block is None:
            self._release()
            block = self._reserve(size)
            if block is None:
                return None
        rest = block.size - size
        if rest >= UNIT if block.is_small else rest > MIB:
            behind = Block(block.segment, block.address + size, rest, block.is_small)
            self._blocks.insert(self._blocks.index(block) + 1, behind)
            block.size = size
        block.is_free = False
        self.allocated_bytes += block.size
        return block

    def free(self, block: Block) -> None:
        """Merge with the neighbours."""
        self.allocated_bytes -= block.size
        block.is_free = True
        place = self._blocks.index(block)
        for first in (place, place - 1):
            if 0 <= first < len(self._blocks) - 1:
                left, right = self._blocks[first], self._blocks[first + 1]
                if left.is_free and right.is_free and left.segment == right.segment:
                    left.size += right.size
                    del self._blocks[first + 1]

    def _best_fit(self, size: int) -> Block | None:
        fits = [
            block for block in self._blocks if block.is_free and block.is_small == (size <= MIB) and block.size >= size
        ]
        return min(fits, key=lambda one: (one.size, one.address), default=None)

    def _reserve(self, size: int) -> Block | None:
        segment = segment_size(size)
        if self.capacity_bytes is not None and self.reserved_bytes + segment > self.capacity_bytes:
            return None
        self.reserved_bytes += segment
        block = Block(self._segments, self._next_address, segment, size <= MIB)
        self._segments += 1
        self._next_address += segment
        self._blocks.append(block)
        return block

    def _release(self) -> None:
        counts: dict[int, int] = {}
        for block in self._blocks:
            counts[block.segment] = counts.get(block.segment, 0) + 1
        for block in [one for one in self._blocks if one.is_free and counts[one.segment] == 1]:
            self._blocks.remove(block)
            self.reserved_bytes -= block.size
