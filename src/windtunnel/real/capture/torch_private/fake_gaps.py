"""Where a fake tensor does not do what a real one does, and programs notice. Private names of torch, tried on 2.13.

- `parameter.data = parameter.to("cuda")` moves a real tensor; a fake one goes on naming its first device
  (`fake_device`), and one that was read from a file by C or Rust is real until then: a tensor on 'meta' came of it.
- `torch.tensor([loss, norm])` reads the elements in C++, under no dispatch mode: here Python reads them, as a sync
  each.
- `torch.asarray(storage)` (safetensors) sets a fake tensor's storage to a real one, which is refused.
- `copy.deepcopy(tensor)` copies a storage, which has no data, and a known value, which is real.
- `pickle.dump(tensor)` writes down the mode that made it, and with it what nobody can write down. A real one that
  `pickle.load` reads lies on 'meta' in a fake mode.
- DTensor reads and sets the state of the random numbers around each op that draws some.
- `generator.set_state(tensor)` reads bytes in C++, which a state that was sent round has not: it stays as it is.
- `tensor.tolist()` reads a fake tensor one element at a time, a dispatch each: a sampler shuffles a million indices
  that way.
- `f"{loss:.3f}"` asks plain tensors only for their value.
- A class of parameters (`class Shard(nn.Parameter)`) that is given a tensor of another class than torch's own gives
  that tensor back, without the class and its methods; `as_subclass` is refused.
- Shapes are found in Python, which makes its tensors by `torch.empty` and its like: a script may have put its own there
  (nanotron's makes all on the GPU), which no kernel of a real run would call.
- `storage[a:b]` is refused, as what `meta` storages hold cannot be read: flat buffers are cut so (nanotron). A tensor
  that is set to the part is one on `meta`, on which alone a fake tensor's storage lies.
- Memory of the CPU is one, whatever its number: `cpu:0` is `cpu` to an allocator, and another device to fake tensors.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

from windtunnel.real.capture.replacements import Replacements
from windtunnel.real.capture.torch_private.distributed import outside_modes, set_known_value

if TYPE_CHECKING:
    from types import GetSetDescriptorType

    import torch
    from torch.distributed.tensor._random import OffsetBasedRNGTracker


_KERNELS = ("torch._prims", "torch._refs", "torch._decomp", "torch._meta_registrations", "torch._subclasses")
FEW = 4096  # elements that are read one by one: each may have a value that is known


def data_that_moves() -> Replacements:
    """Assigning `.data` takes the device along; a real tensor that is given fake data becomes fake."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    data: GetSetDescriptorType = torch._C.TensorBase.__dict__["data"]

    def assign(self: torch.Tensor, new: torch.Tensor) -> None:
        if isinstance(new, FakeTensor) and type(self) in (torch.Tensor, torch.nn.Parameter):
            is_parameter = isinstance(self, torch.nn.Parameter)
            fake = new.detach().requires_grad_(self.requires_grad)
            torch._C._swap_tensor_impl(self, fake)
            self.__class__ = FakeTensor
            vars(self).update(vars(fake), **({"_is_param": True} if is_parameter else {}))
            return
        data.__set__(self, new)
        if isinstance(new, FakeTensor):
            self.fake_device = new.fake_device

    return Replacements((torch.Tensor, "data", property(data.__get__, assign)))


def lists_of_fakes() -> Replacements:
    """`tolist()` of many elements asks for one, and says it of all."""
    from torch._subclasses.fake_tensor import FakeTensor

    one_by_one = FakeTensor.tolist

    def tolist(self: torch.Tensor) -> object:
        if self.numel() <= FEW:
            return one_by_one(self)
        if self.constant is not None:
            return self.constant.tolist()
        number = self.detach().reshape(-1)[:1].sum().item()
        nested: object = number
        for size in reversed(self.shape):
            nested = [nested] * size if not isinstance(nested, list) else [list(nested) for _ in range(size)]
        return nested

    return Replacements((FakeTensor, "tolist", tolist))


