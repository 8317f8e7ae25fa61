"""Llama 3 in plain PyTorch: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

`Llama` holds the whole decoder or a stretch of its layers, for one stage of a pipeline. Build it on the meta device,
shard it, and only then give it memory:

    with torch.device("meta"):
        model = Llama(CONFIGS["8b"], seq=8192)
    ...  # parallelize_module, fully_shard
    materialize(model, device, seed=0)

Shapes are the published ones (Llama 3.2 1B; Llama 3.1 8B, 70B and 405B, arXiv:2407.21783), except that 1B has an output
matrix of its own here.
"""
# mypy: allow-subclassing-any

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Config:
    """The shape of one model."""

    dim: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    seq: int = 8192
    rope_base: float = 500_000.0
    norm_eps: float = 1e-5


CONFIGS = {
    "debug": Config(dim=256, layers=8, heads=16, kv_heads=8, ffn=512, vocab=512, seq=64),
    "1b": Config(dim=2048, layers=16, heads=32, kv_heads=8, ffn=8192, vocab=128_256),
    "8b": Config(dim=4096, layers=32, heads=32, kv_heads=8, ffn=14_336, vocab=128_256),
    "70b": Config(dim=8192, layers=80, heads=64, kv_heads=8, ffn=28_672, vocab=128_256),
    "405b": Config(dim=16_384, layers=126, heads=128, kv_heads=8, ffn=53_248, vocab=128_256),
}


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each query sees the keys up to its own position; all are [batch, heads, seq, head_dim]."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn `x` [batch, heads, seq, head_dim] by its position; the two of a pair are half a head apart."""
    one, other = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-other, one), dim=-1) * sin).type_as(x)


class Attention(nn.Module):
    """Causal attention with fewer heads for keys and values. The number of heads follows from the weights at hand."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.head_dim = config.dim // config.heads
        self.attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention
        self.wq = nn.Linear(config.dim, config.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, seq, dim] to the same."""
        batch, seq, _ = x.shape
        q, k, v = (w(x).view(batch, seq, -1, self.head_dim).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = self.attend(rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.wo(out.transpose(1, 2).reshape(batch, seq, -1))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.ffn, bias=False)
        self.w2 = nn.Linear(config.ffn, config.dim, bias=False)
        self.w3 = nn.Linear(config.dim, config.ffn, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., dim] to the same."""
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """One layer; with `recompute` only its input is kept for the backward pass."""

    def __init__(self, config: Config, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        self.attention_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.feed_forward = FeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """[batch, seq, dim] to the same."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self.layer, x, cos, sin, use_reentrant=False)
        return self.layer(x, cos, sin)

    def layer(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The layer itself."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    """Tokens [batch, seq] to logits; a later stage of a pipeline takes and an earlier one gives [batch, seq, dim]."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config, seq: int, layers: range | None = None, recompute: bool = False) -> None:
        super().__init__()
        layers = range(config.layers) if layers is None else layers
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.dim) if layers.start == 0 else None
        self.layers = nn.ModuleDict({str(index): Block(config, recompute) for index in layers})
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps) if layers.stop == config.layers else None
        self.output = nn.Linear(config.dim, config.vocab, bias=False) if layers.stop == config.layers else None
        self.register_buffer("cos", torch.empty(seq, config.dim // config.heads), persistent=False)
        self.register_buffer("sin", torch.empty(seq, config.dim // config.heads), persistent=False)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """`positions`: where in the sequence the tokens stand, if they are not the whole of it in order."""
        cos, sin = (self.cos, self.sin) if positions is None else (self.cos[positions], self.sin[positions])
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x, cos, sin)
        if self.norm is None or self.output is None:
            return x
        return self.output(self.norm(x))


def stage_layers(config: Config, stage: int, stages: int) -> range:
    """The layers of one stage: equally many, or else the embedding and the output matrix count as a layer each.

    As Llama 3 405B did: its 126 layers on 16 stages are 7, 14 times 8, and 7.
    """
    if stages > config.layers:
        raise ValueError(f"{config.layers} layers cannot fill {stages} stages: make the pipeline shorter")
    extra = 0 if config.layers % stages == 0 else 1
    edges = [round(edge * (config.layers + 2 * extra) / stages) - extra for edge in range(stages + 1)]
    return range(max(0, edges[stage]), min(config.layers, edges[stage + 1]))


def part_of(whole: Tensor, parameter: DTensor) -> Tensor:
    """What this rank holds of a sharded parameter. Nothing is sent: every rank has drawn the whole tensor."""
    # From the last dimension of the mesh to the first, as it was sharded: tensor parallel, then FSDP.
    for size, position, placement in reversed(
        [*zip(parameter.device_mesh.shape, parameter.device_mesh.get_coordinate(), parameter.placements, strict=True)]
    ):
        if not placement.is_replicate():
            length = whole.shape[placement.dim]
            each = -(-length // size)
            start = min(position * each, length)
            whole = whole.narrow(placement.dim, start, min(each, length - start))
    return whole


def materialize(model: nn.Module, device: torch.device, seed: int) -> None:
    """Give a model from the meta device its memory and first weights: the same ones however it is sharded."""
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            torch.manual_seed(seed + zlib.crc32(name.encode()))
            whole = torch.empty(parameter.shape, device=device)
            if whole.dim() == 1:  # of a norm
                whole.fill_(1.0)
            else:
                whole.normal_(std=0.02)
            if isinstance(parameter, DTensor):
                parameter.to_local().copy_(part_of(whole, parameter))
            else:
                parameter.copy_(whole)
        if isinstance(model, Llama):
            seq, head_dim = model.cos.shape
            turns = model.config.rope_base ** (-torch.arange(0, head_dim, 2, device=device) / head_dim)
            angles = torch.outer(torch.arange(seq, device=device).float(), turns).repeat(1, 2)
            model.cos.copy_(angles.cos())
            model.sin.copy_(angles.sin())
    torch.manual_seed(seed)
