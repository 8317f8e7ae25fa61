"""What a communication leaves in a group with several real members: they truly exchange, and each virtual member holds
what the real one holds that it is like (`programs/rank_classes/proxies.py`). With weights w, that add up to n:

    all_reduce, reduce   sum = sum of w x own, avg = that / n; max, min, bits: over the real members
    all_gather, gather   the rows of real members are theirs; of a virtual one, a copy of those of the one it is like
    reduce_scatter       the own part, summed as above
    broadcast            what the root has; of a virtual root, what the one it is like has
    scatter              from a real root its parts; of a virtual one, noise
    all_to_all           from real members what they send here; from a virtual one, what the one it is like sends here
    send, recv           truly sent; with a virtual peer as ever

So every real member is left with the same, with one real member this is *peers like me*, and with all of them real it
is what the library would do. Shards (gathers in place) are tied as `emulate/peers/shards.py` says, each to that real
rank's shard which its rank is like.

A call has two halves: it begins (tensors are handed to the library, which works meanwhile), and ends when somebody
waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist

from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.virtual_world.groups import Group
from windtunnel.real.capture.virtual_world.peer_data import Exchange, reduce_equals, tile
from windtunnel.real.emulate.peers.shards import TiedShards
from windtunnel.real.emulate.several.real_groups import Among, Lent, RealGroups

Ending = Callable[[], None]
Begun: TypeAlias = tuple[list[Lent | dist.Work], Ending | None]  # works to wait for, and what is left to do then
Parts: TypeAlias = torch.Tensor | list[torch.Tensor]  # by place: rows of one tensor, or a tensor each


class RealData:
    """Satisfies `world.RealPeers`: begins the exchanges of groups with several real members."""

    def __init__(self, groups: RealGroups, tied: TiedShards) -> None:
        self._groups, self._tied = groups, tied

    def join(self, group: Group) -> None:
        """The script made a group."""
        self._groups.join(group)

    def start(self, exchange: Exchange, group: Group) -> tuple[Ending, int] | None:
        """Begin a call, if several real members share it: what ends it, and the place it came from if that was open."""
        among = self._groups.members_of(group)
        if among is None:
            return None
        with compat.below_autograd():
            if exchange.call.is_message:
                return self._message(exchange, group, among)
            works, after = getattr(self, f"_{exchange.call.kind}")(exchange, among)

        def end() -> None:
            for work in works:
                work.wait()
            if after is not None:
                with compat.below_autograd():
                    after()

        return end, -1

    def _message(self, exchange: Exchange, group: Group, among: Among) -> tuple[Ending, int] | None:
        call = exchange.call
        if call.peer == group.members[group.position]:
            return None
        if call.kind == "recv" and call.peer < 0:
            work = among.receive(exchange.outputs, -1, call.tag)
            work.wait()
            return (lambda: None), among.proxies.real[int(work.work._source_rank())]
        number = among.number_of(group.members.index(call.peer))
        if number is None:
            return None
        if call.kind == "send":
            work = among.send(exchange.inputs, number, call.tag)
        else:
            work = among.receive(exchange.outputs, number, call.tag)

        def end() -> None:
            work.wait()

        return end, -1

    # ------------------------------------------------------------------------------------------------- reductions

    def _all_reduce(self, exchange: Exchange, among: Among) -> Begun:
        reductions = [_Reduction(tensor, exchange, among) for tensor in exchange.outputs]
        return [among.all_reduce(reduction.given, reduction.op) for reduction in reductions], lambda: _end(reductions)

    def _reduce(self, exchange: Exchange, among: Among) -> Begun:
        root = among.number_of(exchange.call.members.index(exchange.call.peer))
        if root is None:
            return [], None  # others' tensors are left as they are
        mine = root == among.me
        reductions = [_Reduction(output if mine else output.clone(), exchange, among) for output in exchange.outputs]
        works = [among.reduce(reduction.given, root, reduction.op) for reduction in reductions]
        return works, (lambda: _end(reductions)) if mine else None

    def _reduce_scatter(self, exchange: Exchange, among: Among) -> Begun:
        call, size, proxies = exchange.call, exchange.size, among.proxies
        each = len(exchange.inputs) // len(exchange.outputs)
        tied = self._tied.shares(exchange)
        works, reductions = [], []
        for at, output in enumerate(exchange.outputs):
            rows = exchange.inputs[at].reshape(size, -1) if each == 1 and size > 1 else None
            for number, place in enumerate(proxies.real):
                own = rows[place] if rows is not None else exchange.inputs[at * each + (place if each > 1 else 0)]
                mine, summed = number == among.me and output.is_contiguous(), 1
                part = (
                    output.view(own.shape) if mine else own.clone()
                )  # what the others get is needed until they have it
                if mine and part.data_ptr() != own.data_ptr():
                    part.copy_(own)
                if tied:
                    summed = self._tied.collect(rows, part, proxies.runs[number], call.sequence)
                reduction = _Reduction(part, exchange, among)
                works.append(among.reduce(reduction.given, number, reduction.op))
                reductions.append((reduction, summed, output if number == among.me else None))

        def finish() -> None:
            for reduction, number, output in reductions:
                if output is not None:
                    reduction.end()
                    if number > 1:
                        reduction.tensor.mul_(1.0 / math.sqrt(number))
                    if reduction.tensor.data_ptr() != output.data_ptr():
                        output.copy_(reduction.tensor.reshape(output.shape))
            reductions.clear()

        return works, finish

    # ---------------------------------------------------------------------------------------------------- gathers

    def _all_gather(self, exchange: Exchange, among: Among) -> Begun:
        proxies = among.proxies
        tied = self._tied.sees(exchange)
        works, whole = [], []
        for own, parts in _parts(exchange):
            mine = parts[exchange.call.position]
            if mine.data_ptr() != own.data_ptr():
                mine.copy_(own.reshape(mine.shape))
            works += [among.broadcast(parts[place], number) for number, place in enumerate(proxies.real)]
            whole.append(parts)

        def finish() -> None:
            for parts in whole:
                for number, place in enumerate(proxies.real):
                    for first, last in proxies.runs[number]:
                        if tied:
                            self._tied.spread_parts(parts, parts[place], first, last)
                        elif isinstance(parts, torch.Tensor):
                            parts[first:last].copy_(parts[place].view(1, -1))
                        else:
                            for other in range(first, last):
                                tile(parts[other], parts[place], exchange.noise)
            whole.clear()

        return works, finish

    def _gather(self, exchange: Exchange, among: Among) -> Begun:
        root = among.number_of(exchange.call.members.index(exchange.call.peer))
        if root is None:
            return [], None
        proxies = among.proxies
        outputs = list(exchange.outputs)
        parts = [outputs[place] for place in proxies.real] if outputs else []
        work = among.gather(parts, exchange.inputs[0], root)

        def finish() -> None:
            for number, places in enumerate(proxies.like):
                for place in places if outputs else ():
                    tile(outputs[place], outputs[proxies.real[number]], exchange.noise)

        return [work], finish

    def _scatter(self, exchange: Exchange, among: Among) -> Begun:
        root = among.number_of(exchange.call.members.index(exchange.call.peer))
        output = exchange.outputs[0]
        if root is None:
            exchange.noise(output)
            return [], None
        parts = [exchange.inputs[place] for place in among.proxies.real] if exchange.inputs else []
        return [among.scatter(output, parts, root)], None

    def _broadcast(self, exchange: Exchange, among: Among) -> Begun:
        place = exchange.call.members.index(exchange.call.peer)
        return [among.broadcast(output, among.proxies.of_place[place]) for output in exchange.outputs], None

    # ----------------------------------------------------------------------------------------------------- others

    def _all_to_all(self, exchange: Exchange, among: Among) -> Begun:
        proxies, size = among.proxies, exchange.size
        if len(exchange.outputs) == 1 and len(exchange.inputs) == 1 and size > 1:
            own, output = exchange.inputs[0], exchange.outputs[0]
            sent = _split(own, exchange.send_rows, size)
            received = _split(output, exchange.receive_rows, size)
        else:
            sent, received = list(exchange.inputs), list(exchange.outputs)
        out = torch.cat([sent[place].reshape(-1) for place in proxies.real])
        back = out.new_empty(sum(received[place].numel() for place in proxies.real))
        receive_rows = [received[place].numel() for place in proxies.real]
        work = among.exchange(back, out, receive_rows, [sent[place].numel() for place in proxies.real])

        def finish() -> None:
            came = back.split(receive_rows)
            for number, place in enumerate(proxies.real):
                received[place].copy_(came[number].view(received[place].shape))
                for other in proxies.like[number]:
                    tile(received[other], came[number], exchange.noise)

        return [work], finish

    def _barrier(self, exchange: Exchange, among: Among) -> Begun:
        return [among.barrier()], None


class _Reduction:
    """One tensor that real members reduce: what each hands in, and what has to be done to the result."""

    def __init__(self, tensor: torch.Tensor, exchange: Exchange, among: Among) -> None:
        self.tensor, self._proxies = tensor, among.proxies
        op = exchange.call.reduce_op
        self._asked = op
        mine = self._proxies.weights[among.me]
        self.op = "sum" if op in ("avg", "premul_sum") else op
        if op == "premul_sum":
            reduce_equals(tensor, op, 1, exchange.factor)
        if op in ("product", "bxor"):
            reduce_equals(tensor, op, mine)
        elif self.op == "sum" and not self._proxies.even:
            reduce_equals(tensor, "sum", mine)
        if tensor.dtype == torch.bool:  # a sum of truths is that one is true
            self.op = "min" if op in ("band", "product", "min") else "max"
            self.given = tensor.view(torch.uint8)
        else:
            self.given = torch.view_as_real(tensor) if tensor.is_complex() else tensor

    def end(self) -> None:
        """Scale the result."""
        proxies = self._proxies
        if self.op != "sum":
            return
        if self._asked == "avg":
            self.tensor.div_(len(proxies.real) if proxies.even else proxies.size)
        elif proxies.even > 1:
            reduce_equals(self.tensor, "sum", proxies.even)


def _end(reductions: Sequence[_Reduction]) -> None:
    for reduction in reductions:
        reduction.end()


def _parts(exchange: Exchange) -> list[tuple[torch.Tensor, Parts]]:
    """Each input of a gather with its outputs by place: rows of one tensor, or a tensor each."""
    each = len(exchange.outputs) // len(exchange.inputs)
    parts_of_inputs: list[tuple[torch.Tensor, Parts]] = []
    for number, own in enumerate(exchange.inputs):
        parts: Parts = list(exchange.outputs[number * each : (number + 1) * each])
        if each == 1 and exchange.size > 1:
            parts = parts[0].view(exchange.size, -1)
        parts_of_inputs.append((own, parts))
    return parts_of_inputs


def _split(tensor: torch.Tensor, rows: Sequence[int], size: int) -> list[torch.Tensor]:
    return list(tensor.split(list(rows) or [int(tensor.shape[0]) // size] * size))
