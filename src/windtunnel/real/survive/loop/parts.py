"""The state of a loop in parts: what a step changes, kept before it, put back after a failed one, handed to another.

A part is one thing whose copies are alike or not: the parameters of a model, its buffers, its gradients (those too that
FSDP2 has not reduced), the layout of these in DistributedDataParallel's buckets, an optimizer, whatever else has
`state_dict` and `load_state_dict`, and the random numbers. Tensors are taken as this rank holds them: the local part of
a DTensor. Digests tell which ranks hold the same: replicas of data parallelism do, shards do not.
"""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from windtunnel.errors import SpecError
from windtunnel.real.survive.loop.framework import Buckets, UnreducedGradients, fsdp_groups, placed, unplaced, wrappers

if TYPE_CHECKING:
    from typing_extensions import TypeIs

MASK = (1 << 62) - 1
SMALL_BYTES = 1 << 16


@dataclass(frozen=True)
class Part:
    """One part: how it is read as a tree of dicts, lists, tensors and plain values, and how a tree is put back."""

    name: str
    read: Callable[[], object]
    write: Callable[[object], None]

    def copied(self) -> object:
        """A copy that no step changes."""
        return mapped(self.read(), lambda tensor: local(tensor).detach().clone())

    def put(self, tree: object) -> None:
        """Write a copy back, into the tensors that are there where they fit."""
        self.write(_into(self.read(), tree))


def parts_of(things: Mapping[str, object]) -> list[Part]:
    """The parts of what a loop holds. Raises SpecError for what has no state that could be read and set."""
    parts: list[Part] = []
    for name, thing in things.items():
        if isinstance(thing, nn.Module):
            parts += _of_module(name, thing)
        elif hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict"):
            parts.append(Part(name, thing.state_dict, thing.load_state_dict))
        else:
            remedy = "give what has state_dict and load_state_dict: a model, an optimizer, a scheduler, a scaler"
            raise SpecError(f"standby: {name}", type(thing).__name__, remedy)
    layouts = [Buckets(wrapper) for wrapper in wrappers(things.values())]
    parts += [Part(f"buckets {at}", layout.read, layout.write) for at, layout in enumerate(layouts)]
    return [*parts, Part("random numbers", random_numbers, set_random_numbers)]


def _of_module(name: str, module: nn.Module) -> list[Part]:
    def parameters() -> dict[str, object]:
        return dict(module.named_parameters())

    def buffers() -> dict[str, object]:
        return dict(module.named_buffers())

    def gradients() -> dict[str, object]:
        return {
            key: placed(parameter.grad) for key, parameter in module.named_parameters() if parameter.grad is not None
        }

    def set_gradients(tree: Any) -> None:
        for key, parameter in module.named_parameters():
            parameter.grad = unplaced(tree.get(key), parameter)

    unreduced = UnreducedGradients(module)
    more = [Part(f"{name}: gradients not reduced", unreduced.read, unreduced.write)] if fsdp_groups(module) else []
    return [
        Part(f"{name}: parameters", parameters, _nothing),  # `put` has filled them in place
        Part(f"{name}: buffers", buffers, _nothing),
        Part(f"{name}: gradients", gradients, set_gradients),
        *more,
    ]


def _nothing(tree: object) -> None:
    pass


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of it."""
    here: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return here


def mapped(tree: object, change: Callable[[torch.Tensor], object]) -> object:
    """The tree with its tensors changed."""
    if isinstance(tree, torch.Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {key: mapped(inner, change) for key, inner in tree.items()}
    if _is_plain(tree):
        return type(tree)(mapped(inner, change) for inner in tree)
    return tree


def _is_plain(tree: object) -> TypeIs[list[object] | tuple[object, ...]]:
    """A list or a tuple, and none with a class of its own."""
    return type(tree) in (list, tuple)


def _into(now: object, tree: object) -> object:
    """`tree` with the tensors of `now`, filled with its values, wherever they fit."""
    if isinstance(tree, torch.Tensor):
        if isinstance(now, torch.Tensor) and local(now).shape == tree.shape and now.dtype == tree.dtype:
            with torch.no_grad():
                local(now).copy_(tree)
            return now
        return tree.clone()
    if isinstance(tree, Mapping):
        before = now if isinstance(now, Mapping) else {}
        return {key: _into(before.get(key), inner) for key, inner in tree.items()}
    if _is_plain(tree):
        beside = now if _is_plain(now) and len(now) == len(tree) else [None] * len(tree)
        return type(tree)(_into(inner, other) for inner, other in zip(beside, tree, strict=True))
    return tree


def unchanged(now: object, then: object) -> bool:
    """Whether a tree still holds what a copy of it does."""
    if isinstance(now, torch.Tensor) and isinstance(then, torch.Tensor):
        here = local(now).detach()
        return bool(here.shape == then.shape and here.dtype == then.dtype and torch.equal(here, then))
    if isinstance(now, Mapping) and isinstance(then, Mapping):
        return now.keys() == then.keys() and all(unchanged(inner, then[key]) for key, inner in now.items())
    if _is_plain(now) and _is_plain(then):
        return len(now) == len(then) and all(unchanged(inner, other) for inner, other in zip(now, then, strict=True))
    return digest(now) == digest(then)


def digest(tree: object) -> int:
    """A number that replicas agree in; different states may agree by chance only."""
    if isinstance(tree, torch.Tensor):
        flat = local(tree).detach().contiguous().reshape(-1).view(torch.uint8)
        if flat.numel() <= SMALL_BYTES:  # a generator that has drawn a few numbers has the same sums
            return zlib.crc32(flat.cpu().numpy().tobytes())
        whole = flat[: flat.numel() // 4 * 4].view(torch.int32)
        mixed = int(whole.sum(dtype=torch.int64)) * 31 + int(whole[::7].sum(dtype=torch.int64))
        rest = int(flat[int(whole.numel()) * 4 :].sum(dtype=torch.int64))
        return (mixed * 1_000_003 + rest + int(flat.numel())) & MASK
    if isinstance(tree, Mapping):
        return _joined([zlib.crc32(repr(key).encode()) ^ digest(inner) for key, inner in tree.items()])
    if _is_plain(tree):
        return _joined([digest(inner) for inner in tree])
    return zlib.crc32(repr(tree).encode())


def _joined(numbers: list[int]) -> int:
    value = len(numbers)
    for number in numbers:
        value = (value * 1_000_003 + number) & MASK
    return value


def random_numbers() -> dict[str, object]:
    """The states of the generators that scripts share."""
    states: dict[str, object] = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if "numpy" in sys.modules:
        states["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def set_random_numbers(states: Any) -> None:
    """Go on from these states."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    if "numpy" in states:
        sys.modules["numpy"].random.set_state(states["numpy"])
    if "cuda" in states:
        torch.cuda.set_rng_state_all(states["cuda"])
