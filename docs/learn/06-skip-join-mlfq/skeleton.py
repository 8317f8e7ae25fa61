"""Lab 6: the skip-join multi-level feedback queue of FastServe. Fill in the methods; README.md explains the rules.

Times are whole nanoseconds. Level 0 is the queue that is served first. The engine calls, in each round:

    give_back(those that ran)    join(new requests)    sometimes promote    choose
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(eq=False)
class Request:
    """A request, as the scheduler sees it."""

    index: int
    used_ns: int = 0  # time of all steps in which it ran; the engine counts it
    is_done: bool = False  # its last token is out; the engine sets it
    level: int = -1  # of the queue that it is in, or came from while it runs
    used_before_ns: int = 0  # `used_ns` when it entered that level
    ran_ns: int = 0  # clock when it last began to run; when it joined, if it never has


class SkipJoin:
    """Queues of requests. What the length of an answer will be is not known."""

    def __init__(self, first_quantum_ns: int, levels: int, batch: int) -> None:
        self.first_quantum_ns = first_quantum_ns
        self.batch = batch
        self.queues: list[deque[Request]] = [deque() for _ in range(levels)]

    def quantum_ns(self, level: int) -> int:
        """How long a request may run in a level before it goes down: each twice the one above."""
        raise NotImplementedError

    def join(self, request: Request, prefill_ns: int, now_ns: int) -> None:
        """A new request enters at the tail of the first level whose quantum covers its prefill, else of the last."""
        raise NotImplementedError

    def choose(self, now_ns: int) -> list[Request]:
        """Take the next `batch` requests out of the queues: highest level first, in each level from the head."""
        raise NotImplementedError

    def give_back(self, chosen: Sequence[Request]) -> None:
        """After a step: those that ran, in the order of `choose`, are filed again, the last of them first.

        One that is done leaves. One that has used its quantum goes to the tail of the level below, if there is one.
        Any other goes back to the head of its level.
        """
        raise NotImplementedError

    def promote(self, now_ns: int, longest_wait_ns: int) -> None:
        """Requests that have not run for more than `longest_wait_ns` go to the tail of level 0, with a fresh quantum.

        Levels are looked at from 1 down, each from its head.
        """
        raise NotImplementedError