def parameters_by_their_class() -> Replacements:
    """`type(parameter)(data, requires_grad=...)` gives a parameter: so accelerate puts loaded weights into a model."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    otherwise = FakeTensor.__new__

    def new(cls: type, *args: object, **kwargs: bool) -> torch.Tensor:
        if len(args) == 1 and isinstance(args[0], torch.Tensor) and kwargs.keys() <= {"requires_grad"}:
            return torch.nn.Parameter(args[0], kwargs.get("requires_grad", True))
        return otherwise(cls, *args, **kwargs)

    return Replacements((FakeTensor, "__new__", staticmethod(new)))


def texts_of_fakes() -> Replacements:
    """Formatting a tensor of one element reads it."""
    from torch._subclasses.fake_tensor import FakeTensor

    otherwise = FakeTensor.__format__

    def formatted(self: torch.Tensor, spec: str) -> str:
        if self.dim() == 0 and not self.is_meta:
            return str(self.detach().item().__format__(spec))
        return str(otherwise(self, spec))

    return Replacements((FakeTensor, "__format__", formatted))


def one_cpu() -> Replacements:
    """No tensor is on `cpu:0`."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    otherwise = FakeTensor._normalize_fake_device

    def normalised(device: torch.device) -> object:
        return torch.device("cpu") if device.type == "cpu" else otherwise(device)

    return Replacements((FakeTensor, "_normalize_fake_device", staticmethod(normalised)))


@contextmanager
def tensors_of_fakes() -> Iterator[None]:
    """`torch.tensor` takes lists that hold fake tensors."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    make = torch.tensor

    def holds(data: object) -> bool:
        return isinstance(data, FakeTensor) or (isinstance(data, list | tuple) and any(holds(part) for part in data))

    def read(data: object) -> object:
        if isinstance(data, FakeTensor):
            return data.tolist()
        return [read(part) for part in data] if isinstance(data, list | tuple) else data

    @functools.wraps(make)
    def tensor(data: object, *args: object, **kwargs: object) -> torch.Tensor:
        if isinstance(data, list | tuple) and holds(data):
            data = read(data)
        device = kwargs.get("device")
        # C++ asks a guard for the number, and ours is the same for all.
        if device is not None and str(device) == "cuda":
            kwargs["device"] = torch.device("cuda", torch.cuda.current_device())
        return make(data, *args, **kwargs)

    builtins = torch.jit._builtins._get_builtin_table()  # private: by identity, what TorchScript takes for which op
    builtins[id(tensor)] = "aten::tensor"
    try:
        with Replacements((torch, "tensor", tensor)):
            yield
    finally:
        del builtins[id(tensor)]


def storages_read() -> Replacements:
    """`torch.asarray` of a storage, which holds data, is a real tensor, as what C reads from a file is."""
    import torch

    make = torch.asarray

    @functools.wraps(make)
    def asarray(obj: object, *args: object, **kwargs: object) -> torch.Tensor:
        if isinstance(obj, torch.UntypedStorage) and obj.device.type == "cpu":
            with outside_modes():
                return make(obj, *args, **kwargs)
        return make(obj, *args, **kwargs)

    return Replacements((torch, "asarray", asarray))


def copies_of_fakes() -> Replacements:
    """`copy.deepcopy` of a fake tensor gives one of its own storage, known value and gradient included."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    def deepcopy(self: torch.Tensor, memo: dict[int, object]) -> torch.Tensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user support the deepcopy protocol at the moment"
            )
        with torch.no_grad():
            clone = self.clone()
        if isinstance(self, torch.nn.Parameter):
            of = torch.nn.Parameter if type(self) is FakeTensor else type(self)
            clone = of(clone, requires_grad=self.requires_grad)
        elif self.requires_grad:
            clone.requires_grad_()
        if self.constant is not None and clone.constant is None:
            with outside_modes():
                value = self.constant.clone()
            set_known_value(clone, value)
        memo[id(self)] = clone
        if self.grad is not None:
            clone.grad = deepcopy(self.grad, memo)
        return clone

    return Replacements((FakeTensor, "__deepcopy__", deepcopy))


