"""Tensors among the arguments and results of a dispatched call."""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.real.capture.recorder.op_table import OpFacts


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """All tensors that a call takes, in the order of its arguments; those in lists too."""
    found: list[Any] = []
    for a in args:
        if isinstance(a, torch.Tensor):
            found.append(a)
        elif isinstance(a, list | tuple):
            _nested(a, found)
    if kwargs:
        for a in kwargs.values():
            if isinstance(a, torch.Tensor):
                found.append(a)
            elif isinstance(a, list | tuple):
                _nested(a, found)
    return found


def _nested(values: Any, found: list[Any]) -> None:
    for a in values:
        if isinstance(a, torch.Tensor):
            found.append(a)
        elif isinstance(a, list | tuple):
            _nested(a, found)


def leaf_tensors(out: Any) -> list[Any]:
    """All tensors that a call gave."""
    if isinstance(out, torch.Tensor):
        return [out]
    if isinstance(out, list | tuple):
        return tensors_of(tuple(out), {})
    return []


def written_tensors(facts: OpFacts, args: Any, kwargs: Any) -> list[Any]:
    """Those of its arguments that it writes in place."""
    found: list[Any] = []
    for i in facts.written:
        if i < len(args):
            _nested((args[i],), found)
    for name in facts.written_names:
        if name in kwargs:
            _nested((kwargs[name],), found)
    return found


def local_part(tensor: Any) -> Any:
    """The part of a DTensor that is here."""
    return getattr(tensor, "_local_tensor", tensor)
