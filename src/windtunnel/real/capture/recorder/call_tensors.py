"""Tensors among the arguments and results of a dispatched call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from windtunnel.real.capture.recorder.op_table import OpFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from windtunnel.real.operator_call import Arguments, Keywords


def tensors_of(args: tuple[object, ...], kwargs: dict[str, object]) -> list[torch.Tensor]:
    """All tensors that a call takes, in the order of its arguments; those in lists too."""
    tensors: list[torch.Tensor] = []
    for a in args:
        if isinstance(a, torch.Tensor):
            tensors.append(a)
        elif isinstance(a, list | tuple):
            _nested(a, tensors)
    if kwargs:
        for a in kwargs.values():
            if isinstance(a, torch.Tensor):
                tensors.append(a)
            elif isinstance(a, list | tuple):
                _nested(a, tensors)
    return tensors


def _nested(values: Iterable[object], tensors: list[torch.Tensor]) -> None:
    for a in values:
        if isinstance(a, torch.Tensor):
            tensors.append(a)
        elif isinstance(a, list | tuple):
            _nested(a, tensors)


def leaf_tensors(out: object) -> list[torch.Tensor]:
    """All tensors that a call gave."""
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, list | tuple):
        return tensors_of(tuple(out), {})
    return []


def written_tensors(facts: OpFacts, args: Arguments, kwargs: Keywords) -> list[torch.Tensor]:
    """Those of its arguments that it writes in place."""
    tensors: list[torch.Tensor] = []
    for i in facts.written:
        if i < len(args):
            _nested((args[i],), tensors)
    for name in facts.written_names:
        if name in kwargs:
            _nested((kwargs[name],), tensors)
    return tensors


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a DTensor that is here."""
    return getattr(tensor, "_local_tensor", tensor)
