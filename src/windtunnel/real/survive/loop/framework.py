"""What PyTorch's wrappers remember of a step that failed, and how they forget it. Private names, checked on 2.13.

`DistributedDataParallel._update_process_group` (made for elastic training) makes the reducer forget what it has reduced
and rebuild its buckets at the next step, on all ranks alike. `FSDPModule.reset_iter_state` shards parameters again and
drops what is under way. A `GradScaler` remembers per optimizer that gradients are unscaled.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.amp.grad_scaler import GradScaler, _refresh_per_optimizer_state
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel


def forget_step(things: Iterable[object]) -> None:
    """The step under way has failed: the next one starts clean."""
    for thing in things:
        if isinstance(thing, nn.Module):
            for module in thing.modules():
                if isinstance(module, DistributedDataParallel):
                    module._update_process_group(module.process_group)
                elif isinstance(module, FSDPModule) and module._get_fsdp_state()._is_root:
                    module.reset_iter_state()
        elif isinstance(thing, GradScaler):
            thing._per_optimizer_states.clear()
            thing._per_optimizer_states.default_factory = _refresh_per_optimizer_state
