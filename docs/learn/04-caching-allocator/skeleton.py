"""Lab 4: PyTorch's CUDA caching allocator. Fill in the methods; README.md explains the rules.

Sizes and addresses are whole bytes. One stream, ordinary segments (no `expandable_segments`).
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20


@dataclass(eq=False)
class Block:
    """A piece of a segment."""

    segment: int  # number of the segment, in the order of reservation
    address: int  # of its first byte; a later segment lies above all earlier ones
    size: int
    is_small: bool  # belongs to the small pool
    is_free: bool = True


def rounded(size_bytes: int) -> int:
    """A request's size, rounded up to 512 B."""
    raise NotImplementedError


def segment_size(size: int) -> int:
    """How much is reserved of the driver for a rounded request that no free block can serve."""
    raise NotImplementedError


class CachingAllocator:
    """The allocator of one device. `capacity_bytes`: how much it may reserve; None is without limit."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.allocated_bytes = 0  # in blocks that are in use, their unsplit rests included
        self.reserved_bytes = 0  # in segments
        # what else you need, e.g. the list of all blocks in the order of their addresses

    def allocate(self, size_bytes: int) -> Block | None:
        """A block of at least `size_bytes` > 0, or None: out of memory, even after free segments were given back."""
        raise NotImplementedError

    def free(self, block: Block) -> None:
        """Take a block back and merge it with its free neighbours. The segment stays reserved."""
        raise NotImplementedError
