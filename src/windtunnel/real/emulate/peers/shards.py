"""What peers' shards hold, so that a model that is sharded over thousands of ranks still learns.

The real rank holds one part in n of each sharded parameter. Were every other part a copy of it (peers like me), all
rows of a weight would be the same, every class would have the same logit, and a loss would stay where it is. So part i
of a gathered parameter is the own part with its signs flipped, by a fixed random pattern d(i), d(own) = 1:

    part i = d(i) * own

which keeps the size of every weight, and its gradient with respect to the own part, which is what the optimizer should
get, is the sum over all parts:

    reduce-scatter: own gradient = sum over i of d(i) * gradient of part i, divided by the square root of their number

(times n where the job asks for the sum), so that it is as large as that of one part. Of gradients of more than `WHOLE`
bytes `MOST` parts are taken, others in each call. Training then is gradient descent on a model whose shards are tied:
losses are finite and fall; they are not the losses of the real job (a tape has those).

Gathers of parameters are known by being done in place (the own part is a part of the output), as FSDP2 and sharded
optimizers do; the gradients by being scattered over the same group. Everything else is left to the policy beneath.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from windtunnel.real.capture.virtual_world.peer_data import Exchange, Fill, PeerPolicy, reduce_equals

if TYPE_CHECKING:
    import torch

WHOLE = 8 << 20  # bytes of a gradient whose parts are all added up, `TEMPORARY` bytes at a time
TEMPORARY = 256 << 10
MOST = 16  # parts of a larger one that are
PERIOD = 4096  # a pattern repeats after so many elements
_SEED = 20_26


class TiedShards:
    """The policy. Patterns are made once for each dtype and device."""

    def __init__(self, beneath: PeerPolicy) -> None:
        self._beneath = beneath
        self._signs: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}
        self._sharding: set[tuple[int, ...]] = set()
        self._turn = 0

    def policy(self) -> PeerPolicy:
        """With gathers and reduce-scatters of shards answered here."""
        others: dict[str, Fill] = dict(self._beneath.by_kind)
        gather, scatter = (others.get(kind, self._beneath.default) for kind in ("all_gather", "reduce_scatter"))
        others["all_gather"] = self._either(self._gather, gather)
        others["reduce_scatter"] = self._either(self._scatter, scatter)
        return PeerPolicy(self._beneath.default, others)

    # For groups with several real members, each of which some others are like (`emulate/several/data.py`).

    def sees(self, exchange: Exchange) -> bool:
        """Whether this gather is one of shards; its group is known from now on."""
        n, place = exchange.size, exchange.call.position
        if n == 1 or len(exchange.inputs) != len(exchange.outputs):
            return False
        for own, whole in zip(exchange.inputs, exchange.outputs, strict=True):
            if not _is_plain(whole) or whole.numel() != n * own.numel() or not own.numel():
                return False
            if whole.view(n, -1)[place].data_ptr() != own.data_ptr():
                return False
        self._sharding.add(exchange.call.members)
        return True

    def shares(self, exchange: Exchange) -> bool:
        """Whether this scatter is one of the gradients of shards."""
        n = exchange.size
        if exchange.call.members not in self._sharding or len(exchange.inputs) != len(exchange.outputs):
            return False
        if exchange.call.reduce_op not in ("sum", "avg", "premul_sum"):
            return False
        pairs = zip(exchange.inputs, exchange.outputs, strict=True)
        return all(_is_plain(out) and own.numel() == n * out.numel() for own, out in pairs)

    def spread_parts(self, rows: torch.Tensor, own: torch.Tensor, first: int, last: int) -> None:
        """Parts `first` to `last` of a gathered parameter become the own one with signs flipped."""
        import torch

        for begin, end, width in _blocks(own.numel()):
            target = rows[first:last, begin:end].unflatten(1, (-1, width))
            signs = self._pattern(own, len(rows), first, last, width)
            torch.mul(own[begin:end].view(1, -1, width), signs, out=target)

    def collect(self, rows: torch.Tensor, total: torch.Tensor, runs: Sequence[tuple[int, int]], turn: int) -> int:
        """Add to the gradient of a part those of parts tied to it; how many there are now. Of large ones
        `MOST` are taken, others in each `turn`.
        """
        n = len(rows)
        if total.nbytes * n > WHOLE:
            places = [part for first, last in runs for part in range(first, last)]
            count = min(len(places), MOST - 1)
            runs = [((at := places[(turn * count + step) % len(places)]), at + 1) for step in range(count)]
        for begin, end, width in _blocks(total.numel()):
            at_once = max(1, TEMPORARY // ((end - begin) * total.element_size()))
            for first, last in runs:
                for some in range(first, last, at_once):
                    until = min(some + at_once, last)
                    signs = self._pattern(total, n, some, until, width)
                    parts = rows[some:until, begin:end].unflatten(1, (-1, width))
                    if until - some == 1:
                        total[begin:end].view(1, -1, width).addcmul_(parts, signs)
                    else:
                        total[begin:end] += (parts * signs).sum(0).view(-1)
        return 1 + sum(last - first for first, last in runs)

    def _either(self, mine: Callable[[Exchange], bool], otherwise: Fill) -> Fill:
        def fill(exchange: Exchange) -> None:
            if not mine(exchange):
                otherwise(exchange)

        return fill

    def _gather(self, exchange: Exchange) -> bool:
        if not self.sees(exchange):
            return False
        n, place = exchange.size, exchange.call.position
        for own, whole in zip(exchange.inputs, exchange.outputs, strict=True):
            for first, last in ((0, place), (place + 1, n)):
                if last > first:
                    self.spread_parts(whole.view(n, -1), own.view(-1), first, last)
        return True

    def _scatter(self, exchange: Exchange) -> bool:
        if not self.shares(exchange):
            return False
        n, place = exchange.size, exchange.call.position
        for own, out in zip(exchange.inputs, exchange.outputs, strict=True):
            rows, total = own.reshape(n, -1), out.view(-1)
            if rows[place].data_ptr() != total.data_ptr():
                total.copy_(rows[place])
            self._turn += 1
            count = self.collect(rows, total, [(0, place), (place + 1, n)], self._turn)
            total.mul_(1.0 / math.sqrt(count))
            reduce_equals(out, exchange.call.reduce_op, n, exchange.factor)
        return True

    def _pattern(self, like: torch.Tensor, n: int, first: int, last: int, width: int) -> torch.Tensor:
        """Signs of parts `first` to `last`: windows of one random row, each an element further."""
        key = (like.dtype, like.device)
        sign = self._signs.get(key)
        if sign is None or sign.numel() < n + PERIOD:
            import torch

            random = torch.Generator().manual_seed(_SEED)
            bits = torch.randint(0, 2, (2 * n + PERIOD,), generator=random)
            sign = self._signs[key] = (2 * bits - 1).to(dtype=like.dtype, device=like.device)
        return sign.as_strided((last - first, 1, width), (1, 0, 1), first)


def _is_plain(tensor: torch.Tensor) -> bool:
    return bool(tensor.is_floating_point() and tensor.element_size() > 1 and tensor.is_contiguous())


def _blocks(count: int) -> list[tuple[int, int, int]]:
    """(begin, end, width): whole periods, then the rest."""
    whole = count // PERIOD * PERIOD
    blocks = [(0, whole, PERIOD)] if whole else []
    return [*blocks, (whole, count, count - whole)] if count > whole else blocks
