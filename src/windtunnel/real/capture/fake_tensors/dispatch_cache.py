"""Repeats what the fake-tensor mode answered, without asking it again: most ops of a training step are repeats.

PyTorch's own cache spends most of an op's time on its key. Here a call is looked up by op, scalars, and shape,
strides, offset, dtype and device of each tensor; an entry says for each output whether it is one of the inputs, a
view of one, or new. Only calls that PyTorch itself would cache are kept, and what is new or different goes the
ordinary way, so the outputs are those of the mode (a test holds the two against each other).

What else follows from the key alone (specs, FLOPs, bytes) is found once and kept with the entry, as its `note`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from windtunnel.real.capture.torch_private import recorder as compat
from windtunnel.real.capture.torch_private.distributed import fake_tensor_class

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    from windtunnel.real.operator_call import Arguments, Keywords

_NO_TENSORS = (
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_enter.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
)
_WITHOUT = frozenset(map(id, _NO_TENSORS))  # by identity: the hash of an op is a Python function
_PLAIN = frozenset(
    (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
)  # arguments that are their own key
_SLICE, _SELECT = torch.ops.aten.slice.Tensor, torch.ops.aten.select.int
_LIFT = torch.ops.aten.lift_fresh.default
# Real kernels write the loss of each element, and the mean into the same storage, which stays as large.
_IN_PLACE_MEANS = frozenset(
    id(getattr(torch.ops.aten, f"{name}_loss").default) for name in ("mse", "smooth_l1", "soft_margin")
) | {id(torch.ops.aten.binary_cross_entropy.default)}
_default_dtype, _inference = torch.get_default_dtype, torch.is_inference_mode_enabled


class _Output(NamedTuple):
    """How one output comes about."""

    same_as: int  # flat position of the input that it is; -1
    view_of: int  # of the input whose storage it lies on; -1: its own
    shape: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    offset: int = 0
    dtype: torch.dtype = None
    attributes: Any = None  # what the fake tensor carries; None: a value that is no tensor
    device: torch.device = None
    constant: object = None  # that value


class Entry:
    """What a call gives."""

    __slots__ = ("container", "note", "outputs")

    def __init__(self, container: type | None, outputs: tuple[_Output, ...]) -> None:
        self.container = container  # list or tuple; None: a single output
        self.outputs = outputs
        self.note: Any = None  # whoever runs the call may keep here what follows from its key


class _NotKept(Exception):  # noqa: N818 - says that a call goes the ordinary way
    pass


class FastFakes:
    """For one fake-tensor mode, which is on."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._aside = compat.set_aside(mode)
        compat.keep_no_calls(mode)  # they are kept here
        self._fake: type[FakeTensor] = fake_tensor_class()
        self._entries: dict[tuple[object, ...], Entry | None] = {}
        self._ops: dict[int, object] = {}  # those with entries, so that their identities stay theirs
        self._attributes: dict[torch.device, dict[str, object]] = {}  # by device
        self.entry: Entry | None = None  # of the last call, if it is kept
        self._taken: list[torch.Tensor] = []

    def take_inputs(self) -> list[torch.Tensor]:
        """The tensors that the last call took, in the order of its arguments, where it is kept. To be asked for once:
        what is held here longer than the call is freed late.
        """
        tensors, self._taken = self._taken, []
        return tensors

    def forget(self) -> None:
        """What "cuda" means has changed: another device is the current one."""
        self._entries.clear()

    def run(self, func: Callable[..., object], types: object, args: Arguments, kwargs: Keywords) -> object:
        """What `func(*args, **kwargs)` gives under the mode."""
        self.entry = None
        if id(func) in _WITHOUT:
            with self._aside:
                return func(*args, **kwargs)
        if func is _SLICE and (view := self._slice(*args, **kwargs)) is not None:
            return view
        if func is _SELECT and (view := self._select(*args, **kwargs)) is not None:
            return view
        if func is _LIFT and (lifted := self._lift(*args)) is not None:
            return lifted
        parts: list[object] = [id(func), _default_dtype(), _inference()]
        tensors: list[torch.Tensor] = []
        try:
            self._describe(args, parts, tensors)
            if kwargs:
                parts.extend(kwargs)
                self._describe(kwargs.values(), parts, tensors)
            key = tuple(parts)
            entry: Any = self._entries.get(key, self)  # self: never met
        except (_NotKept, TypeError):
            return self._ordinary(func, types, args, kwargs)
        if entry is None:
            return self._ordinary(func, types, args, kwargs)
        if entry is self:
            self._ops[id(func)] = func
            out = self._ordinary(func, types, args, kwargs)
            entry = self._entries[key] = self._learnt(func, args, kwargs, tensors, out)
            self.entry, self._taken = entry, tensors
            return out
        out = self._repeat(entry, tensors)
        self.entry, self._taken = entry, tensors
        return out

    def _ordinary(self, func: OpOverload, types: object, args: Arguments, kwargs: Keywords) -> object:
        with self._aside:
            out = self._mode.dispatch(func, types, args, kwargs)
            if id(func) in _IN_PLACE_MEANS and not out.shape:
                terms = torch.broadcast_shapes(args[0].shape, args[1].shape)
                out.untyped_storage().resize_(math.prod(terms) * out.element_size())
            return out

    def _slice(
        self, tensor: FakeTensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
    ) -> torch.Tensor | None:
        """A slice at once, as each lies elsewhere: shards of a flat buffer are one for each rank and parameter.

        None: it goes the ordinary way.
        """
        shape, attributes = tensor.shape, self._of_a_view(tensor)
        numbers = (dim, 0 if start is None else start, sys.maxsize if end is None else end, step, *shape)
        if attributes is None or not all(type(number) is int for number in numbers):
            return None
        at, first, last, by = numbers[:4]
        if not -len(shape) <= at < len(shape) or by < 1:
            return None
        first, last, _ = slice(first, last).indices(shape[at])
        lengths, stride = list(shape), list(tensor.stride())
        offset = tensor.storage_offset() + first * stride[at]
        lengths[at] = max(0, last - first + by - 1) // by
        stride[at] *= by
        return self._view(tensor, offset, lengths, stride, attributes)

    def _select(self, tensor: FakeTensor, dim: int, index: int) -> torch.Tensor | None:
        """A row or a column at once: a script that lays its ranks out in a grid takes each of them.

        None: it goes the ordinary way.
        """
        shape, attributes = tensor.shape, self._of_a_view(tensor)
        if attributes is None or not all(type(number) is int for number in (dim, index, *shape)):
            return None
        if not -len(shape) <= dim < len(shape) or not -shape[dim] <= index < shape[dim]:
            return None
        lengths, stride = list(shape), list(tensor.stride())
        offset = tensor.storage_offset() + index % lengths.pop(dim) * stride.pop(dim)
        return self._view(tensor, offset, lengths, stride, attributes)

    def _of_a_view(self, tensor: FakeTensor) -> dict[str, object] | None:
        """What a view of the tensor carries; None where the mode itself has to make it."""
        if type(tensor) is not self._fake or tensor.constant is not None or tensor.fake_mode is not self._mode:
            return None
        if tensor.layout is not torch.strided or tensor.dtype.is_complex or tensor.is_quantized:
            return None
        return self._attributes.get(tensor._fake_device)

    def _view(
        self, tensor: FakeTensor, offset: int, shape: list[int], stride: list[int], attributes: dict[str, object]
    ) -> torch.Tensor:
        with self._aside:
            element = compat.meta_view(tensor.untyped_storage(), offset, tuple(shape), tuple(stride), tensor.dtype)
            return compat.made_fake(self._fake, element, tensor._fake_device, attributes)

    def _lift(self, real: torch.Tensor) -> torch.Tensor | None:
        """`torch.tensor` of several numbers at once: a script that reads its text makes one of every line.

        None: it goes the ordinary way, as does a single number, whose value the mode keeps.
        """
        if type(real) is not torch.Tensor or real.layout is not torch.strided or real.numel() < 2:
            return None
        if real.requires_grad or real.dtype.is_complex or real.is_quantized or not real.is_contiguous():
            return None
        device, shape = real.device, tuple(real.shape)
        if device.type != "cpu" or real.untyped_storage().nbytes() != real.numel() * real.element_size():
            return None
        attributes = self._attributes.get(device)
        if attributes is None:
            fake = self._ordinary(_LIFT, (), (real,), {})
            self._attributes[device] = compat.attributes_of_a_fake(fake)
            return fake
        with self._aside:
            element = compat.meta_tensor(shape, real.stride(), real.dtype)
            return compat.made_fake(self._fake, element, device, attributes)

    def _describe(self, values: Any, parts: list[object], tensors: list[torch.Tensor]) -> None:
        fake, mode = self._fake, self._mode
        for value in values:
            kind = type(value)
            if kind is fake:
                if value.constant is not None or value.fake_mode is not mode:
                    raise _NotKept
                parts += (value.shape, value.stride(), value.storage_offset(), value.dtype, value._fake_device)
                tensors.append(value)
            elif kind in _PLAIN:
                parts += (kind, value)
            elif kind is list or kind is tuple:
                parts.append(len(value))
                self._describe(value, parts, tensors)
            elif isinstance(value, torch.Tensor | torch.SymInt):
                raise _NotKept
            else:
                parts += (kind, value)

    def _learnt(
        self, func: OpOverload, args: Arguments, kwargs: Keywords, tensors: list[torch.Tensor], out: Any
    ) -> Entry | None:
        if not compat.may_be_cached(self._mode, func, args, kwargs):
            return None
        container = type(out) if type(out) in (list, tuple) else None
        flat = list(out) if container is not None else [out]
        positions = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
        storages = {compat.storage_address(t): i for i, t in reversed(list(enumerate(tensors)))}
        outputs: list[_Output] = []
        own: set[int] = set()
        for value in flat:
            if value is None or type(value) in (int, float, bool):
                outputs.append(_Output(-1, -1, constant=value))
                continue
            if type(value) is not self._fake or value.constant is not None or value.is_sparse or value.dtype.is_complex:
                return None
            if (
                value.is_quantized
                or value.layout is not torch.strided
                or (value.requires_grad and id(value) not in positions)
            ):
                return None
            storage = compat.storage_address(value)
            view_of = storages.get(storage, -1)
            if view_of < 0 and (storage in own or value.storage_offset()):
                return None
            if view_of < 0 and not value.shape and value.untyped_storage().nbytes() > value.element_size():
                return None  # a mean that lies where its terms lay
            own.add(storage)
            device = value._fake_device
            attributes = self._attributes.get(device)
            if attributes is None:
                attributes = self._attributes[device] = compat.attributes_of_a_fake(value)
            where = (tuple(value.shape), value.stride(), value.storage_offset())
            outputs.append(_Output(positions.get(id(value), -1), view_of, *where, value.dtype, attributes, device))
        return Entry(container, tuple(outputs))

    def _repeat(self, entry: Entry, tensors: list[torch.Tensor]) -> object:
        if entry.container is None:
            output = entry.outputs[0]
            if output.same_as >= 0:
                return tensors[output.same_as]
            with self._aside:
                return self._output(output, tensors)
        with self._aside:
            return entry.container([self._output(output, tensors) for output in entry.outputs])

    def _output(self, output: _Output, tensors: list[torch.Tensor]) -> object:
        same_as, view_of, shape, stride, offset, dtype, attributes, device, constant = output
        if attributes is None:
            return constant
        if same_as >= 0:
            return tensors[same_as]
        if view_of >= 0:
            element = compat.meta_view(tensors[view_of].untyped_storage(), offset, shape, stride, dtype)
        else:
            element = compat.meta_tensor(shape, stride, dtype)
        return compat.made_fake(self._fake, element, device, attributes)
