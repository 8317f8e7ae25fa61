"""What PyTorch's wrappers remember of a step that failed, and how they forget it. Private names, checked on 2.13.

`DistributedDataParallel._update_process_group` (made for elastic training) makes the reducer forget what it has reduced
and rebuild its buckets at the next step, on all ranks alike. `FSDPModule.reset_iter_state` shards parameters again and
drops what is under way, but not the gradients of whole parameters that a backward pass had computed and not reduced:
the next one would add to them. A `GradScaler` remembers per optimizer that gradients are unscaled, a pipeline's
schedule the losses of the micro-batches that were done.

Which gradients share a bucket of DistributedDataParallel, and in which order, decides the last bits of their sums: a
ring adds each chunk in another order of ranks. PyTorch lays them out anew once, at the first forward pass after the
first reduction. So the layout is state, which a replacement takes and which is put back.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler, _refresh_per_optimizer_state
from torch.distributed.fsdp import FSDPModule
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

MADE: WeakSet[nn.Module] = WeakSet()  # wrappers of a script that runs under the launcher
SCHEDULES: WeakSet[_PipelineSchedule] = WeakSet()  # and its pipelines
NUMBERS = count()


def remember_wrappers() -> None:
    """From now on each DistributedDataParallel and schedule is known, also where the script does not name it."""
    first, first_schedule = DistributedDataParallel.__init__, _PipelineSchedule.__init__

    def init(self: DistributedDataParallel, *arguments: object, **keywords: object) -> None:
        first(self, *arguments, **keywords)
        self.number_made = next(NUMBERS)
        MADE.add(self)

    def init_schedule(self: _PipelineSchedule, *arguments: object, **keywords: object) -> None:
        first_schedule(self, *arguments, **keywords)
        SCHEDULES.add(self)

    DistributedDataParallel.__init__ = init
    _PipelineSchedule.__init__ = init_schedule


def wrappers(things: Iterable[object]) -> list[DistributedDataParallel]:
    """Those inside these things, then the others in the order in which the script made them."""
    inside = [module for thing in things if isinstance(thing, nn.Module) for module in thing.modules()]
    every = [*inside, *sorted(MADE, key=lambda wrapper: wrapper.number_made)]
    return list(dict.fromkeys(module for module in every if isinstance(module, DistributedDataParallel)))


def forget_reductions(things: Iterable[object]) -> None:
    """Groups have new connections: all ranks lay out their buckets anew after their next reduction, as newcomers do."""
    for wrapper in wrappers(things):
        wrapper._update_process_group(wrapper.process_group)


def forget_step(things: Iterable[object]) -> None:
    """The step under way has failed: the next one starts clean."""
    for schedule in SCHEDULES:
        schedule._internal_losses.clear()
        for name in ("unshard_ops", "unsharded_stages"):  # schedules of several stages on a rank, sharded by FSDP
            if hasattr(schedule, name):
                getattr(schedule, name).clear()
    for thing in things:
        if isinstance(thing, nn.Module):
            for module in thing.modules():
                if isinstance(module, FSDPModule) and module._get_fsdp_state()._is_root:
                    module.reset_iter_state()
        elif isinstance(thing, GradScaler):
            thing._per_optimizer_states.clear()
            thing._per_optimizer_states.default_factory = _refresh_per_optimizer_state


def lay_buckets(things: Iterable[object]) -> None:
    """Lay buckets out anew where the next forward pass would: all ranks have done the call, so it is the same here."""
    for wrapper in wrappers(things):
        if wrapper.reducer._rebuild_buckets():
            wrapper._has_rebuilt_buckets = True


@dataclass
class UnreducedGradients:
    """Gradients that FSDP2 has computed and not reduced: of a step that failed, or added up over calls."""

    module: nn.Module

    def read(self) -> list[object]:
        """By parameter: of the whole one, and in the dtype of the reduction; by group what replicas have yet to add."""
        now: list[object] = []
        for group in fsdp_groups(self.module):
            for fsdp_param in group.fsdp_params:
                whole = getattr(fsdp_param, "_unsharded_param", None)  # there is none before the first forward pass
                now += [
                    placed(whole.grad if whole is not None else None),
                    placed(fsdp_param.unsharded_accumulated_grad),
                ]
            now.append(group._partial_reduce_output)
        return now

    def write(self, tree: object) -> None:
        """Those of a copy in place of those that are there."""
        assert isinstance(tree, list), "as read"
        gradients = iter(tree)
        for group in fsdp_groups(self.module):
            for fsdp_param in group.fsdp_params:
                whole = getattr(fsdp_param, "_unsharded_param", None)
                gradient, accumulated = next(gradients), next(gradients)
                if whole is not None:
                    whole.grad = unplaced(gradient, whole)
                    fsdp_param.unsharded_accumulated_grad = unplaced(accumulated, whole)
            group._partial_reduce_output = next(gradients)


def fsdp_groups(module: nn.Module) -> list[FSDPParamGroup]:
    """The groups of parameters of all FSDP2 modules inside."""
    inside = [inner for inner in module.modules() if isinstance(inner, FSDPModule)]
    return [group for inner in inside for group in inner._get_fsdp_state()._fsdp_param_groups]


def placed(gradient: torch.Tensor | None) -> list[object] | None:
    """A gradient with its placements, which need not be those of its parameter: a sum may be outstanding."""
    return None if gradient is None else [gradient, getattr(gradient, "placements", ())]


def unplaced(tree: object, parameter: torch.Tensor) -> torch.Tensor | None:
    """The gradient that was kept, of this parameter."""
    if tree is None:
        return None
    assert isinstance(tree, list), "as placed"
    gradient, placements = tree
    if placements:
        here = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        size = {"shape": parameter.shape, "stride": parameter.stride()}
        gradient = DTensor.from_local(here, parameter.device_mesh, placements, run_check=False, **size)
    return gradient


@dataclass
class Buckets:
    """The layout of one DistributedDataParallel: numbers of the parameters in each bucket."""

    module: DistributedDataParallel
    cached: tuple[object, bool, list[list[int]]] | None = None  # reading it costs a copy of all gradients

    def read(self) -> list[list[int]]:
        """As it is now."""
        reducer = self.module.reducer
        if self.cached is None or self.cached[:2] != (reducer, self.module._has_rebuilt_buckets):
            number = {id(parameter): at for at, parameter in enumerate(self.module._build_params_for_reducer()[0])}
            zeros = reducer._get_zeros_like_grad_buckets()
            layout = [[number[id(parameter)] for parameter in bucket.parameters()] for bucket in zeros]
            self.cached = reducer, self.module._has_rebuilt_buckets, layout
        return self.cached[2]

    def write(self, layout: object) -> None:
        """Another reducer where this is another layout, with what the old one had been told."""
        if layout == self.read():
            return
        assert isinstance(layout, list), "as read"
        module = self.module
        parameters, sparse = module._build_params_for_reducer()
        names = module._build_debug_param_to_name_mapping(parameters)
        module.reducer._remove_autograd_hooks()
        computed = dist._compute_bucket_assignment_by_size
        assignment = layout[::-1], [module.bucket_bytes_cap] * len(layout)  # the helper turns them round
        dist._compute_bucket_assignment_by_size = lambda *_: assignment
        try:
            module._ddp_init_helper(parameters, sparse, names, module.static_graph)
        finally:
            dist._compute_bucket_assignment_by_size = computed
        for hook, state in module._comm_hooks:
            dist._register_comm_hook(module.reducer, state, hook)
