"""Indices out of a known number, and masks of which a known share is true.

An index out of E (from `topk`, `argmax`, `sort` over E entries) hits a given one in 1/E of the cases, so a mask
`index == e` is true in 1/E of its entries, a one-hot of width E likewise, ranges and conjunctions follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from windtunnel.real.operator_call import Arguments, Keywords

_SCATTERS = frozenset(("scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_"))
_CHOICES = frozenset(("topk", "argmax", "argmin", "max", "min", "sort", "argsort"))
_CARRIES = frozenset(
    (
        *("clone", "_to_copy", "gather", "index", "index_select", "cat", "stack", "sort", "repeat", "flip", "copy_"),
        *("argsort", "all_to_all_single", "wait_tensor", "all_gather_into_tensor", "contiguous", "roll", "transpose"),
        "repeat_interleave",
    )
)


Figure = TypeVar("Figure", int, float)


class Choices:
    """By number of storage, which `number_of` finds or gives."""

    def __init__(self, number_of: Callable[[torch.Tensor], int]) -> None:
        self._number_of = number_of
        self.widths: dict[int, int] = {}  # storage of indices -> out of how many
        self.shares: dict[int, float] = {}  # storage of a mask -> share that is true

    def forget(self, number: int) -> None:
        """The storage is gone, or was written with something else."""
        self.widths.pop(number, None)
        self.shares.pop(number, None)

    def moved(self, sources: Sequence[torch.Tensor], brought: Sequence[torch.Tensor]) -> None:
        """Peers sent what is like `sources`: choices out of as many, masks of which as large a share is true."""
        of, to = [list(map(self._number_of, tensors)) for tensors in (sources, brought)]
        _carry(self.widths, of, to)
        _carry(self.shares, of, to)

    def follow_op(
        self,
        short: str,
        args: Arguments,
        kwargs: Keywords,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        written: list[torch.Tensor],
    ) -> None:
        """An op ran: indices, masks of them, and what is made of either."""
        if not (self.widths or self.shares or short in _CHOICES or short in _SCATTERS):
            return
        if short in _CHOICES and not _is_index(inputs[0]):
            dim = next((a for a in args[1:] if isinstance(a, int) and not isinstance(a, bool)), -1)
            dim = -1 if short == "topk" and len(args) < 3 else (args[2] if short == "topk" else dim)
            width = inputs[0].shape[kwargs.get("dim", dim)] if inputs[0].dim() and _is_dim(inputs[0], dim) else 0
            for tensor in outputs:
                if _is_index(tensor) and width:
                    self.widths[self._number_of(tensor)] = int(width)
            return
        if short in _SCATTERS and len(args) > 2 and isinstance(args[2], torch.Tensor) and isinstance(args[1], int):
            target, width = (written or outputs or inputs)[0], inputs[0].shape[args[1]]
            self.shares[self._number_of(target)] = min(1.0, args[2].shape[args[1]] / max(1, width))
            return
        if not (self.widths or self.shares):
            return
        if short in ("eq", "ne", "lt", "le", "gt", "ge") and len(args) > 1:
            self._compared(short, args, inputs, outputs)
        elif short in ("bitwise_and", "logical_and", "bitwise_and_", "logical_and_"):
            shares = [self.shares.get(self._number_of(t)) for t in inputs]
            if None not in shares:
                self.shares[self._number_of(outputs[0])] = max(0.0, sum(s or 0.0 for s in shares) - len(shares) + 1)
        elif short in _CARRIES:
            source = inputs[1] if short == "copy_" and len(inputs) > 1 else inputs[0]
            number = self._number_of(source)
            for tensor in outputs or written:
                if number in self.widths and _is_index(tensor):
                    self.widths[self._number_of(tensor)] = self.widths[number]
                if number in self.shares:
                    self.shares[self._number_of(tensor)] = self.shares[number]

    def _compared(self, short: str, args: Arguments, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        width = next((w for t in inputs if (w := self.widths.get(self._number_of(t)))), None)
        if width is None or not outputs:
            return
        bound = args[1] if isinstance(args[1], int) else None
        share = {"eq": 1 / width, "ne": 1 - 1 / width}.get(short)
        if share is None and bound is not None:
            below = min(1.0, max(0.0, (bound + (short in ("le", "gt"))) / width))
            share = below if short in ("lt", "le") else 1 - below
        if share is not None:
            self.shares[self._number_of(outputs[0])] = share


def _carry(table: dict[int, Figure], of: Sequence[int], to: Sequence[int]) -> None:
    like = next((table[number] for number in of if number in table), None)
    if like is not None:
        table.update(dict.fromkeys(to, like))


def _is_index(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.int64, torch.int32)


def _is_dim(tensor: torch.Tensor, dim: int) -> bool:
    return bool(-tensor.dim() <= dim < tensor.dim())
