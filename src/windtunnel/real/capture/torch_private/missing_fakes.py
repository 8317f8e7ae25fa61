"""What ops give of which PyTorch has no fake form: those of SyncBatchNorm, and fused optimizers.

On pretended GPUs a script calls them as on real ones. Registered for the 'Meta' key where that has nothing, once in a
process. Tried on 2.13.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from windtunnel.real.capture.torch_private import factories as plain


def _statistics(x: torch.Tensor, channels: int) -> torch.Tensor:
    """A number for each channel, in single precision where the input is of half."""
    dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    return plain.empty((channels,), dtype=dtype, device=x.device)


def _stats(x: torch.Tensor, _eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    return _statistics(x, x.shape[1]), _statistics(x, x.shape[1])


def _gathered(x: torch.Tensor, mean: torch.Tensor, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
    return _statistics(x, mean.shape[1]), _statistics(x, mean.shape[1])


def _like_input(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x)


def _backward_reduce(
    _grad: torch.Tensor,
    x: torch.Tensor,
    _mean: torch.Tensor,
    _invstd: torch.Tensor,
    weight: torch.Tensor | None,
    input_grad: bool,
    weight_grad: bool,
    bias_grad: bool,
) -> tuple[torch.Tensor | None, ...]:
    channels = x.shape[1]
    sums = [_statistics(x, channels) if input_grad else None for _ in range(2)]
    like = weight if weight is not None else x
    ours = [
        plain.empty((channels,), dtype=like.dtype, device=x.device) if is_needed else None
        for is_needed in (weight_grad, bias_grad)
    ]
    return (*sums, *ours)


def _backward(_grad: torch.Tensor, x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty_like(x)


def _in_place(*_: object, **__: object) -> None:
    """What it writes has the shapes that it had."""


_FORMS: dict[str, Callable[..., object]] = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats": _gathered,
    "batch_norm_gather_stats_with_counts": _gathered,
    "batch_norm_elemt": _like_input,
    "batch_norm_backward_reduce": _backward_reduce,
    "batch_norm_backward_elemt": _backward,
    "batch_norm_update_stats": lambda x, *_: _stats(x, 0.0),
    **dict.fromkeys(
        ("_fused_sgd_", "_fused_sgd_.tensor_lr", "_fused_adagrad_", "_fused_adagrad_.tensor_lr"), _in_place
    ),
}


@functools.cache
def register_missing_fakes() -> torch.library.Library:
    """Give these ops their fake forms; what a version of PyTorch has already is left alone."""
    library = torch.library.Library("aten", "IMPL")
    for name, form in _FORMS.items():
        has_kernel = torch._C._dispatch_has_kernel(f"aten::{name}")
        if has_kernel and not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, form, "Meta")
    return library
