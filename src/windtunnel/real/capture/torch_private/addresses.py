"""Addresses that programs look at, and that fake tensors have not. Private names of torch, tried on 2.13.

- `DistributedDataParallel(find_unused_parameters=True)` counts in C++, in a tensor whose address it looks at, which
  parameters were used: it gets a real one, and what it does with that is done. With `static_graph=True` the first
  step copies it.
- `tensor.data_ptr()` is refused, and programs use it to tell tensors apart (FSDP of the first version, flat buffers):
  the address of the storage's description stands in for that of its data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakSet

from windtunnel.real.capture.replacements import Replacements
from windtunnel.real.capture.torch_private.distributed import outside_modes

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from windtunnel.real.operator_call import Arguments, Keywords


_used_maps: WeakSet[object] = WeakSet()  # storages in which DDP counts the parameters that were used


def is_used_map(tensor: object) -> bool:
    """Whether DDP counts in it which parameters were used."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.dtype is not torch.int32:
        return False
    return tensor.untyped_storage() in _used_maps


def addresses_looked_at() -> Replacements:
    """What DDP, FSDP of the first version and who saves need of addresses, which fake tensors have not."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.distributed.fsdp import _flat_param
    from torch.utils._python_dispatch import TorchDispatchMode

    class UsedMap(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: OpOverload, types: object, args: Arguments = (), kwargs: Keywords | None = None
        ) -> object:
            kwargs = kwargs or {}
            if func is torch.ops.aten.zeros.default and kwargs.get("dtype") == torch.int32:
                with outside_modes():
                    used = func(*args, **{**kwargs, "pin_memory": False})
                _used_maps.add(used.untyped_storage())
                return used
            if func is torch.ops.aten.empty_strided.default and kwargs.get("pin_memory"):  # its copy, for the GPU
                with outside_modes():
                    return func(*args, **{**kwargs, "pin_memory": False})
            return func is torch.ops.aten.is_pinned.default or func(*args, **kwargs)

    real_address = torch.Tensor.data_ptr

    def address(self: torch.Tensor) -> int:
        storage = self.untyped_storage()
        # Of another class may be a parameter that was loaded and moved: its `data` is fake.
        if not isinstance(self, FakeTensor) and storage.device.type != "meta":
            return int(real_address(self))
        return int(storage._cdata) + self.storage_offset() * self.element_size() if storage.nbytes() else 0

    real_storage_address = torch.UntypedStorage.data_ptr

    def storage_address(self: torch.UntypedStorage) -> int:
        if self.device.type != "meta":
            return int(real_storage_address(self))
        return int(self._cdata) if self.nbytes() else 0

    begin: Callable[..., None] = dist.Reducer.__init__
    make_static: Callable[[dist.Reducer], None] = dist.Reducer._set_static_graph
    exchange_late: Callable[[dist.Reducer], None] = dist.Reducer._delay_all_reduce

    def set_static_graph(self: dist.Reducer) -> None:
        with UsedMap():
            make_static(self)

    def delay_all_reduce(self: dist.Reducer) -> None:
        with UsedMap():
            exchange_late(self)

    def reducer(self: dist.Reducer, *args: object, **kwargs: object) -> None:
        with UsedMap():
            begin(self, *args, **kwargs)

    def same_storage(tensor: torch.Tensor, other: torch.Tensor) -> bool:
        return bool(tensor.untyped_storage()._cdata == other.untyped_storage()._cdata)

    return Replacements(
        (dist.Reducer, "__init__", reducer),
        (dist.Reducer, "_set_static_graph", set_static_graph),
        (dist.Reducer, "_delay_all_reduce", delay_all_reduce),
        (_flat_param, "_same_storage", same_storage),
        (torch.Tensor, "data_ptr", address),
        (torch.UntypedStorage, "data_ptr", storage_address),  # safetensors asks which tensors share one
    )
