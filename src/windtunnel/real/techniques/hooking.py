"""One line in a user's script: a communication hook on the DistributedDataParallel that they have, or its place."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from windtunnel.errors import SpecError

Hook = Callable[..., torch.futures.Future[torch.Tensor]]


def require_bare(model: object) -> DistributedDataParallel:
    """The model, which is DistributedDataParallel's and has no hook yet. Raises SpecError."""
    if not isinstance(model, DistributedDataParallel):
        raise SpecError("model", type(model).__name__, "give the DistributedDataParallel that reduces its gradients")
    if model._comm_hooks:
        raise SpecError("model", "a communication hook", "it has one already, and there is room for one")
    return model


def world_of(model: DistributedDataParallel) -> int:
    """Ranks that it reduces over."""
    size: int = dist.get_world_size(model.process_group)
    return size


def begin_alike(model: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Parameters and buffers of the group's first rank, on all."""
    first = 0 if group is None else dist.get_global_rank(group, 0)
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), first, group=group)
