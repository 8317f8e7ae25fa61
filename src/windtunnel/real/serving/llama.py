"""A Llama with a paged KV cache in plain PyTorch: RMS norms, rotary positions, grouped heads, SwiGLU.

    tokens of all chunks and decodes of a step pass the matrices together
    keys and values go to slots of blocks: cache[layer, k or v, block x size + place]
    attention: one piece at a time over its own blocks, so that it costs what the contexts are, and no padding

Weights are random from a seed, under the names of `transformers.LlamaForCausalLM`, which gives the same tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    import torch

EPSILON = 1e-5
THETA = 10_000.0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model."""

    vocabulary: int = 2048
    hidden: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    feed_forward: int = 688

    @property
    def head(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one sequence in a step: `ids` after `past` cached ones, kept in `blocks`."""

    ids: Sequence[int]
    past: int
    blocks: Sequence[int]


@final
class Llama:
    """Weights and cache on a device."""

    def __init__(self, shape: Shape, blocks: int, block_size: int, device: str = "cpu", seed: int = 0) -> None:
        import torch

        self.shape, self.block_size, self.device = shape, block_size, device
        draw = torch.Generator().manual_seed(seed)
        self.weights: dict[str, torch.Tensor] = {}
        for name, rows, columns in _matrices(shape):
            self.weights[name] = (torch.randn(rows, columns, generator=draw) / math.sqrt(columns)).to(device)
        for name in _norms(shape):
            self.weights[name] = torch.ones(shape.hidden, device=device)
        self.cache = torch.zeros(shape.layers, 2, blocks * block_size, shape.kv_heads, shape.head, device=device)
        power = torch.arange(0, shape.head, 2, dtype=torch.float32, device=device) / shape.head
        self._frequencies = THETA**-power

    def step(self, chunks: Sequence[Piece], decodes: Sequence[Piece]) -> list[int]:
        """Compute all pieces; the next token after each, chunks first."""
        import torch

        pieces = [*chunks, *decodes]
        shape, weights = self.shape, self.weights
        ids = torch.tensor([number for piece in pieces for number in piece.ids], device=self.device)
        places = torch.tensor(
            [piece.past + place for piece in pieces for place in range(len(piece.ids))], device=self.device
        )
        slots = torch.tensor([slot for piece in pieces for slot in self._slots(piece)], device=self.device)
        angles = places[:, None].float() * self._frequencies
        turn = torch.cat((angles, angles), -1)
        cosine, sine = turn.cos()[:, None], turn.sin()[:, None]
        gathered = [self._gather(piece) for piece in pieces]
        with torch.inference_mode():
            x = weights["model.embed_tokens.weight"][ids]
            for layer in range(shape.layers):
                of = f"model.layers.{layer}."
                y = _norm(x, weights[of + "input_layernorm.weight"])
                q, k, v = (
                    (y @ weights[f"{of}self_attn.{name}_proj.weight"].T).view(len(ids), -1, shape.head)
                    for name in ("q", "k", "v")
                )
                q, k = q * cosine + _half_turn(q) * sine, k * cosine + _half_turn(k) * sine
                cache = self.cache[layer]
                cache[0, slots], cache[1, slots] = k, v
                outputs, begin = [], 0
                for piece, rows in zip(pieces, gathered, strict=True):
                    n = len(piece.ids)
                    outputs.append(self._attend(q[begin : begin + n], cache, rows, piece.past))
                    begin += n
                x = x + torch.cat(outputs) @ weights[of + "self_attn.o_proj.weight"].T
                y = _norm(x, weights[of + "post_attention_layernorm.weight"])
                gate = torch.nn.functional.silu(y @ weights[of + "mlp.gate_proj.weight"].T)
                x = x + (gate * (y @ weights[of + "mlp.up_proj.weight"].T)) @ weights[of + "mlp.down_proj.weight"].T
            lasts, end = [], -1
            for piece in pieces:
                end += len(piece.ids)
                lasts.append(end)
            y = _norm(x[lasts], weights["model.norm.weight"])
            chosen: list[int] = (y @ weights["lm_head.weight"].T).argmax(-1).tolist()
        return chosen

    def copy_out(self, blocks: Sequence[int]) -> torch.Tensor:
        """A copy of blocks in host memory."""
        return self.cache[:, :, self._rows(blocks)].to("cpu", copy=True)

    def copy_in(self, blocks: Sequence[int], content: torch.Tensor) -> None:
        """Put it back, into other blocks."""
        self.cache[:, :, self._rows(blocks)] = content.to(self.device)

    def _rows(self, blocks: Sequence[int]) -> torch.Tensor:
        import torch

        first = torch.tensor(blocks, device=self.device)[:, None] * self.block_size
        return (first + torch.arange(self.block_size, device=self.device)).flatten()

    def _slots(self, piece: Piece) -> list[int]:
        size = self.block_size
        return [
            piece.blocks[place // size] * size + place % size
            for place in range(piece.past, piece.past + len(piece.ids))
        ]

    def _gather(self, piece: Piece) -> torch.Tensor:
        total = piece.past + len(piece.ids)
        return self._rows(piece.blocks)[:total]

    def _attend(self, q: torch.Tensor, cache: torch.Tensor, rows: torch.Tensor, past: int) -> torch.Tensor:
        import torch

        n = len(q)
        k, v = (cache[side, rows].transpose(0, 1)[None] for side in (0, 1))
        if n == 1:
            output = _attention(q.transpose(0, 1)[None], k, v)
        elif past == 0:
            output = _attention(q.transpose(0, 1)[None], k, v, is_causal=True)
        else:
            seen = torch.ones(n, len(rows), dtype=torch.bool, device=self.device).tril(past)
            output = _attention(q.transpose(0, 1)[None], k, v, attn_mask=seen)
        return output[0].transpose(0, 1).reshape(n, -1)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **more: object) -> torch.Tensor:
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **more)


def _norm(x: torch.Tensor, weight: torch.Tensor) -> object:
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight


def _half_turn(x: torch.Tensor) -> object:
    import torch

    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def _matrices(shape: Shape) -> list[tuple[str, int, int]]:
    h, kv = shape.hidden, shape.kv_heads * shape.head
    matrices = [("model.embed_tokens.weight", shape.vocabulary, h), ("lm_head.weight", shape.vocabulary, h)]
    for layer in range(shape.layers):
        of = f"model.layers.{layer}."
        matrices += [(f"{of}self_attn.{name}_proj.weight", rows, h) for name, rows in (("q", h), ("k", kv), ("v", kv))]
        matrices += [(f"{of}self_attn.o_proj.weight", h, h), (f"{of}mlp.down_proj.weight", h, shape.feed_forward)]
        matrices += [(f"{of}mlp.{name}_proj.weight", shape.feed_forward, h) for name in ("gate", "up")]
    return matrices


def _norms(shape: Shape) -> list[str]:
    of = [f"model.layers.{layer}." for layer in range(shape.layers)]
    both = ("input_layernorm.weight", "post_attention_layernorm.weight")
    return ["model.norm.weight", *(word + name for word in of for name in both)]
