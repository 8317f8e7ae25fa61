"""`offload.apply`: what is asked for is checked, the layers are found, and a window is chosen where none is given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from windtunnel.errors import SpecError
from windtunnel.questions.typed import check
from windtunnel.real.techniques.offload.hosted import WINDOWS, host
from windtunnel.real.techniques.offload.sharded import host_shards
from windtunnel.real.techniques.offload.windowed import AWAY, LayerWindow, MakeOptimizer, owned
from windtunnel.units import parse_bytes

MOMENTS = 2  # of Adam, taken when a window is chosen before there is any state


@overload
def apply(
    model: nn.Module,
    optimizer: None = None,
    *,
    window: int | Literal["auto"] = "auto",
    device_memory: int | str | None = None,
    layers: Sequence[nn.Module] | None = None,
    link_bytes_per_s: float | None = None,
    device: str | torch.device | None = None,
) -> nn.Module: ...


@overload
def apply(
    model: nn.Module,
    optimizer: MakeOptimizer,
    *,
    window: int | Literal["auto"] = "auto",
    device_memory: int | str | None = None,
    layers: Sequence[nn.Module] | None = None,
    updaters: int = 1,
    link_bytes_per_s: float | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> LayerWindow: ...


def apply(
    model: nn.Module,
    optimizer: MakeOptimizer | None = None,
    *,
    window: int | Literal["auto"] = "auto",
    device_memory: int | str | None = None,
    layers: Sequence[nn.Module] | None = None,
    updaters: int = 1,
    link_bytes_per_s: float | None = None,
    process_group: dist.ProcessGroup | None = None,
    device: str | torch.device | None = None,
) -> LayerWindow | nn.Module:
    """Keep a window of the model's layers on the device.

    Without `optimizer` it gives back the model, to be used as ever (`hosted`): parameters are on the host, copies of
    the layer that computes and of `window` more on `device` (where the model was). DistributedDataParallel and the
    optimizer are made of it afterwards; auto is as many as `device_memory` holds, else one. A model that `fully_shard`
    has sharded, layer by layer, gets FSDP2's own offloading (`sharded`).

    With it, layers are updated in the backward pass: `optimizer` makes an optimizer of a list of parameters: one for
    each layer that is away, one for the rest. `layers`: in the order in which they run; left out, the largest
    `nn.ModuleList` or `nn.Sequential`. `window`: layers that stay; auto: as many as `device_memory` (bytes, or "8 GiB")
    holds with parameters, gradients and two moments each.
    `link_bytes_per_s` throttles copies, to try out a slower link. `process_group`: ranks that train the same model on
    their own data; its collectives run in the thread of the backward pass, so all ranks need the same layers in the
    same order. Raises SpecError.
    """
    check(
        locals(),
        window=int | Literal["auto"],
        device_memory=int | str | None,
        updaters=int,
        link_bytes_per_s=float | None,
    )
    if not isinstance(model, nn.Module):
        raise SpecError("model", model, "give a torch.nn.Module")
    sharded = next((name for name, p in model.named_parameters() if hasattr(p, "device_mesh")), None)
    if sharded is not None and (optimizer is not None or not isinstance(model, FSDPModule)):
        remedy = "give a model that is not sharded, or one that fully_shard has sharded without an optimizer"
        raise SpecError("model", f"{sharded}, a DTensor", remedy)
    if isinstance(model, nn.parallel.DistributedDataParallel):
        remedy = "give the module inside, before DistributedDataParallel, or its ranks as process_group"
        raise SpecError("model", type(model).__name__, remedy)
    if isinstance(model, torch._dynamo.OptimizedModule):
        raise SpecError("model", type(model).__name__, "give the model before torch.compile")
    all_layers = list(layers) if layers is not None else _layers_of(model)
    if len(all_layers) < 2:
        raise SpecError(
            "layers", len(all_layers), "give the module's layers, two or more, in the order in which they run"
        )
    if optimizer is None and (process_group is not None or updaters != 1):
        raise SpecError(
            "optimizer", None, "process_group and updaters are of layers that are updated in the backward pass"
        )
    if model in WINDOWS or any(layer in AWAY for layer in all_layers):
        raise SpecError("model", type(model).__name__, "it has a window already: close() that one first")
    if updaters < 1:
        raise SpecError("updaters", updaters, "give 1 or more")
    budget = None if device_memory is None else parse_bytes(device_memory, "device_memory")
    if optimizer is None:
        if isinstance(window, int) and not 1 <= window < len(all_layers):
            raise SpecError("window", window, f"give 1 to {len(all_layers) - 1}, layers beside the one that computes")
        if sharded is not None:
            return host_shards(model, all_layers, 1 if window == "auto" else window)
        where = torch.device(device) if device is not None else next(model.parameters()).device
        return host(model, all_layers, owned(model, all_layers), window, budget, where, link_bytes_per_s)
    if window == "auto":
        if budget is None:
            raise SpecError("device_memory", None, "a window by formula needs a budget, e.g. '8 GiB'")
        window = chosen_window(model, all_layers, budget)
    if not 1 <= window <= len(all_layers):
        raise SpecError("window", window, f"give 1 to {len(all_layers)}, the number of layers")
    return LayerWindow(model, all_layers, optimizer, window, updaters, link_bytes_per_s, process_group)


def predicted_peak(model: nn.Module, layers: Sequence[nn.Module], window: int) -> int:
    """Bytes of parameters, gradients and moments on the device at the peak, without activations.

    What stays: four times its parameters. What comes and goes: in the backward pass a layer, the window of w more that
    has been asked for, and two layers' gradients, one being made and one being copied out.
    """
    own = owned(model, layers)
    sizes = [sum(p.nbytes for p in group) for group in own]
    rest: int = sum(p.nbytes for p in model.parameters()) - sum(sizes)
    away = len(layers) - window
    stays: int = (2 + MOMENTS) * (rest + sum(sizes[away:]))
    largest_first = sorted(sizes[:away], reverse=True)
    moving: int = sum(largest_first[: window + 1]) + sum(largest_first[:2])
    return stays + moving


def chosen_window(model: nn.Module, layers: Sequence[nn.Module], budget: int) -> int:
    """The largest window whose predicted peak fits. Raises SpecError where not even one layer does."""
    fitting = [w for w in range(1, len(layers) + 1) if predicted_peak(model, layers, w) <= budget]
    if not fitting:
        least = predicted_peak(model, layers, 1)
        raise SpecError("device_memory", budget, f"a window of one layer needs {least} bytes")
    return max(fitting)


def _layers_of(model: nn.Module) -> list[nn.Module]:
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    return max(lists, key=len, default=[])
