"""What a decoder keeps of a sequence: bytes that grow with every token, and bytes that are there whatever its length.

A layer that sees a window or a chunk keeps no more tokens than that; one with a fixed state keeps the state (fp32) and
the last inputs of its convolution; latents and keys of indexers are on every tensor-parallel rank, heads are divided
and KV heads not below one. Counted as kernels keep them: a key that is its value stands once (DeepSeek V4).
"""

from __future__ import annotations

from windtunnel.physics.model.architecture import Attention, Model
from windtunnel.physics.model.mixers import Compressed, Recurrent


def growing_bytes(attention: Attention, element_bytes: float = 2.0, tp: int = 1) -> float:
    """Of one more token in one layer on one of `tp` ranks, once the context is longer than any window."""
    bounded = attention.window is not None and not isinstance(attention, Compressed)
    return 0.0 if bounded else element_bytes * attention.cache_width(tp)


def fixed_bytes(attention: Attention, element_bytes: float = 2.0, tp: int = 1) -> float:
    """Of one sequence in one layer on one of `tp` ranks, whatever its length: a full window, or a state."""
    window = 0 if isinstance(attention, Compressed) else attention.window or 0
    return _state(attention, element_bytes, tp) + element_bytes * attention.cache_width(tp) * window


def kept_bytes(attention: Attention, context: float, element_bytes: float = 2.0, tp: int = 1) -> float:
    """Of one sequence of `context` tokens in one layer on one of `tp` ranks."""
    state, keys = _state(attention, element_bytes, tp), context
    if isinstance(attention, Compressed):
        state *= min(1.0, context / (attention.window or 1))
    elif attention.window:
        keys = min(context, attention.window)
    return state + element_bytes * attention.cache_width(tp) * keys


def _state(attention: Attention, element_bytes: float, tp: int) -> float:
    if isinstance(attention, Recurrent):
        return attention.state_bytes() / min(tp, attention.heads)
    return attention.state_bytes() / 2.0 * element_bytes


def kv_bytes_per_token(model: Model, element_bytes: float = 2.0, tp: int = 1) -> float:
    """Of one more token in all layers."""
    return sum(n * growing_bytes(layer.attention, element_bytes, tp) for layer, n in model.distinct_layers())


def state_bytes_per_sequence(model: Model, element_bytes: float = 2.0, tp: int = 1) -> float:
    """Of one sequence in all layers, whatever its length."""
    return sum(n * fixed_bytes(layer.attention, element_bytes, tp) for layer, n in model.distinct_layers())
