"""Which kernels a GPU would run, where a build of PyTorch without CUDA decides otherwise. Tried on 2.13."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import torch

from windtunnel.real.capture.replacements import Replacements

if TYPE_CHECKING:
    from windtunnel.real.capture.fake_tensors.pretended_gpu import PretendedCuda

_ONE_KERNEL = ("silu_backward", "mish_backward", "_fused_rms_norm")


def keep_whole(stack: ExitStack) -> None:
    """Ops that are one kernel on a GPU, and made of others where none is registered for it, as on a build without CUDA.

    Once there is one, autograd keeps them whole, so that they reach the dispatch modes, which answer them. It is
    never run.
    """
    if torch._C._has_cuda:
        return
    library = torch.library.Library("aten", "IMPL")
    stack.callback(library._destroy)  # private: otherwise it goes when it is collected

    def never_run(*_: object, **__: object) -> object:
        raise RuntimeError("a pretended GPU was asked for numbers: a tensor on it was made outside fake_tensors()")

    for name in _ONE_KERNEL:
        library.impl(name, never_run, "CUDA")


def choose_attention(stack: ExitStack, state: PretendedCuda) -> None:
    """Which attention kernel a GPU would run is decided in C++ that a build without CUDA lacks: here, by its rules.

    Flash for half precision without a mask, the memory-efficient kernel otherwise, plain products where neither can
    (aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of 2.13, in its default order), within what `sdpa_kernel`
    allows.
    """
    library = torch.library.Library("aten", "IMPL")
    stack.callback(library._destroy)  # private: otherwise it goes when it is collected

    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> object:
        aten = torch.ops.aten
        kernel = _kernel(query, key, value, attn_mask, enable_gqa, state.gpu.capability)
        if kernel == "math":
            return aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
            )[0]
        width = query.shape[-1]
        scale = width**-0.5 if scale is None else scale
        if kernel == "flash":
            more = -width % 8
            if more:
                query, key, value = (torch.nn.functional.pad(t, (0, more)) for t in (query, key, value))
            out = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)[
                0
            ]
            return out[..., :width] if more else out
        keep = any(t.requires_grad for t in (query, key, value)) and torch.is_grad_enabled()
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.where(attn_mask, 0.0, float("-inf")).to(query.dtype)
            attn_mask = attn_mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        return aten._scaled_dot_product_efficient_attention(
            query, key, value, attn_mask, keep, dropout_p, is_causal, scale=scale
        )[0]

    library.impl("scaled_dot_product_attention", attention, "AutogradCUDA")
    library.impl("scaled_dot_product_attention", attention, "CUDA")
    # Of nested tensors PyTorch chooses in Python, and asks only what a kernel can do.
    from torch.nested._internal import sdpa

    for kernel in ("flash", "efficient"):

        def can(params: torch.backends.cuda.SDPAParams, debug: bool = False, kernel: str = kernel) -> bool:
            q, k, v = params.query, params.key, params.value
            chosen = _kernel(q, k, v, params.attn_mask, params.enable_gqa, state.gpu.capability)
            return q.device.type == "cuda" and chosen == kernel

        stack.enter_context(Replacements((sdpa, f"can_use_{kernel}_attention", can)))


def _kernel(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    gqa: bool,
    capability: tuple[int, int],
) -> str:
    backends = torch.backends.cuda
    same = query.shape[1] == key.shape[1] == value.shape[1] if query.dim() == 4 else False
    whole = query.dim() == key.dim() == value.dim() == 4 and query.shape[-1] == key.shape[-1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    if (
        *(whole, half, mask is None, capability >= (8, 0), query.shape[-1] == value.shape[-1], query.shape[-1] <= 256),
        *(same or gqa, query.shape[-2] > 0, key.shape[-2] > 0, backends.flash_sdp_enabled()),
    ).count(False) == 0:
        return "flash"
    if whole and same and not gqa and (half or query.dtype == torch.float32) and backends.mem_efficient_sdp_enabled():
        return "efficient"
    return "math"
