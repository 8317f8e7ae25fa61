"""flash-attn 2's functions, each recorded as PyTorch's own flash attention, which is the same kernel.

Signatures are the package's own (2.8), the private ones that ring attention calls among them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

Pair = tuple[int, int]
Ends = tuple["torch.Tensor | None", "torch.Tensor | None"]


def attention_functions() -> dict[str, Callable[..., object]]:
    """By their names in the package."""
    import torch

    aten = torch.ops.aten

    def window(of: Pair) -> dict[str, int | None]:
        left, right = of
        return {"window_size_left": left if left >= 0 else None, "window_size_right": right if right >= 0 else None}

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu: Ends,
        longest: Pair,
        p: float,
        scale: float | None,
        causal: bool,
        of: Pair,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        more = window(of) if tuple(of) != (-1, -1) else {}
        out, lse, *_ = aten._flash_attention_forward(q, k, v, *cu, *longest, p, causal, False, scale=scale, **more)
        return out, lse

    def answer(out: torch.Tensor, lse: torch.Tensor, probabilities: bool) -> object:
        return (out, lse, None) if probabilities else out

    def flash_attn_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: object = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
    ) -> object:
        longest = (q.shape[1], k.shape[1])
        out, lse = attend(q, k, v, (None, None), longest, dropout_p, softmax_scale, causal, window_size)
        return answer(out, lse, return_attn_probs)

    def flash_attn_varlen_func(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: object = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: object = None,
    ) -> object:
        ends, longest = (cu_seqlens_q, cu_seqlens_k), (int(max_seqlen_q), int(max_seqlen_k))
        out, lse = attend(q, k, v, ends, longest, dropout_p, softmax_scale, causal, window_size)
        return answer(out, lse, return_attn_probs)

    def flash_attn_qkvpacked_func(qkv: torch.Tensor, *more: object, **kwargs: Any) -> object:
        return flash_attn_func(*qkv.unbind(2), *more, **kwargs)

    def flash_attn_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *more: object, **kwargs: Any) -> object:
        return flash_attn_func(q, *kv.unbind(2), *more, **kwargs)

    def flash_attn_varlen_qkvpacked_func(
        qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *more: Any, **kwargs: Any
    ) -> object:
        ends = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
        q, k, v = qkv.unbind(1)
        return flash_attn_varlen_func(q, k, v, *ends, *more, **kwargs)

    def flash_attn_varlen_kvpacked_func(q: torch.Tensor, kv: torch.Tensor, *more: object, **kwargs: Any) -> object:
        return flash_attn_varlen_func(q, *kv.unbind(1), *more, **kwargs)

    def _flash_attn_forward(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size_left: int = -1,
        window_size_right: int = -1,
        softcap: float = 0.0,
        alibi_slopes: object = None,
        return_softmax: bool = False,
    ) -> object:
        of, longest = (window_size_left, window_size_right), (q.shape[1], k.shape[1])
        out, lse = attend(q, k, v, (None, None), longest, dropout_p, softmax_scale, causal, of)
        return out, lse, None, None

    def _flash_attn_varlen_forward(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size_left: int = -1,
        window_size_right: int = -1,
        softcap: float = 0.0,
        alibi_slopes: object = None,
        return_softmax: bool = False,
        block_table: object = None,
        leftpad_k: object = None,
        seqused_k: object = None,
    ) -> object:
        of, ends, longest = (
            (window_size_left, window_size_right),
            (cu_seqlens_q, cu_seqlens_k),
            (int(max_seqlen_q), int(max_seqlen_k)),
        )
        out, lse = attend(q, k, v, ends, longest, dropout_p, softmax_scale, causal, of)
        return out, lse, None, None

    def back(
        of: Sequence[torch.Tensor],
        ends: Ends,
        longest: Pair,
        p: float,
        causal: bool,
        scale: float,
        into: Sequence[torch.Tensor | None],
    ) -> None:
        dout, q, k, v, out, lse = of
        none = q.new_empty((0,), dtype=torch.int64)
        gradients = aten._flash_attention_backward(
            dout, q, k, v, out, lse, *ends, *longest, p, causal, none, none, scale=scale
        )
        for place, value in zip(into, gradients, strict=True):
            if place is not None:
                place.copy_(value)

    def _flash_attn_backward(
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        softmax_lse: torch.Tensor,
        dq: torch.Tensor | None,
        dk: torch.Tensor | None,
        dv: torch.Tensor | None,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size_left: int = -1,
        window_size_right: int = -1,
        softcap: float = 0.0,
        alibi_slopes: object = None,
        deterministic: bool = False,
        rng_state: object = None,
    ) -> object:
        of, longest = (dout, q, k, v, out, softmax_lse), (q.shape[1], k.shape[1])
        back(of, (None, None), longest, dropout_p, causal, softmax_scale, (dq, dk, dv))
        return softmax_lse

    def _flash_attn_varlen_backward(
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        softmax_lse: torch.Tensor,
        dq: torch.Tensor | None,
        dk: torch.Tensor | None,
        dv: torch.Tensor | None,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size_left: int = -1,
        window_size_right: int = -1,
        softcap: float = 0.0,
        alibi_slopes: object = None,
        deterministic: bool = False,
        rng_state: object = None,
        zero_tensors: bool = False,
    ) -> object:
        ends, longest = (cu_seqlens_q, cu_seqlens_k), (int(max_seqlen_q), int(max_seqlen_k))
        back((dout, q, k, v, out, softmax_lse), ends, longest, dropout_p, causal, softmax_scale, (dq, dk, dv))
        return softmax_lse

    return {name: value for name, value in locals().items() if name.lstrip("_").startswith("flash_attn")}
