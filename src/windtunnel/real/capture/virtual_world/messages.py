"""Messages whose data matters: control tensors and pickled objects, through the mailbox; and what a rank sends to
itself.

Keys name the group, sender, receiver, what kind of thing it is and its number among its like:
`1f2e3d4c.0/3>7/tag 0/12`, `1f2e3d4c.0/0>0/broadcast/4`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.virtual_world.groups import Group
from windtunnel.real.capture.virtual_world.protocol import AnsweringWorld, Mailbox
from windtunnel.real.capture.virtual_world.refusals import NoPeerError, WorldError

if TYPE_CHECKING:
    import torch

    from windtunnel.real.capture.virtual_world.peer_data import Exchange
    from windtunnel.studies.programs.communication import Communication

CONTROL_ELEMENTS = 256  # a control tensor has at most so many
CONTROL_FLOATS = 8  # the same, of a broadcast of other numbers: a scale, a learning rate
SMALL_GROUP = 8  # up to so many members each says what it holds; of more, all are taken to hold what this rank holds
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
        *,
        any_can_run: bool = False,
    ) -> None:
        self._world, self._mailbox, self._timeout_s = world, mailbox, timeout_s
        self.any_can_run = any_can_run and mailbox is not None
        self._run = frozenset(beside)
        self._numbers: dict[str, int] = {}
        # what was sent and not yet received, or the other way round
        self._to_self: dict[tuple[str, int], deque[tuple[str, tuple[torch.Tensor, ...]]]] = {}
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

    def can_say(self, group: Group) -> list[int]:
        """Other members that say what they gather, scatter and reduce: all of a small group, or those that run."""
        if self.any_can_run and group.size <= SMALL_GROUP:
            return [rank for rank in group.members if rank != self._world.rank]
        return self.named_among(group.members)

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

    def exchange_control(self, exchange: Exchange, group: Group) -> bool:
        """Few numbers that Python may read, of floats one a member, are exchanged, where peers run; whether they were.

        A broadcast's come from its root, whoever that is; others' from every member of a small group. Whose own are not
        known does not ask, and says so to those that do.
        """
        call = exchange.call
        if not self.any_can_run or group.size < 2 or call.is_message or call.kind == "barrier":
            return False
        if call.kind in ("broadcast", "scatter"):
            return self._from_root(exchange, group)
        tensors = (*exchange.inputs, *exchange.outputs)
        if group.size > SMALL_GROUP or not tensors or not all(_is_control(t, group.size) for t in tensors):
            return False
        keys = [self.key(group, member, member, f"numbers of {call.kind}") for member in group.members]
        own = self._encoded(exchange.inputs, exactly=True)
        self.post(keys[group.position], own)
        if own == _UNKNOWN:
            return False
        if call.kind in ("reduce", "gather") and call.peer != self._world.rank:
            return True
        replies = [
            own if member == self._world.rank else self.get(key, f"{call.kind} of numbers", member)
            for key, member in zip(keys, group.members, strict=True)
        ]
        if _UNKNOWN in replies:
            return False
        if len(set(map(len, replies))) > 1:
            return False  # the programs differ: told where they are compared
        with compat.outside_modes(), compat.below_autograd():
            by_member = [self._decoded(reply, exchange.inputs) for reply in replies]
            values = combined(exchange, by_member)
        for output, value in zip(exchange.outputs, values, strict=False):
            self._give(output, value)
        return True

    def _from_root(self, exchange: Exchange, group: Group) -> bool:
        call, tensors = exchange.call, exchange.outputs
        few = CONTROL_FLOATS if call.kind == "broadcast" else 0
        if not tensors or not all(_is_control(t, few) for t in tensors):
            return False
        key = self.key(group, call.peer, call.peer, f"numbers of {call.kind}")
        if call.peer == self._world.rank:
            self.post(key, self._encoded(exchange.inputs))
            return False
        data = self.get(key, f"{call.kind} of numbers", call.peer)
        each = sum(t.numel() * t.element_size() for t in tensors)
        if data != _UNKNOWN and call.kind == "scatter":
            data = b"=" + data[1 + each * group.position : 1 + each * (group.position + 1)]
        if data == _UNKNOWN or len(data) - 1 != each:
            return False
        with compat.outside_modes(), compat.below_autograd():
            values = self._decoded(data, tensors)
        for output, value in zip(tensors, values, strict=True):
            self._give(output, value)
        return True

    def _give(self, tensor: torch.Tensor, value: torch.Tensor) -> None:
        if self._world.is_fake((tensor,)):
            self._world.let_know(tensor, value)
        else:
            with compat.below_autograd():
                tensor.copy_(value)

    @staticmethod
    def _decoded(data: bytes, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        import torch

        rest, values = memoryview(bytearray(data[1:])), []
        for tensor in like:
            size = tensor.numel() * tensor.element_size()
            values.append(torch.frombuffer(rest[:size], dtype=tensor.dtype).clone().reshape(tensor.shape))
            rest = rest[size:]
        return values

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

    def _encoded(self, tensors: Sequence[torch.Tensor], *, exactly: bool = False) -> bytes:
        import torch

        value_of = self._world.exact_value if exactly else self._world.known_value
        values = [value for tensor in tensors if (value := value_of(tensor)) is not None]
        if len(values) < len(tensors):
            return _UNKNOWN
        with compat.outside_modes():
            flat = [value.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for value in values]
            return b"=" + b"".join(bytes(part.tolist()) for part in flat)

    def _decode(self, data: bytes, outputs: Sequence[torch.Tensor], what: str) -> None:
        if data == _UNKNOWN:
            return
        if sum(output.numel() * output.element_size() for output in outputs) > len(data) - 1:
            raise WorldError(f"{what}: {len(data) - 1} bytes were sent; make both ends agree on shape and dtype")
        with compat.outside_modes(), compat.below_autograd():
            values = self._decoded(data, outputs)
        for output, value in zip(outputs, values, strict=True):
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


def _is_control(tensor: torch.Tensor, floats: int) -> bool:
    """Whether these are few numbers that may decide what a script does. `floats`: how many need not be whole."""
    whole = not (tensor.is_floating_point() or tensor.is_complex())
    return bool(0 < tensor.numel() <= (CONTROL_ELEMENTS if whole else floats))


def combined(exchange: Exchange, by_member: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """What each output holds after a collective to which each member gives the tensors that it holds."""
    import torch

    call, place, size = exchange.call, exchange.call.position, len(by_member)
    if call.kind in ("all_reduce", "reduce"):
        return [_reduced(list(parts), call.reduce_op) for parts in zip(*by_member, strict=True)]
    if call.kind in ("all_gather", "gather"):
        parts = [part for number in range(len(by_member[0])) for part in (of[number] for of in by_member)]
        if len(exchange.outputs) == len(by_member[0]) and size > 1:  # each into one tensor
            parts = [
                torch.cat([part.reshape(-1) for part in parts[n * size : n * size + size]])
                for n in range(len(by_member[0]))
            ]
    elif call.kind == "reduce_scatter":
        whole = [_reduced(list(pieces), call.reduce_op) for pieces in zip(*by_member, strict=True)]
        each = len(whole) // len(exchange.outputs)
        parts = [
            whole[n * each + place] if each > 1 else whole[n].reshape(size, -1)[place]
            for n in range(len(exchange.outputs))
        ]
    elif len(by_member[0]) == size:  # all-to-all of a tensor for each member
        parts = [of[place] for of in by_member]
    elif exchange.send_rows or exchange.receive_rows:
        return []
    else:
        parts = [torch.cat([of[0].reshape(size, -1)[place] for of in by_member])]
    return [part.reshape(output.shape) for part, output in zip(parts, exchange.outputs, strict=True)]


def _reduced(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    import torch

    both = {"max": torch.maximum, "min": torch.minimum, "product": torch.mul, "band": torch.bitwise_and}
    both |= {"bor": torch.bitwise_or, "bxor": torch.bitwise_xor}
    total = parts[0].clone()
    for part in parts[1:]:
        total = both[op](total, part) if op in both else total + part
    if op != "avg":
        return total
    return total / len(parts) if total.is_floating_point() else total // len(parts)
