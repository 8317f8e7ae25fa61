"""What is known of an ATen op before it runs: whether it does work, what it writes, how its FLOPs are counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from windtunnel.real.capture.recorder.flops import Flops, formula_of

if TYPE_CHECKING:
    from torch._ops import OpOverload

COMMUNICATION_NAMESPACES = frozenset(("c10d", "_c10d_functional", "_c10d_functional_autograd"))
SILENT_NAMESPACES = frozenset(("prim", "profiler", "prims", "_dtensor", "inductor"))

SILENT = frozenset(
    (
        *("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided"),
        *("is_pinned", "is_same_size", "set_", "resize_", "resize_as_", "sym_size", "sym_stride", "sym_numel"),
        *("sym_storage_offset", "lift", "lift_fresh", "_unsafe_view", "record_stream"),
        *("_has_compatible_shallow_copy_type", "size", "stride", "storage_offset", "is_strides_like_format"),
        *("is_non_overlapping_and_dense", "_version", "is_contiguous", "_backward", "requires_grad_", "retain_grad"),
        *("_assert_async", "_assert_tensor_metadata", "_functional_assert_async", "_fused_sdp_choice", "dim", "numel"),
        *("rename_", "swap_tensors", "_nested_tensor_size"),
    )
)
"""Allocate, look or rename, and start no kernel."""

READS = frozenset(("_local_scalar_dense", "equal", "allclose", "is_nonzero", "item", "_is_all_true", "_is_any_true"))
"""Hand a value to Python: the host waits for the device."""

SHAPED_BY_DATA = frozenset(
    (
        *("nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "bincount"),
        *("repeat_interleave", "nonzero_numpy", "argwhere", "index"),
    )
)
"""The shape of what they give depends on the values they take."""

DRAWS = frozenset(
    (
        *("uniform_", "normal_", "random_", "bernoulli_", "exponential_", "log_normal_", "cauchy_", "geometric_"),
        *("rand", "randn", "rand_like", "randn_like", "normal", "bernoulli"),
    )
)
"""Take numbers from a generator, and give nothing else."""

SPECIAL = frozenset(("is_pinned", "empty_strided", "lift_fresh"))
"""Answered, or looked at, under some conditions."""

_CPU, _CUDA = torch._C.DispatchKey.CPU, torch._C.DispatchKey.CUDA
_PRODUCTS = frozenset(("mm", "bmm", "addmm", "baddbmm", "_grouped_mm", "_scaled_mm", "_int_mm", "addmm_", "baddbmm_"))


@dataclass(frozen=True, slots=True)
class OpFacts:
    """Facts of one overload."""

    name: str  # "aten.mm"
    short: str  # "mm"
    silent: bool  # no work: not an op of the program
    view: bool
    communication: bool
    wraps: bool  # makes a tensor that waits for its communication when it is read
    wait: bool  # waits for a communication
    fused_exchange: bool  # exchanges and multiplies at once
    reads: bool  # gives a value to Python
    composite: bool  # is made of other ops: seen only in inference mode
    written: tuple[int, ...]  # positions of positional arguments that it writes in place
    written_names: tuple[str, ...]  # keyword arguments that it writes: out
    returns_written: bool  # gives back only what it wrote into
    flops: Flops | None
    scalars: Callable[[tuple[object, ...], dict[str, object]], tuple[object, ...]] | None
    shaped_by_data: bool
    moves: bool  # may copy between host and device
    special: bool  # does not simply run: one of the above, or named below
    draws: bool = False


def facts_of(func: OpOverload) -> OpFacts:
    """Facts of an overload `torch.ops.aten.mm.default`; higher-order ops count as compute of their name."""
    if not isinstance(func, torch._ops.OpOverload):
        name = f"higher_order.{func}"
        return OpFacts(
            *(name, str(func), False, False, False, False, False, False, False, False),
            *((), (), False, formula_of(name, func), None, False, False, False),
        )
    namespace, short = func._schema.name.split("::")
    name = f"{namespace}.{short}"
    arguments = func._schema.arguments
    writes = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
    wraps = short == "_wrap_tensor_autograd"
    communication = not wraps and (namespace in COMMUNICATION_NAMESPACES or name == "_dtensor.shard_dim_alltoall")
    fused_exchange = namespace == "symm_mem" and short.startswith("fused_")
    reads = namespace == "aten" and short in READS
    shaped_by_data = namespace == "aten" and short in SHAPED_BY_DATA and _depends(func, short)
    composite = (
        namespace == "aten"
        and func._can_decompose()
        and not any(func.has_kernel_for_dispatch_key(key) for key in (_CPU, _CUDA))
    )
    view = bool(func.is_view) and not composite  # `contiguous` and `to` may be one, or make a copy
    return OpFacts(
        name=name,
        short=short,
        silent=view or namespace in SILENT_NAMESPACES or (namespace == "aten" and short in SILENT),
        view=view,
        communication=communication,
        wraps=wraps,
        wait=short in ("wait_tensor", "wait_tensors"),
        fused_exchange=fused_exchange,
        reads=reads,
        composite=composite,
        written=tuple(i for i, (a, w) in enumerate(zip(arguments, writes, strict=True)) if w and not a.kwarg_only),
        written_names=tuple(a.name for a, w in zip(arguments, writes, strict=True) if w and a.kwarg_only),
        returns_written=any(writes) and all(r.alias_info is not None for r in func._schema.returns),
        flops=formula_of(name, func.overloadpacket),
        scalars=_scalars(short, [a.name for a in arguments]),
        shaped_by_data=shaped_by_data,
        moves=short in ("_to_copy", "copy_", "_foreach_copy_", "_copy_from"),
        special=wraps or fused_exchange or communication or reads or shaped_by_data or composite or short in SPECIAL,
        draws=namespace == "aten" and short in DRAWS,
    )


def _depends(func: OpOverload, short: str) -> bool:
    return short != "repeat_interleave" or func._overloadname in ("Tensor", "self_Tensor")


def _scalars(
    short: str, names: list[str]
) -> Callable[[tuple[object, ...], dict[str, object]], tuple[object, ...]] | None:
    """What besides shapes decides the cost: the strides of a product's factors, whether attention is causal, ..."""
    if short in _PRODUCTS:
        return lambda args, kwargs: tuple(tuple(a.stride()) for a in args if isinstance(a, torch.Tensor))
    if "attention" in short:
        return _causal(names)
    if short in ("convolution", "convolution_backward"):
        return lambda args, kwargs: tuple(
            tuple(a) if isinstance(a, list) else a for a in args if isinstance(a, list | int)
        )
    if short in ("_to_copy", "copy_", "_foreach_copy_"):
        return lambda args, kwargs: ("non_blocking",) if kwargs.get("non_blocking") or args[2:3] == (True,) else ()
    return None


def _causal(names: list[str]) -> Callable[[tuple[object, ...], dict[str, object]], tuple[object, ...]]:
    name = next((name for name in ("is_causal", "causal", "custom_mask_type") if name in names), None)
    if name is None:
        return lambda args, kwargs: ()
    at = names.index(name)

    def read(args: tuple[object, ...], kwargs: dict[str, object]) -> tuple[object, ...]:
        return (("is_causal", bool(args[at] if at < len(args) else kwargs.get(name, False))),)

    return read
