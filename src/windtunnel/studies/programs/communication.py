"""What one rank asks of its peers: one call of `torch.distributed`, whoever made it.

`bytes` counts what the collective is about, once:

    all_reduce, broadcast, reduce     the tensor
    all_gather, gather                the whole that is gathered: group size x own part
    reduce_scatter, scatter           the whole that is given away
    all_to_all                        everything that this rank sends, its own part included
    send, recv                        the message
    barrier                           0

A `pull` is no call of `torch.distributed`: every member copies so many bytes from another member's memory.
"""

from __future__ import annotations

from dataclasses import dataclass

COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter"),
    "barrier",
)
MESSAGES = ("send", "recv")
PULL = "pull"


@dataclass(frozen=True, slots=True)
class Communication:
    """One call, as the rank that makes it sees it."""

    kind: str  # of COLLECTIVES or MESSAGES, or PULL
    group: str  # torch's name of the process group: the same on all its members
    members: tuple[int, ...]  # global ranks of the group, in its order; one tuple per group, shared by all calls
    position: int  # of this rank in `members`
    bytes: int  # as the table above counts them
    dtype: str = ""  # "bfloat16"; "" where nothing is sent
    peer: int = -1  # global rank: of a message, or the root of a broadcast, reduce, gather or scatter
    tag: int = 0
    reduce_op: str = ""  # sum, avg, product, min, max, ...
    sent_bytes: tuple[int, ...] = ()  # all_to_all with uneven splits: to each member; else ()
    received_bytes: tuple[int, ...] = ()
    is_async: bool = False
    sequence: int = 0  # of this group's calls of this kind class (collective, or message to that peer), on this rank
    is_control: bool = False  # small CPU tensors and pickled objects: shapes, votes, seeds
    batch: int = 0  # calls issued as one (batch_isend_irecv, a coalescing manager) have the same number > 0

    @property
    def is_message(self) -> bool:
        """Whether it has one peer."""
        return self.kind in MESSAGES
