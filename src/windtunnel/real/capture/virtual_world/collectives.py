"""Our kernels for every dispatcher op of `c10d`: whoever calls, `torch.distributed`, functional collectives, DDP's
reducer or FSDP2.

Each kernel says what is asked (a `Communication`), asks the world when it completes, lets the peer policy fill the
outputs, and gives back a `Work`. Nothing here depends on the number of ranks, but for lists of tensors or splits that
have one entry each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.virtual_world.groups import Group
from windtunnel.real.capture.virtual_world.messages import CONTROL_ELEMENTS
from windtunnel.real.capture.virtual_world.peer_data import Exchange
from windtunnel.real.capture.virtual_world.protocol import AnsweringWorld
from windtunnel.real.capture.virtual_world.refusals import UnsupportedCommunicationError, WorldError
from windtunnel.studies.programs.communication import MESSAGES, Communication

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

REDUCE_OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")  # torch's numbers, from 0
NO_COMMUNICATION = ("check_for_nan",)  # ops of the namespace that ask nothing of peers


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes that tensors hold."""
    return sum(int(tensor.numel()) * int(tensor.element_size()) for tensor in tensors)


def is_control(kind: str, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these are few whole numbers that Python will read: on the host, or a vote sent between two stages."""
    return bool(tensors) and all(
        tensor.numel() <= CONTROL_ELEMENTS
        and not (tensor.is_floating_point() or tensor.is_complex())
        and (tensor.device.type == "cpu" or kind in MESSAGES)
        for tensor in tensors
    )


class Answers:
    """The kernels, as methods named as their ops."""

    def __init__(self, world: AnsweringWorld) -> None:
        self._world = world

    def kernels(self) -> dict[str, Callable[..., object]]:
        """By name of the op; those that we do not know are refused when they are called."""
        names = [name for name in compat.dispatcher_ops("c10d") if name not in NO_COMMUNICATION]
        return {name: getattr(self, name, None) or _refusal(name) for name in names}

    # ------------------------------------------------------------------------------------------------- the common part

    def ask(
        self,
        group: Group,
        kind: str,
        bytes_total: int,
        tensors: Sequence[torch.Tensor],
        *,
        position: int = -1,
        is_async: bool = True,
        **more: Any,
    ) -> Communication:
        """What is asked of peers; `position` is the group rank of a root or of the other end of a message."""
        peer = group.members[position] if position >= 0 else -1
        return Communication(
            kind=kind,
            group=group.name,
            members=group.members,
            position=group.position,
            bytes=bytes_total,
            dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
            peer=peer,
            is_async=is_async,
            sequence=group.next_sequence(kind, peer),
            is_control=more.pop("control", None) or is_control(kind, tensors),
            batch=group.batches if group.batch is not None else 0,
            **more,
        )

    def _do(
        self,
        boxed: torch.ScriptObject,
        kind: str,
        bytes_total: int,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        *,
        op: dist.ReduceOp | None = None,
        send_rows: Sequence[int] = (),
        receive_rows: Sequence[int] = (),
        **more: Any,
    ) -> torch.ScriptObject:
        world = self._world
        group = world.group_of(boxed)
        if op is not None:
            more["reduce_op"] = REDUCE_OPS[int(op.op())]
        call = self.ask(group, kind, bytes_total, inputs or outputs, **more)
        due = world.begin(call)
        exchange = Exchange(
            call, tuple(inputs), tuple(outputs), world.noise, world.premul_factor, tuple(send_rows), tuple(receive_rows)
        )
        source = world.deliver(exchange, group)
        return compat.boxed_work(world.work((call,), due, outputs, group, source))

    def _one_each(
        self, group: dist.ProcessGroup | None, what: str, lists: Iterable[Sequence[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """The tensors of these lists, one after another. Refuses what the real library refuses: not one a member."""
        size = self._world.group_of(group).size
        for tensors in lists:
            if len(tensors) != size:
                raise WorldError(f"{what} among {size} ranks was given a list of {len(tensors)} tensors: give {size}")
        return [tensor for tensors in lists for tensor in tensors]

    def _check_whole(self, group: dist.ProcessGroup | None, what: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        size = self._world.group_of(group).size
        if whole.numel() != size * part.numel():
            raise WorldError(
                f"{what} among {size} ranks was given a whole of {whole.numel()} elements and a part of"
                f" {part.numel()}: the whole must be {size} parts"
            )

    # ---------------------------------------------------------------------------------------------------- collectives

    def allreduce_(
        self,
        tensors: Sequence[torch.Tensor],
        group: dist.ProcessGroup | None,
        op: object,
        _sparse: object,
        is_async: bool = True,
        *_: object,
    ) -> object:
        """All-reduce of one tensor."""
        work = self._do(group, "all_reduce", bytes_of(tensors), tensors, tensors, op=op, is_async=is_async)
        return tensors, work

    def allreduce_coalesced_(
        self,
        tensors: Sequence[torch.Tensor],
        group: dist.ProcessGroup | None,
        op: object,
        is_async: bool = True,
        *_: object,
    ) -> object:
        """Several tensors as one call."""
        return self._do(group, "all_reduce", bytes_of(tensors), tensors, tensors, op=op, is_async=is_async)

    def broadcast_(
        self,
        tensors: Sequence[torch.Tensor],
        group: dist.ProcessGroup | None,
        root: int,
        _root_tensor: int,
        is_async: bool = True,
        *_: object,
    ) -> object:
        """Broadcast from the root."""
        work = self._do(group, "broadcast", bytes_of(tensors), tensors, tensors, position=root, is_async=is_async)
        return tensors, work

    def reduce_(
        self,
        tensors: Sequence[torch.Tensor],
        group: dist.ProcessGroup | None,
        op: object,
        root: int,
        _root_tensor: int,
        is_async: bool = True,
        *_: object,
    ) -> object:
        """Reduce to the root."""
        return self._do(group, "reduce", bytes_of(tensors), tensors, tensors, op=op, position=root, is_async=is_async)

    def allgather_(
        self,
        outputs: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        group: dist.ProcessGroup | None,
        is_async: bool = True,
        *_: object,
    ) -> object:
        """One tensor for each member."""
        flat = self._one_each(group, "all-gather", outputs)
        return outputs, self._do(group, "all_gather", bytes_of(flat), inputs, flat, is_async=is_async)

    def _allgather_base_(
        self, output: object, own: object, group: dist.ProcessGroup | None, is_async: bool = True, *_: object
    ) -> object:
        self._check_whole(group, "all-gather", output, own)
        return output, self._do(group, "all_gather", bytes_of((output,)), (own,), (output,), is_async=is_async)

    def allgather_coalesced_(
        self,
        outputs: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        group: dist.ProcessGroup | None,
        is_async: bool = True,
    ) -> object:
        """Several inputs, a list of outputs for each member."""
        # `outputs` has a list for each peer, and in it a tensor for each input: turned round it is as above
        flat = [of_peer[number] for number in range(len(inputs)) for of_peer in outputs]
        return self._do(group, "all_gather", bytes_of(flat), inputs, flat, is_async=is_async)

    def allgather_into_tensor_coalesced_(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        group: dist.ProcessGroup | None,
        is_async: bool = True,
    ) -> object:
        """Several, each into one tensor."""
        return self._do(group, "all_gather", bytes_of(outputs), inputs, outputs, is_async=is_async)

    def reduce_scatter_(
        self,
        outputs: list[torch.Tensor],
        inputs: list[list[torch.Tensor]],
        group: dist.ProcessGroup | None,
        op: dist.ReduceOp | None,
        is_async: bool = True,
        *_: object,
    ) -> object:
        """A tensor for each member."""
        flat = self._one_each(group, "reduce-scatter", inputs)
        place = self._world.group_of(group).position
        for output, parts in zip(outputs, inputs, strict=True):
            if output.numel() != parts[place].numel():
                raise WorldError(
                    f"a reduce-scatter was given {parts[place].numel()} elements for this rank, and an output of"
                    f" {output.numel()}: they must be as many"
                )
        return outputs, self._do(group, "reduce_scatter", bytes_of(flat), flat, outputs, op=op, is_async=is_async)

    def _reduce_scatter_base_(
        self,
        output: object,
        whole: object,
        group: dist.ProcessGroup | None,
        op: object,
        is_async: bool = True,
        *_: object,
    ) -> object:
        self._check_whole(group, "reduce-scatter", whole, output)
        work = self._do(group, "reduce_scatter", bytes_of((whole,)), (whole,), (output,), op=op, is_async=is_async)
        return output, work

    def reduce_scatter_tensor_coalesced_(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        group: dist.ProcessGroup | None,
        op: dist.ReduceOp | None,
        is_async: bool = True,
        *_: object,
    ) -> object:
        """Several, each from one tensor."""
        return self._do(group, "reduce_scatter", bytes_of(inputs), inputs, outputs, op=op, is_async=is_async)

    def gather_(
        self,
        outputs: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        group: dist.ProcessGroup | None,
        root: int,
        is_async: bool = True,
        *_: object,
    ) -> object:
        """Gather to the root."""
        flat = self._one_each(group, "gather", outputs)
        total = bytes_of(flat) or bytes_of(inputs) * self._world.group_of(group).size
        return self._do(group, "gather", total, inputs, flat, position=root, is_async=is_async)

    def gather_into_tensor_(
        self,
        output: torch.Tensor,
        own: torch.Tensor,
        group: dist.ProcessGroup | None,
        root: int,
        is_async: bool = True,
        *_: object,
    ) -> object:
        """Gather to the root, into one tensor (since 2.14)."""
        outputs = [output] if output.numel() else []  # of others it is empty
        total = bytes_of([own]) * self._world.group_of(group).size
        return output, self._do(group, "gather", total, [own], outputs, position=root, is_async=is_async)

    def scatter_(
        self,
        outputs: list[torch.Tensor],
        inputs: list[list[torch.Tensor]],
        group: dist.ProcessGroup | None,
        root: int,
        is_async: bool = True,
        *_: object,
    ) -> object:
        """Scatter from the root."""
        flat = self._one_each(group, "scatter", inputs)
        total = bytes_of(flat) or bytes_of(outputs) * self._world.group_of(group).size
        return outputs, self._do(group, "scatter", total, flat, outputs, position=root, is_async=is_async)

    def alltoall_(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        group: dist.ProcessGroup | None,
        is_async: bool = True,
        *_: object,
    ) -> object:
        """A tensor to and from each member."""
        self._one_each(group, "all-to-all", (inputs, outputs))
        sent = tuple(bytes_of((tensor,)) for tensor in inputs)
        received = tuple(bytes_of((tensor,)) for tensor in outputs)
        uneven = _uneven(sent, received)
        work = self._do(group, "all_to_all", sum(sent), inputs, outputs, is_async=is_async, **uneven)
        return outputs, work

    def alltoall_base_(
        self,
        output: torch.Tensor,
        own: torch.Tensor,
        group: dist.ProcessGroup | None,
        receive_rows: Sequence[int],
        send_rows: Sequence[int],
        is_async: bool = True,
        *_: object,
    ) -> object:
        """One tensor, in even or uneven splits."""
        return self._do(
            *(group, "all_to_all", bytes_of((own,)), (own,), (output,)),
            send_rows=send_rows,
            receive_rows=receive_rows,
            is_async=is_async,
            **uneven_rows(own, output, send_rows, receive_rows, self._world.group_of(group).size),
        )

    def barrier(
        self, _tensor: object, group: dist.ProcessGroup | None, _devices: object, is_async: bool = True, *_: object
    ) -> object:
        """Barrier: moves no data."""
        return self._do(group, "barrier", 0, (), (), is_async=is_async)

    def monitored_barrier_(self, _tensor: object, group: dist.ProcessGroup | None, *_: object) -> None:
        """No data, and blocks."""
        call = self.ask(self._world.group_of(group), "barrier", 0, (), is_async=False)
        self._world.wait_for(call, self._world.begin(call))

    # -------------------------------------------------------------------------------------------------------- messages

    def send(self, tensors: Sequence[torch.Tensor], group: dist.ProcessGroup | None, to: int, tag: int) -> object:
        """Send to one member."""
        return self._do(group, "send", bytes_of(tensors), tensors, (), position=to, tag=tag)

    def recv_(self, tensors: Sequence[torch.Tensor], group: dist.ProcessGroup | None, source: int, tag: int) -> object:
        """Receive from one member."""
        return self._do(group, "recv", bytes_of(tensors), (), tensors, position=source, tag=tag)

    def recv_any_source_(self, tensors: Sequence[torch.Tensor], group: dist.ProcessGroup | None, tag: int) -> object:
        """Receive from whoever sends."""
        return self._do(group, "recv", bytes_of(tensors), (), tensors, tag=tag)


def uneven_rows(
    own: torch.Tensor, output: torch.Tensor, send_rows: Sequence[int], receive_rows: Sequence[int], size: int
) -> dict[str, Any]:
    """Bytes to and from each member where the splits of an all-to-all differ; nothing where they do not."""
    if not send_rows and not receive_rows:
        for tensor in (own, output):
            if tensor.shape[0] % size:
                raise WorldError(f"an all-to-all of {tensor.shape[0]} rows among {size} ranks: give splits, or pad")
        return {}
    _check_splits("input", send_rows, own, size)
    _check_splits("output", receive_rows, output, size)
    row_in = bytes_of((own,)) // max(int(own.shape[0]), 1)
    row_out = bytes_of((output,)) // max(int(output.shape[0]), 1)
    sent = tuple(int(rows) * row_in for rows in send_rows or [int(own.shape[0]) // size] * size)
    received = tuple(int(rows) * row_out for rows in receive_rows or [int(output.shape[0]) // size] * size)
    return _uneven(sent, received)


def _check_splits(which: str, rows: Sequence[int], tensor: torch.Tensor, size: int) -> None:
    """Refuse what the real library refuses, here and not where the backward pass finds that nothing fits."""
    length = int(tensor.shape[0])
    if not rows or (len(rows) == size and sum(rows) == length):
        return
    raise WorldError(
        f"an all-to-all among {size} ranks was given {len(rows)} {which} splits of {sum(rows)} rows, for a tensor"
        f" of {length} rows (Split sizes doesn't match total dim 0 size); if the script read them from a tensor that"
        " holds no data, say what it reads there: --answer FILE.py:LINE=NUMBER"
    )


def _uneven(sent: tuple[int, ...], received: tuple[int, ...]) -> dict[str, Any]:
    if len(set(sent)) <= 1 and set(sent) == set(received):
        return {}
    return {"sent_bytes": sent, "received_bytes": received}


def _refusal(name: str) -> Callable[..., object]:
    def refuse(*_: object, **__: object) -> object:
        raise UnsupportedCommunicationError(
            f"the dispatcher op c10d::{name}", "use one of the collectives of torch.distributed instead"
        )

    return refuse