def parts_of_storages() -> Replacements:
    """A part of a storage shares it, and a tensor that is set to a storage is where the storage's tensors are."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    from windtunnel.real.capture.torch_private import factories as plain

    storage_of, item, set_to = torch.Tensor.untyped_storage, torch.UntypedStorage.__getitem__, torch.Tensor.set_

    class Part(torch.UntypedStorage):  # type: ignore[misc]
        whole: torch.UntypedStorage
        begin: int  # byte

    def untyped_storage(self: torch.Tensor) -> torch.UntypedStorage:
        storage = storage_of(self)
        storage.fake_device = self.fake_device
        return storage

    def part(self: torch.UntypedStorage, where: slice | int) -> object:
        if self.device.type != "meta" or not isinstance(where, slice):
            return item(self, where)
        begin, end, step = where.indices(self.nbytes())
        if step != 1:
            raise RuntimeError(f"Trying to slice with a step of {step}, but only a step of 1 is supported")
        with outside_modes():
            storage = Part(max(0, end - begin), device="meta")
        storage.whole, storage.begin = getattr(self, "whole", self), getattr(self, "begin", 0) + begin
        return storage

    def set_(
        self: torch.Tensor,
        source: torch.UntypedStorage | None = None,
        storage_offset: int = 0,
        size: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
    ) -> torch.Tensor:
        whole = getattr(source, "whole", source)
        device = getattr(whole, "fake_device", None)
        if source is None or device is None or (whole is source and device == self.fake_device):
            place = () if size is None else (storage_offset, size) if stride is None else (storage_offset, size, stride)
            return set_to(self, *(() if source is None else (source,)), *place)  # torch's own way, as its internals go
        size = (source.nbytes() // self.itemsize,) if size is None else tuple(size)
        stride = plain.empty(size, device="meta").stride() if stride is None else tuple(stride)
        begin = getattr(source, "begin", 0) // self.itemsize + storage_offset
        view = plain.empty(0, dtype=self.dtype, device=device)
        set_to(view, whole, begin, size, stride)
        torch._C._swap_tensor_impl(self, view)
        vars(self).update(vars(view))
        return self

    return Replacements(
        (FakeTensor, "untyped_storage", untyped_storage),
        (torch.UntypedStorage, "__getitem__", part),
        (FakeTensor, "set_", set_),
    )


def factories_of_kernels() -> Replacements:
    """PyTorch's kernels in Python know `torch` as it is now, whatever a script puts into it later."""
    import torch

    class AsItIs(ModuleType):
        def __getattr__(self, name: str) -> object:
            return getattr(torch, name)

    own = AsItIs("torch")
    vars(own).update(vars(torch))
    modules = [
        module
        for name, module in sys.modules.items()
        if name.startswith(_KERNELS) and vars(module).get("torch") is torch
    ]
    return Replacements(*((module, "torch", own) for module in modules))


