"""One communication thread per rank: an all-to-all goes before pieces of gradients' all-reduce.

Collectives must be issued in the same order on all ranks, or they deadlock: in an order given beforehand (`static`;
what it does not list goes last), as rank 0 decides in a broadcast for each slot (`leader`), or the first until
all-to-alls wait longer than predicted (`adaptive`). What has begun is not taken off: two pieces' size bounds how long
an all-to-all waits. What a collective raises is raised by `wait` of every operation that is left, and by `close`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

import torch
import torch.distributed as dist

from windtunnel.errors import SpecError

Policy = Literal["static", "leader", "adaptive"]
ALL_TO_ALL, ALL_REDUCE, SWITCH, END = 1, 2, 3, 0
KEPT = 10_000
IN_FLIGHT = 2  # pieces of all-reduces
LETTERS = {"a": ALL_TO_ALL, "r": ALL_REDUCE}


class Operation:
    """Something that was handed to the communicator."""

    failure: BaseException | None

    def __init__(self, run: Callable[[], object], parts: int = 1) -> None:
        self.run, self._left = run, parts
        self._done, self.failure = threading.Event(), None
        self._lock, self._then = threading.Lock(), list[Callable[[Operation], None]]()
        self.asked_s = time.perf_counter()

    def finish(self, failure: BaseException | None = None) -> None:
        """One part more is done; or, with a failure, all of it is over."""
        if failure is not None:
            self.failure = failure
        self._left -= 1
        if self._left <= 0 or failure is not None:
            with self._lock:
                self._done.set()
                waiting, self._then = self._then, []
            for then in waiting:
                then(self)

    def then(self, do: Callable[[Operation], None]) -> None:
        """Once it is over, well or not; at once where it is."""
        with self._lock:
            if not self._done.is_set():
                self._then.append(do)
                return
        do(self)

    def wait(self, timeout_s: float | None = None) -> None:
        """Until it is done. Raises RuntimeError where its collective failed, TimeoutError after `timeout_s`."""
        if not self._done.wait(timeout_s):
            raise TimeoutError(f"a collective has not ended in {timeout_s} s")
        if self.failure is not None:
            raise RuntimeError("a collective failed on the communication thread") from self.failure


class Communicator:
    """Takes operations and executes them in an order that is the same on all ranks.

    `order`: for the static policies, letters a and r. `micro_op_bytes`: an all-reduce is cut into pieces of so many.
    `wait_most_s`: of the adaptive policy, how long an all-to-all may wait. All ranks of `group` make one, alike; that
    makes three process groups, unless `groups` has them from before: for all-to-alls, all-reduces and decisions (gloo).
    """

    def __init__(
        self, policy: Policy = "leader", *, order: Sequence[str] | str = "", micro_op_bytes: int = 30_000_000,
        wait_most_s: float = 0.01, group: dist.ProcessGroup | None = None,
        groups: Sequence[dist.ProcessGroup] | None = None, timeout_s: float = 600.0,
    ) -> None:  # fmt: skip
        if policy not in ("static", "leader", "adaptive"):
            raise SpecError("policy", policy, "give static, leader or adaptive")
        wrong = sorted(set(order) - set(LETTERS))
        if wrong:
            raise SpecError("order", wrong[0], "write a for an all-to-all, r for a piece of an all-reduce")
        if policy != "leader" and not order:
            raise SpecError("order", "", f"policy {policy} needs one; the leader's needs none")
        if micro_op_bytes < 1:
            raise SpecError("micro_op_bytes", micro_op_bytes, "give the bytes of a piece")
        ranks = None if group is None else dist.get_process_group_ranks(group)
        self.policy, self.micro_op_bytes, self.wait_most_s = policy, micro_op_bytes, wait_most_s
        self.timeout_s = timeout_s
        # A group each: on one, the transfers of two kinds would queue behind each other in the backend.
        exchange, reduce, self._control = groups or (
            dist.new_group(ranks), dist.new_group(ranks), dist.new_group(ranks, backend="gloo")
        )  # fmt: skip
        self._groups = {ALL_TO_ALL: exchange, ALL_REDUCE: reduce}
        self._leads = dist.get_rank(self._control) == 0
        self._leader = dist.get_global_rank(self._control, 0)
        self._queues: dict[int, deque[Operation]] = {ALL_TO_ALL: deque(), ALL_REDUCE: deque()}
        self._order = deque(LETTERS[letter] for letter in order)
        self._static = policy != "leader"
        self._changed, self._closing = threading.Condition(), False
        self._failure: BaseException | None = None
        self.executed: deque[str] = deque(maxlen=KEPT)  # the newest letters, as they ran: the same on every rank
        self._thread = threading.Thread(target=self._run, daemon=True, name="communicator")
        self._thread.start()

    def all_to_all(
        self, output: torch.Tensor, source: torch.Tensor, output_splits: list[int] | None = None,
        input_splits: list[int] | None = None,
    ) -> Operation:  # fmt: skip
        """`all_to_all_single`, as soon as the link is free."""

        def run() -> None:
            dist.all_to_all_single(output, source, output_splits, input_splits, group=self._groups[ALL_TO_ALL])

        return self._hand(ALL_TO_ALL, Operation(run), [run])

    def all_reduce(self, tensor: torch.Tensor) -> Operation:
        """A sum in place, piece by piece in the gaps. The tensor must be contiguous."""
        if not tensor.is_contiguous():
            raise SpecError("tensor", tuple(tensor.shape), "an all-reduce in pieces takes a contiguous tensor")
        elements = max(1, self.micro_op_bytes // tensor.element_size())
        pieces = tensor.view(-1).split(elements)
        runs: list[Callable[[], object]] = [
            lambda piece=piece: dist.all_reduce(piece, group=self._groups[ALL_REDUCE], async_op=True)  # type: ignore[misc]
            for piece in pieces
        ]
        return self._hand(ALL_REDUCE, Operation(lambda: None, len(runs)), runs)

    def close(self) -> None:
        """Execute what is left, then end; to be called by all ranks. Raises RuntimeError where a collective failed."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(self.timeout_s)
        if self._failure is not None:
            raise RuntimeError("a collective failed on the communication thread") from self._failure

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if kind is None:
            self.close()

    def _hand(self, kind: int, operation: Operation, runs: list[Callable[[], object]]) -> Operation:
        with self._changed:
            if self._closing:
                raise RuntimeError("the communicator is closed")
            if self._failure is not None:
                operation.finish(self._failure)
                return operation
            for run in runs:
                part = Operation(run)
                part.finish = operation.finish  # type: ignore[method-assign]
                self._queues[kind].append(part)
            self._changed.notify_all()
        return operation

    def _run(self) -> None:
        flying: deque[tuple[Operation, object]] = deque()
        try:
            while (kind := self._next_after_flight(flying)) != END:
                with self._changed:
                    ready = bool(self._queues[kind])
                if not ready or kind == ALL_TO_ALL:
                    self._land(flying, 0)
                with self._changed:  # another rank may have decided before this one got so far
                    self._changed.wait_for(lambda kind=kind: self._queues[kind])  # type: ignore[misc]
                    part = self._queues[kind].popleft()
                flying.append((part, part.run()))
                self.executed.append("a" if kind == ALL_TO_ALL else "r")
                # A second piece is on its way while the first one's end is noted, so the link is never idle between.
                self._land(flying, 0 if kind == ALL_TO_ALL else IN_FLIGHT - 1)
            self._land(flying, 0)
        except BaseException as failure:  # handed to whoever waits, on the threads that can do something about it
            with self._changed:
                self._failure = failure
                waiting = [operation for queue in self._queues.values() for operation in queue] + [
                    operation for operation, _ in flying
                ]
                for queue in self._queues.values():
                    queue.clear()
            for operation in (*waiting, *([part] if "part" in locals() else [])):
                operation.finish(failure)

    def _next_after_flight(self, flying: deque[tuple[Operation, object]]) -> int:
        """What goes next; what flies has landed before there is anything to wait for."""
        with self._changed:
            idle = not any(self._queues.values())
        if idle:
            self._land(flying, 0)
        return self._next()

    def _land(self, flying: deque[tuple[Operation, dist.Work]], most: int) -> None:
        """Wait until no more than `most` collectives are in flight."""
        while len(flying) > most:
            part, work = flying[0]
            if work is not None:
                work.wait()
            flying.popleft()
            part.finish()

    def _next(self) -> int:
        if self._static and self._order:
            if self.policy == "adaptive" and self._agreed_slot(self._late()) == SWITCH:
                self._static = False
            else:
                return self._order.popleft()
        return self._agreed_slot(self._decide) if self._leads else self._agreed_slot(None)

    def _late(self) -> Callable[[], int]:
        """Whether rank 0's oldest all-to-all has waited too long."""

        def late() -> int:
            with self._changed:
                waiting = self._queues[ALL_TO_ALL]
                over = bool(waiting) and time.perf_counter() - waiting[0].asked_s > self.wait_most_s
            return SWITCH if over else ALL_REDUCE

        return late

    def _decide(self) -> int:
        with self._changed:
            queues = self._queues
            self._changed.wait_for(lambda: queues[ALL_TO_ALL] or queues[ALL_REDUCE] or self._closing)
            return ALL_TO_ALL if queues[ALL_TO_ALL] else ALL_REDUCE if queues[ALL_REDUCE] else END

    def _agreed_slot(self, decide: Callable[[], int] | None) -> int:
        """Rank 0's decision, on every rank."""
        slot = torch.zeros(1, dtype=torch.int32)
        if self._leads and decide is not None:
            slot[0] = decide()
        dist.broadcast(slot, self._leader, group=self._control)
        return int(slot)
