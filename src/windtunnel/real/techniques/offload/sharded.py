"""FSDP2's own offloading, switched on for a model that is sharded already.

`fully_shard(..., offload_policy=CPUOffloadPolicy())` keeps shards, gradients and the optimizer's state on the host, and
copies a layer's shard to the device where it gathers it. A window of w layers is w gathers that are begun before the
layer that computes needs them, in forward and backward pass. Private names, checked on PyTorch 2.13; on a GPU not yet
run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule

from windtunnel.errors import SpecError


def host_shards(model: nn.Module, layers: Sequence[nn.Module], window: int) -> nn.Module:
    """The model itself. Raises SpecError where its first step is done, or its layers are not sharded one by one."""
    states = [module._get_fsdp_state() for module in model.modules() if isinstance(module, FSDPModule)]
    if any(state._is_root is not None for state in states):
        raise SpecError("model", type(model).__name__, "apply offload before the first step and the optimizer")
    sharded = [layer for layer in layers if isinstance(layer, FSDPModule)]
    if len(sharded) < len(layers):
        remedy = "fully_shard each layer, then the model: what is gathered at once cannot come layer by layer"
        raise SpecError("layers", f"{len(sharded)} of {len(layers)} are sharded", remedy)
    policy = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    for group in (group for state in states for group in state._fsdp_param_groups):
        group.offload_policy = policy
        for parameter in group.fsdp_params:
            parameter.offload_to_cpu, parameter.pin_memory = True, policy.pin_memory
    model.cpu()
    for at, layer in enumerate(sharded):
        layer.set_modules_to_forward_prefetch(sharded[at + 1 : at + 1 + window])
        layer.set_modules_to_backward_prefetch(sharded[max(0, at - window) : at][::-1])
    return model
