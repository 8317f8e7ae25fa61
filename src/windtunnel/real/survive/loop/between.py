"""Communications between two calls of the step, done again when a rank dies.

A loop cannot be taken back to its last call. So once groups have new connections, each rank issues again whatever it
has communicated since that call, in the same order and with the same inputs; answers that it has had already are thrown
away. Whoever waited for one gets it then, and a replacement comes by the same places for the first time. When the next
call counts, all ranks have come past, and all is forgotten.

Each small answer goes on the tape of its rank: a replacement gets those of its predecessor between calls that it leaves
out, and keeps to what the predecessor was answered after the last one.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist

from windtunnel.real.survive.live.group import packed
from windtunnel.real.survive.loop.parts import mapped

KEPT_BYTES = 1 << 20  # of one answer
KEPT_IN_ALL_BYTES = 16 << 20  # of one rank
INPUT_BYTES = 64 << 20  # between two calls, to be given again


class ForwardingGroup(Protocol):
    """A group that passes calls on."""

    def passed_on(self, name: str, words: Sequence[object]) -> dist.Work:
        """The call to gloo. Raises RuntimeError where a member is gone."""


@dataclass
class Tape:
    """Small answers of the collectives of one rank, by part of its loop and in their order, in the launcher's store."""

    store: dist.Store
    prefix: str
    part: str = "before"
    number: int = 0
    kept_bytes: int = 0

    def begin(self, part: str) -> None:
        """What comes now belongs to another part of the loop."""
        self.part, self.number = part, 0

    def next_key(self) -> str:
        """Of one more call that has an answer."""
        self.number += 1
        return f"{self.prefix}/{self.part}/{self.number - 1}"

    def keep(self, key: str, tensors: Sequence[torch.Tensor]) -> None:
        """The answer of a call."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if size <= KEPT_BYTES and self.kept_bytes + size <= KEPT_IN_ALL_BYTES:
            self.kept_bytes += size
            self.store.set(key, packed([tensor.detach().clone() for tensor in tensors]))

    def fill(self, key: str, tensors: Sequence[torch.Tensor]) -> bool:
        """Put an answer into these tensors; False where it was not kept, or is of another call."""
        if not self.store.check([key]):
            return False
        answer = torch.load(io.BytesIO(self.store.get(key)), weights_only=True)
        if [tensor.shape for tensor in answer] != [tensor.shape for tensor in tensors]:
            return False
        for tensor, value in zip(tensors, answer, strict=True):
            tensor.detach().copy_(value)
        return True


class MessageWork(dist._Work):  # type: ignore[misc]
    """A message under way; `finish` waits for it and sees to what else there is to do."""

    def __init__(self, finish: Callable[[], None], is_there: Callable[[], bool]) -> None:
        super().__init__()
        self._finish, self._is_there = finish, is_there

    def wait(self, timeout: object = None) -> bool:
        """Until it has come."""
        self._finish()
        return True

    def is_completed(self) -> bool:
        """Whether it has."""
        return self._is_there()


class Communication:
    """One call of a group's method: its arguments, and its inputs as they were. `written`: which argument is."""

    def __init__(self, group: ForwardingGroup, name: str, words: Sequence[object], written: int | None, reads: bool):
        self.group, self.name, self.words, self.written, self.reads = group, name, words, written, reads
        self.inputs = [mapped(word, _shape if at == written and not reads else _copy) for at, word in enumerate(words)]
        self.work: dist.Work | None = None
        self.issued = self.awaited = self.over = False

    def issue(self) -> None:
        """Begin it: with its own arguments until it is over, then with others in their place."""
        if self.over:
            self.words = [mapped(word, _copy) for word in self.inputs]
        elif self.issued and self.reads and self.written is not None:  # the first attempt may have half written them
            both = zip(tensors(self.words[self.written]), tensors(self.inputs[self.written]), strict=True)
            with torch.no_grad():
                for tensor, original in both:
                    tensor.copy_(original)
        self.issued, self.awaited = True, False
        self.work = self.group.passed_on(self.name, self.words)

    def wait(self) -> None:
        """Until it is over."""
        if self.work is not None and not self.awaited:
            self.work.wait()
            self.awaited = True


class Between:
    """What this rank has communicated since the last call of the step.

    `is_lost(error)`: whether a member is gone; `recover()`: meet the others again; `give_up()`: all begin anew.
    """

    def __init__(
        self, is_lost: Callable[[BaseException], bool], recover: Callable[[], object], give_up: Callable[[], None]
    ) -> None:
        self.is_lost, self.recover, self.give_up = is_lost, recover, give_up
        self.since: list[Communication] = []
        self.input_bytes = 0
        self.is_open = False  # the script is between two calls; within one, the call is done again as a whole

    def clear(self) -> None:
        """A call counts."""
        self.since, self.input_bytes = [], 0

    def again(self) -> None:
        """There are new connections."""
        if self.input_bytes > INPUT_BYTES:
            self.give_up()
        for communication in self.since:
            communication.work = None

    def settle(self, awaited: Communication | None = None) -> None:
        """Issue what is to be issued; wait for what is done again and for `awaited`. RuntimeError: a member is gone."""
        for communication in self.since:
            if communication.work is None:
                communication.issue()
        for communication in self.since:
            if communication.over or communication is awaited:
                communication.wait()

    def call(
        self, group: ForwardingGroup, name: str, words: Sequence[object], written: int | None, reads: bool, tape: Tape
    ) -> dist.Work:
        """A call of a script between two of its steps."""
        communication = Communication(group, name, words, written, reads)
        answers = list(tensors(words[written])) if written is not None else []
        key = tape.next_key() if answers else ""
        self.since.append(communication)
        self.input_bytes += sum(tensor.nbytes for tensor in tensors(communication.inputs) if not tensor.is_meta)

        def finish() -> None:
            if communication.over:
                return
            self._carried(communication)
            communication.over, communication.words = True, ()
            if self.input_bytes > INPUT_BYTES:  # an evaluation with all its outputs: too much to do again
                self.since = [other for other in self.since if not other.over]
            if key and not tape.fill(key, answers):
                tape.keep(key, answers)

        if name.startswith("recv"):  # its peer may wait for what this rank sends next
            self._carried(None)
            return MessageWork(
                finish,
                lambda: (
                    communication.over or (communication.work is not None and bool(communication.work.is_completed()))
                ),
            )
        finish()
        return communication.work

    def _carried(self, awaited: Communication | None) -> None:
        while True:
            try:
                self.settle(awaited)
                return
            except RuntimeError as error:
                if not self.is_open or not self.is_lost(error):
                    raise
            self.recover()  # outside of the handler: a traceback would hold connections that others wait for


def tensors(words: object) -> Iterator[torch.Tensor]:
    """Those in an argument: itself, or in lists."""
    if isinstance(words, torch.Tensor):
        yield words
    elif isinstance(words, list | tuple):
        for word in words:
            yield from tensors(word)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor.detach().clone()


def _shape(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="meta")
