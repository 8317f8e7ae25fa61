"""What a batching policy sees and what it answers.

    plan(state) -> Plan          once before every step; the replica carries it out and prices the step

A policy keeps its own state (queues of its own, quanta) but changes nothing of the replica's. Order of a plan:
`preempt` and `swap_out` free blocks, `swap_in` takes them back, then `chunks` take theirs (a sequence that is not
running yet is admitted by its first chunk), then `decode`. A plan that needs more blocks than there are is a mistake of
the policy, and fails an assertion.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Listed
from dataclasses import dataclass, field
from typing import Protocol

from windtunnel.studies.serving.kv.pool import BlockPool
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.sequence import Sequence


@dataclass(slots=True)
class Plan:
    """One step."""

    chunks: list[tuple[Sequence, int]] = field(default_factory=list)  # prompt tokens to compute
    decode: list[Sequence] = field(default_factory=list)  # these get one more token
    preempt: list[Sequence] = field(default_factory=list)  # lose their blocks; recomputed when they come back
    swap_out: list[Sequence] = field(default_factory=list)  # blocks to host memory
    swap_in: list[Sequence] = field(default_factory=list)  # and back


class State(Protocol):
    """A replica between two steps. Policies read it."""

    rules: Rules
    pool: BlockPool
    host_pool: BlockPool  # its held blocks are those of the swapped
    waiting: deque[Sequence]  # in the order of arrival, preempted ones at the head
    steps: int  # decode steps so far

    @property
    def now_ns(self) -> int:
        """The clock."""

    @property
    def running(self) -> Listed[Sequence]:
        """Admitted and on the GPU, in the order of admission."""

    @property
    def swapped(self) -> Mapping[int, Sequence]:
        """Admitted, with their blocks in host memory, by index."""


class Batching(Protocol):
    """A policy."""

    def plan(self, state: State) -> Plan:
        """The next step. An empty plan means that nothing can run now."""
