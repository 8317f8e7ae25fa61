"""Sequences of several lengths in one tensor without data: nested tensors of jagged layout, and attention by where
sequences end. Tried on 2.13 to 2.15.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from typing import TYPE_CHECKING

import torch

from windtunnel.errors import UserError
from windtunnel.real.capture.replacements import Replacements
from windtunnel.real.capture.torch_private.distributed import fake_tensor_class, outside_modes

if TYPE_CHECKING:
    from torch import SymInt


@contextmanager
def ragged_sizes() -> Iterator[None]:
    """A ragged size of fake offsets is a number of its own, as that of real ones is.

    PyTorch would trace it instead, and wants a place for the trace.
    """
    from torch.nested._internal.nested_int import NestedIntNode
    from torch.utils.weak import WeakTensorKeyDictionary

    numbers, unused = WeakTensorKeyDictionary(), count()

    def get_nested_int(offsets: torch.Tensor, *, coeff: int = 1) -> SymInt:
        number = numbers.setdefault(offsets, next(unused))
        return torch.SymInt(NestedIntNode(number, coeff))

    with Replacements((fake_tensor_class(), "get_nested_int", get_nested_int)):
        yield


def strided_as_jagged(note: Callable[[str], None]) -> Replacements:
    """Nested tensors of strided layout, the default, lie as jagged ones do: a fake tensor cannot be of the former.

    `note` is told. Raises NestedShapesError where parts differ in more than their first size.
    """

    def jagged(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        @functools.wraps(make)
        def nested(parts: Sequence[torch.Tensor], *more: object, **kwargs: object) -> object:
            layout = kwargs.pop("layout", more[2] if len(more) > 2 else None)  # behind dtype and device
            more = more[:2]
            if layout is torch.jagged:
                return make(parts, *more, layout=layout, **kwargs)
            if not isinstance(parts, torch.Tensor):
                parts = [part if isinstance(part, torch.Tensor) else torch.tensor(part) for part in parts]
                shapes = [tuple(part.shape) for part in parts]
                if not shapes or not all(shapes) or len({shape[1:] for shape in shapes}) > 1:
                    raise NestedShapesError(shapes)
            note("nested tensors of strided layout are recorded as jagged ones: the same elements, and their offsets")
            return make(parts, *more, layout=torch.jagged, **kwargs)

        return nested

    names = ("nested_tensor", "as_nested_tensor")
    return Replacements(*((torch.nested, name, jagged(getattr(torch.nested, name))) for name in names))


class NestedShapesError(UserError):
    """Parts of a nested tensor that no jagged one can hold."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__(
            f"a nested tensor of parts of shapes {', '.join(map(str, shapes[:4]))} has no fake form: only the first"
            " size of its parts may differ here (as with layout=torch.jagged); pad the others"
        )


def attention_by_lengths(value_of: Callable[[torch.Tensor], torch.Tensor | None]) -> Callable[[], None]:
    """FLOPs of attention by where sequences end, as far as `value_of` knows them; returns the undo.

    PyTorch takes each sequence to be as long as the longest where its tensor is fake.
    """
    from torch.utils import flop_counter

    def lengths(ends: torch.Tensor, longest: int) -> list[int]:
        known = value_of(ends)
        if known is None:
            return [longest] * (len(ends) - 1)
        with outside_modes():
            return [end - begin for begin, end in pairwise(known.tolist())]

    return Replacements((flop_counter, "_offsets_to_lengths", lengths)).undo
