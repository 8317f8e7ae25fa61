"""flash-attn 2's functions, each recorded as PyTorch's own flash attention, which is the same kernel.

Signatures are the package's own (2.8), the private ones that ring attention calls, and looks at, among them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from types import SimpleNamespace

_INPUTS = ("q", "k", "v")
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_SCALES = ("dropout_p", "softmax_scale", "causal")
_WINDOW = {"window_size_left": -1, "window_size_right": -1, "softcap": 0.0, "alibi_slopes": None}
_PUBLIC = {
    **{"dropout_p": 0.0, "softmax_scale": None, "causal": False, "window_size": (-1, -1), "softcap": 0.0},
    **{"alibi_slopes": None, "deterministic": False, "return_attn_probs": False},
}
_FORWARD = {**_WINDOW, "return_softmax": False}
_PAGES = {"block_table": None, "leftpad_k": None, "seqused_k": None}
_GRADIENTS = ("dout", *_INPUTS, "out", "softmax_lse", "dq", "dk", "dv")
_BACKWARD = {**_WINDOW, "deterministic": False, "rng_state": None}


def attention_functions() -> dict[str, Callable[..., object]]:
    """By their names in the package."""
    import torch

    aten = torch.ops.aten

    def ends(call: SimpleNamespace) -> tuple[object, ...]:
        """Where sequences end, and the longest."""
        if hasattr(call, "cu_seqlens_q"):
            return call.cu_seqlens_q, call.cu_seqlens_k, int(call.max_seqlen_q), int(call.max_seqlen_k)
        return None, None, call.q.shape[1], call.k.shape[1]

    def attend(call: SimpleNamespace, left: int, right: int) -> Sequence[torch.Tensor]:
        window = {"window_size_left": left, "window_size_right": right} if (left, right) != (-1, -1) else {}
        sides = {name: side if side >= 0 else None for name, side in window.items()}
        how = (call.dropout_p, call.causal, False)
        tensors = (call.q, call.k, call.v)
        out, lse, *_ = aten._flash_attention_forward(*tensors, *ends(call), *how, scale=call.softmax_scale, **sides)
        return out, lse

    def public(call: SimpleNamespace) -> object:
        out, lse = attend(call, *call.window_size)
        return (out, lse, None) if call.return_attn_probs else out

    def forward(call: SimpleNamespace) -> object:
        return (*attend(call, call.window_size_left, call.window_size_right), None, None)

    def backward(call: SimpleNamespace) -> object:
        none = call.q.new_empty((0,), dtype=torch.int64)
        tensors = (call.dout, call.q, call.k, call.v, call.out, call.softmax_lse)
        how = (call.dropout_p, call.causal, none, none)
        gradients = aten._flash_attention_backward(*tensors, *ends(call), *how, scale=call.softmax_scale)
        for place, value in zip((call.dq, call.dk, call.dv), gradients, strict=True):
            if place is not None:
                place.copy_(value)
        return call.softmax_lse

    whole = _signed(public, _INPUTS, _PUBLIC)
    varlen = _signed(public, (*_INPUTS, *_LENGTHS), {**_PUBLIC, "block_table": None})

    def varlen_packed(
        qkv: torch.Tensor, cu_seqlens: torch.Tensor, max_seqlen: int, *more: object, **kwargs: object
    ) -> object:
        return varlen(*qkv.unbind(1), cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *more, **kwargs)

    def with_cache(*_: object, **__: object) -> object:
        raise NotImplementedError("flash_attn_with_kvcache, which decodes, has no stand-in: install flash-attn")

    return {
        "flash_attn_with_kvcache": with_cache,
        "flash_attn_func": whole,
        "flash_attn_varlen_func": varlen,
        "flash_attn_qkvpacked_func": lambda qkv, *more, **kwargs: whole(*qkv.unbind(2), *more, **kwargs),
        "flash_attn_kvpacked_func": lambda q, kv, *more, **kwargs: whole(q, *kv.unbind(2), *more, **kwargs),
        "flash_attn_varlen_qkvpacked_func": varlen_packed,
        "flash_attn_varlen_kvpacked_func": lambda q, kv, *more, **kwargs: varlen(q, *kv.unbind(1), *more, **kwargs),
        "_flash_attn_forward": _signed(forward, (*_INPUTS, *_SCALES), _FORWARD),
        "_flash_attn_varlen_forward": _signed(forward, (*_INPUTS, *_LENGTHS, *_SCALES), {**_FORWARD, **_PAGES}),
        "_flash_attn_backward": _signed(backward, (*_GRADIENTS, *_SCALES), _BACKWARD),
        "_flash_attn_varlen_backward": _signed(
            backward, (*_GRADIENTS, *_LENGTHS, *_SCALES), {**_BACKWARD, "zero_tensors": False}
        ),
    }


def _signed(
    function: Callable[[SimpleNamespace], object], names: Sequence[str], defaults: Mapping[str, object]
) -> Callable[..., object]:
    """A function of what it is called with, by name, under a signature."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter(name, kind) for name in names]
    signature = Signature([*parameters, *(Parameter(name, kind, default=value) for name, value in defaults.items())])

    def call(*args: object, **kwargs: object) -> object:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return function(SimpleNamespace(**bound.arguments))

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
