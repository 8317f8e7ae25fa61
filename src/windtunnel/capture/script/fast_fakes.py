"""Repeats what the fake-tensor mode answered, without asking it again: most ops of a training step are repeats.

PyTorch's own cache spends most of an op's time on its key. Here a call is looked up by op, scalars, and shape,
strides, offset, dtype and device of each tensor; an entry says for each output whether it is one of the inputs, a
view of one, or new. Only calls that PyTorch itself would cache are kept, and what is new or different goes the
ordinary way, so the outputs are those of the mode (a test holds the two against each other).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch

from windtunnel.capture.script import _torch_compat_recorder as compat

_NO_TENSORS = frozenset(
    (
        torch.ops.profiler._record_function_enter_new.default,
        torch.ops.profiler._record_function_enter.default,
        torch.ops.profiler._record_function_exit._RecordFunction,
    )
)


class _Output(NamedTuple):
    """How one output comes about."""

    same_as: int  # flat position of the input that it is; -1
    view_of: int  # of the input whose storage it lies on; -1: its own
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: Any
    device: Any
    constant: Any = None  # a value that is no tensor


class _Entry(NamedTuple):
    container: type | None  # list or tuple; None: a single output
    outputs: tuple[_Output, ...]


class _NotKept(Exception):  # noqa: N818 - says that a call goes the ordinary way
    pass


class FastFakes:
    """For one fake-tensor mode, which is on."""

    def __init__(self, mode: Any) -> None:
        self._mode = mode
        self._fake: Any = compat.fake_class()
        self._entries: dict[Any, _Entry | None] = {}
        self._template: dict[str, Any] = {}

    def forget(self) -> None:
        """What "cuda" means has changed: another device is the current one."""
        self._entries.clear()

    def run(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What `func(*args, **kwargs)` gives under the mode."""
        if func in _NO_TENSORS:
            with compat.set_aside(self._mode):
                return func(*args, **kwargs)
        parts: list[Any] = [func, torch.get_default_dtype(), torch.is_inference_mode_enabled()]
        tensors: list[Any] = []
        try:
            self._describe(args, parts, tensors)
            if kwargs:
                parts.extend(kwargs)
                self._describe(kwargs.values(), parts, tensors)
            key = tuple(parts)
            entry = self._entries.get(key, self)  # self: never met
        except (_NotKept, TypeError):
            return self._ordinary(func, types, args, kwargs)
        if entry is None:
            return self._ordinary(func, types, args, kwargs)
        if entry is self:
            out = self._ordinary(func, types, args, kwargs)
            self._entries[key] = self._learnt(func, args, kwargs, tensors, out)
            return out
        return self._repeat(cast(_Entry, entry), tensors)

    def _ordinary(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        with compat.set_aside(self._mode):
            return self._mode.dispatch(func, types, args, kwargs)

    def _describe(self, values: Any, parts: list[Any], tensors: list[Any]) -> None:
        fake, mode = self._fake, self._mode
        for value in values:
            kind = type(value)
            if kind is fake:
                if value.constant is not None or value.fake_mode is not mode:
                    raise _NotKept
                parts.append(value.shape)
                parts.append(value.stride())
                parts.append(value.storage_offset())
                parts.append(value.dtype)
                parts.append(value._fake_device)
                tensors.append(value)
            elif kind is list or kind is tuple:
                parts.append(len(value))
                self._describe(value, parts, tensors)
            elif isinstance(value, torch.Tensor | torch.SymInt):
                raise _NotKept
            else:
                parts.append(kind)
                parts.append(value)

    def _learnt(self, func: Any, args: Any, kwargs: Any, tensors: list[Any], out: Any) -> _Entry | None:
        if not compat.may_be_cached(self._mode, func, args, kwargs):
            return None
        container = type(out) if type(out) in (list, tuple) else None
        flat = list(out) if container is not None else [out]
        positions = {id(t): i for i, t in reversed(list(enumerate(tensors)))}
        storages = {t.untyped_storage()._cdata: i for i, t in reversed(list(enumerate(tensors)))}
        outputs: list[_Output] = []
        own: set[int] = set()
        for value in flat:
            if value is None or type(value) in (int, float, bool):
                outputs.append(_Output(-1, -1, (), (), 0, None, None, (value,)))
                continue
            if type(value) is not self._fake or value.constant is not None or value.is_sparse or value.dtype.is_complex:
                return None
            if (
                value.is_quantized
                or value.layout is not torch.strided
                or (value.requires_grad and id(value) not in positions)
            ):
                return None
            storage = value.untyped_storage()._cdata
            view_of = storages.get(storage, -1)
            if view_of < 0 and (storage in own or value.storage_offset()):
                return None
            own.add(storage)
            outputs.append(
                _Output(
                    *(
                        positions.get(id(value), -1),
                        view_of,
                        tuple(value.shape),
                        value.stride(),
                        value.storage_offset(),
                    ),
                    *(value.dtype, value._fake_device),
                )
            )
        if not self._template:
            self._template = compat.attributes_of_a_fake(next((v for v in flat if type(v) is self._fake), None)) or {}
        return _Entry(container, tuple(outputs))

    def _repeat(self, entry: _Entry, tensors: list[Any]) -> Any:
        with compat.set_aside(self._mode):
            if entry.container is None:
                return self._one(entry.outputs[0], tensors)
            return entry.container([self._one(output, tensors) for output in entry.outputs])

    def _one(self, output: _Output, tensors: list[Any]) -> Any:
        if output.constant is not None:
            return output.constant[0]
        if output.same_as >= 0:
            return tensors[output.same_as]
        if output.view_of >= 0:
            storage = tensors[output.view_of].untyped_storage()
            element = compat.meta_view(storage, output.offset, output.shape, output.stride, output.dtype)
        else:
            element = compat.meta_tensor(output.shape, output.stride, output.dtype)
        return compat.made_fake(self._fake, element, output.device, self._template)