def parameters_of_other_classes() -> Replacements:
    """What a class derived from `nn.Parameter` makes of a fake tensor is of that class, and fake; any `as_subclass`."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    from windtunnel.real.capture.torch_private import factories as plain

    make = torch.nn.Parameter.__new__

    @functools.cache
    def fake_of(of: type) -> type:
        def new(_: type, *args: object, **kwargs: object) -> object:
            return of.__new__(of, *args, **kwargs)

        begin = next(vars(base)["__init__"] for base in of.__mro__ if "__init__" in vars(base))
        content = {"__new__": new, "__init__": begin}  # that of a fake tensor passes nothing on
        return type(of)(of.__name__, (FakeTensor, of), content | {"__module__": of.__module__})

    def of_class(tensor: torch.Tensor, of: type) -> torch.Tensor:
        """The same tensor, of another class, whose objects may lie otherwise (`__slots__`)."""
        with outside_modes():
            result = torch.Tensor._make_subclass(fake_of(of), plain.empty(0, device="meta"))
        torch._C._swap_tensor_impl(result, tensor)
        vars(result).update(vars(tensor))
        return result

    def parameter(of: type, data: torch.Tensor | None = None, requires_grad: bool = True) -> torch.Tensor:
        if isinstance(data, FakeTensor) and type(data) is not FakeTensor:
            data = data.detach()  # `module.to(...)` makes one of each fake parameter; of a real one it sets the data
        tensor = make(of, data, requires_grad)
        return of_class(tensor, of) if of is not torch.nn.Parameter and type(tensor) is FakeTensor else tensor

    as_subclass = torch.Tensor.as_subclass

    def fake_as_subclass(self: torch.Tensor, of: type) -> torch.Tensor:
        if issubclass(type(self), of):
            return as_subclass(self, of)
        return of_class(torch.ops.aten.alias.default(self), of)

    return Replacements(
        (torch.nn.Parameter, "__new__", staticmethod(parameter)), (FakeTensor, "as_subclass", fake_as_subclass)
    )


def pickles_of_fakes() -> Replacements:
    """A fake tensor is pickled as its shape, and as its known value where it is one number.

    A real one that comes out of a file of its own (a data set that was kept) is on the device it was on: a fake mode
    forgets which, and on "meta" nobody records what is done with it.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    def reduce(self: torch.Tensor, _protocol: int) -> object:
        with outside_modes():
            value = None if self.constant is None else self.constant.tolist()
        return _unpickled, (
            tuple(self.shape), self.stride(), self.dtype, str(self.device), self.requires_grad,
            isinstance(self, torch.nn.Parameter), value,
        )  # fmt: skip

    from_bytes = torch.storage._load_from_bytes

    def load(data: bytes) -> torch.TypedStorage | torch.UntypedStorage:
        storage = from_bytes(data)
        untyped = storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage
        if untyped.device.type == "meta" and untyped._fake_device is None:
            untyped._fake_device = _place_of(data)
        return storage

    return Replacements((FakeTensor, "__reduce_ex__", reduce), (torch.storage, "_load_from_bytes", load))


def _place_of(data: bytes) -> str:
    """The device of a storage that `torch.save` wrote in its old form."""
    places: list[str] = []

    class Reader(pickle.Unpickler):
        def persistent_load(self, saved: Sequence[object]) -> None:
            places.append(str(saved[3]))

    stream = io.BytesIO(data)
    for _ in ("magic number", "version", "system", "storage"):
        Reader(stream).load()
    return places[0]


def _unpickled(
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: str,
    requires_grad: bool,
    is_parameter: bool,
    value: float | None,
) -> torch.Tensor:
    import torch

    if value is not None:
        return torch.tensor(value, dtype=dtype, device=device)
    tensor = torch.empty_strided(shape, stride, dtype=dtype, device=device)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


def random_states() -> Replacements:
    """The state of a generator is not set to a tensor without data: nobody sees the numbers."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    class AsBefore(type(torch.Generator)):  # type: ignore[misc]
        def __instancecheck__(cls, thing: object) -> bool:
            return isinstance(thing, torch._C.Generator)

    class Generator(torch.Generator, metaclass=AsBefore):  # type: ignore[misc]
        def set_state(self, state: torch.Tensor) -> torch.Generator:
            return self if isinstance(state, FakeTensor) else super().set_state(state)

    set_for_all = torch.set_rng_state

    def set_rng_state(new_state: torch.Tensor) -> None:
        if not isinstance(new_state, FakeTensor):
            set_for_all(new_state)

    return Replacements(
        (torch, "Generator", Generator),
        (torch, "set_rng_state", set_rng_state),
        (torch.random, "set_rng_state", set_rng_state),
    )


def random_dtensors() -> Replacements:
    """DTensor leaves the state of the random numbers alone: nobody sees the numbers."""
    import torch
    from torch.distributed.tensor import _random

    @contextmanager
    def region(self: object, *_: object, **__: object) -> Iterator[None]:
        yield

    def state(self: OffsetBasedRNGTracker) -> torch.Tensor:
        from windtunnel.real.capture.torch_private import factories as plain

        return plain.zeros(16, dtype=torch.uint8, device=self._device)

    return Replacements(
        (_random.OffsetBasedRNGTracker, "_distribute_region", region),
        (_random.OffsetBasedRNGTracker, "_get_device_state", state),
        (_random.OffsetBasedRNGTracker, "_set_device_state", lambda self, state: None),
    )
