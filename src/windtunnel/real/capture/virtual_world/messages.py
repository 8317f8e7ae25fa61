"""Messages whose data matters: control tensors and pickled objects, through the mailbox; and what a rank sends to
itself.

Keys name the group, sender, receiver, what kind of thing it is and its number among its like:
`1f2e3d4c.0/3>7/tag 0/12`, `1f2e3d4c.0/0>0/broadcast/4`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.virtual_world.groups import Group
from windtunnel.real.capture.virtual_world.protocol import AnsweringWorld, Mailbox
from windtunnel.real.capture.virtual_world.refusals import NoPeerError, WorldError

if TYPE_CHECKING:
    import torch

    from windtunnel.real.capture.virtual_world.peer_data import Exchange
    from windtunnel.studies.programs.communication import Communication

CONTROL_ELEMENTS = 256  # a control tensor has at most so many
_UNKNOWN = b"?"  # the sender's tensor has no data (fake tensors) and nobody knows what it would hold
_POLL_S = 0.05  # for each possible sender in turn, of a receive from any source


class Messages:
    """The mail of one rank."""

    def __init__(
        self,
        world: AnsweringWorld,
        mailbox: Mailbox | None,
        timeout_s: float,
        beside: Collection[int] = (),
    ) -> None:
        self._world, self._mailbox, self._timeout_s = world, mailbox, timeout_s
        self._run = frozenset(beside)
        self._numbers: dict[str, int] = {}
        # what was sent and not yet received, or the other way round
        self._to_self: dict[tuple[str, int], deque[Any]] = {}
        self.last_source = -1

    @property
    def is_open(self) -> bool:
        """Whether there is a mailbox, and so a message from or to another rank can arrive."""
        return self._mailbox is not None

    def named_among(self, ranks: Sequence[int]) -> list[int]:
        """Those of the ranks that are known to run, without this one."""
        if self._mailbox is None:
            return []
        return [rank for rank in sorted(self._run.intersection(ranks)) if rank != self._world.rank]

    # --------------------------------------------------------------------------------------------------------- bytes

    def key(self, group: Group, sender: int, receiver: int, what: str) -> str:
        """The next key of its kind: both ends count."""
        path = f"{group.key}/{sender}>{receiver}/{what}"
        number = self._numbers.get(path, 0)
        self._numbers[path] = number + 1
        return f"{path}/{number}"

    def post(self, key: str, data: bytes) -> None:
        """Leave a message, where there is a mailbox."""
        if self._mailbox is not None:
            self._mailbox.post(key, data)

    def get(self, key: str, what: str, sender: int) -> bytes:
        """Wait for a message; `what` is for the user to read."""
        if self._mailbox is None:
            raise NoPeerError(what, sender, "no other rank runs")
        try:
            return self._mailbox.get(key, self._timeout_s)
        except TimeoutError as error:
            raise NoPeerError(what, sender, f"it did not come within {self._timeout_s:g} s ({error})") from error

    # ------------------------------------------------------------------------------------------------------- tensors

    def deliver(self, exchange: Exchange, group: Group) -> bool:
        """Send or receive real data if this call is a message of that kind; whether it was."""
        call = exchange.call
        if not call.is_message:
            return False
        if call.peer == self._world.rank:
            return self._deliver_to_self(exchange)
        if call.kind == "send":
            if call.is_control and self.is_open:
                self.post(
                    self.key(group, self._world.rank, call.peer, f"tag {call.tag}"), self._encoded(exchange.inputs)
                )
            return True
        if not call.is_control or self._mailbox is None:
            return False
        what = f"recv of {sum(t.numel() for t in exchange.outputs)} {call.dtype} element(s) on group {call.group!r}"
        if call.peer < 0:
            data = self._from_any(call, group, what)
        else:
            data = self.get(self.key(group, call.peer, self._world.rank, f"tag {call.tag}"), what, call.peer)
        self._decode(data, exchange.outputs, what)
        return True

    def _from_any(self, call: Communication, group: Group, what: str) -> bytes:
        candidates = self.named_among(group.members)
        assert self._mailbox is not None
        for _ in range(max(1, int(self._timeout_s / _POLL_S / max(len(candidates), 1)))):
            for sender in candidates:
                path = f"{group.key}/{sender}>{self._world.rank}/tag {call.tag}"
                try:
                    data = self._mailbox.get(f"{path}/{self._numbers.get(path, 0)}", _POLL_S)
                except TimeoutError:
                    continue
                self.key(group, sender, self._world.rank, f"tag {call.tag}")
                self.last_source = group.members.index(sender)
                return data
        neighbour = group.members[(group.position - 1) % group.size]
        why = "none of the ranks that run sent it" if candidates else "it is not known which ranks run"
        raise NoPeerError(what, neighbour, why)

    def _encoded(self, tensors: Sequence[torch.Tensor]) -> bytes:
        import torch

        values = [value for tensor in tensors if (value := self._world.known_value(tensor)) is not None]
        if len(values) < len(tensors):
            return _UNKNOWN
        with compat.outside_modes():
            flat = [value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for value in values]
            return b"=" + b"".join(bytes(part.tolist()) for part in flat)

    def _decode(self, data: bytes, outputs: Sequence[torch.Tensor], what: str) -> None:
        import torch

        if data == _UNKNOWN:
            return
        rest = memoryview(bytearray(data[1:]))
        for output in outputs:
            size = output.numel() * output.element_size()
            if size > len(rest):
                raise WorldError(f"{what}: {len(data) - 1} bytes were sent; make both ends agree on shape and dtype")
            with compat.outside_modes(), compat.below_autograd():
                value = torch.frombuffer(rest[:size], dtype=output.dtype).clone().reshape(output.shape)
            rest = rest[size:]
            self._world.let_know(output, value)

    def _deliver_to_self(self, exchange: Exchange) -> bool:
        call = exchange.call
        queue = self._to_self.setdefault((call.group, call.tag), deque())
        if queue and queue[0][0] != call.kind:
            tensors = queue.popleft()[1]
            sent, received = (exchange.inputs, tensors) if call.kind == "send" else (tensors, exchange.outputs)
            if not self._world.is_fake((*sent, *received)):
                with compat.below_autograd():
                    for output, own in zip(received, sent, strict=True):
                        output.copy_(own)
        elif call.kind == "send" and not self._world.is_fake(exchange.inputs):
            with compat.below_autograd():
                queue.append(("send", tuple(tensor.clone() for tensor in exchange.inputs)))
        else:
            queue.append((call.kind, exchange.inputs or exchange.outputs))
        return True
