"""The model that is trained for the one-device truth: a plain transformer in PyTorch, nothing fused by hand.

Built from the fields of a Hugging Face `config.json`, so that the very same file goes to `windtunnel predict`:

| model_type | norm      | feed-forward               |
|------------|-----------|----------------------------|
| llama      | RMSNorm   | SwiGLU                     |
| mixtral    | RMSNorm   | SwiGLU experts, top-k      |
| nemotron   | LayerNorm | ungated, `hidden_act` gelu |

All: pre-norm, one linear layer without bias per projection, rotary positions (rotate-half), causal attention through
`scaled_dot_product_attention`, untied output matrix, cross-entropy on fp32 logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rotary_tables(seq_len: int, head_dim: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin, each [seq_len, head_dim]."""
    frequency = base ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(seq_len, dtype=torch.float64)[:, None] * frequency
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos().float(), angle.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` [batch, heads, seq, head_dim] turned by its position: the two of a pair are half a head apart."""
    one, other = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-other, one), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q = nn.Linear(hidden, heads * head_dim, bias=False)
        self.k = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.v = nn.Linear(hidden, kv_heads * head_dim, bias=False)
        self.o = nn.Linear(heads * head_dim, hidden, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        q = rotate(self.q(x).view(batch, seq, self.heads, self.head_dim).transpose(1, 2), cos, sin)
        k = rotate(self.k(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2), cos, sin)
        v = self.v(x).view(batch, seq, self.kv_heads, self.head_dim).transpose(1, 2)
        grouped = {"enable_gqa": True} if self.kv_heads < self.heads else {}
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
        return self.o(out.transpose(1, 2).reshape(batch, seq, self.heads * self.head_dim))


class SwiGLU(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Ungated(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x)))


class Experts(nn.Module):
    """A mixture: each token goes to the `chosen` experts with the highest scores, one expert after the other."""

    def __init__(self, hidden: int, inner: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(hidden, inner) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        scores = functional.softmax(self.router(flat), dim=-1, dtype=torch.float32)
        weight, choice = torch.topk(scores, self.chosen, dim=-1)
        weight = (weight / weight.sum(dim=-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(flat)
        for index, expert in enumerate(self.experts):
            token, place = torch.where(choice == index)
            y = expert(flat.index_select(0, token)) * weight[token, place, None]
            out.index_add_(0, token, y)
        return out.view_as(x)


class Block(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        hidden, heads, inner = config["hidden_size"], config["num_attention_heads"], config["intermediate_size"]
        self.norm_1, self.norm_2 = norm(config), norm(config)
        head_dim = config.get("head_dim") or hidden // heads
        self.attention = Attention(hidden, heads, config.get("num_key_value_heads") or heads, head_dim)
        self.feed_forward: nn.Module
        if config["model_type"] == "mixtral":
            self.feed_forward = Experts(hidden, inner, config["num_local_experts"], config["num_experts_per_tok"])
        else:
            self.feed_forward = (Ungated if config["model_type"] == "nemotron" else SwiGLU)(hidden, inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm_1(x), cos, sin)
        return x + self.feed_forward(self.norm_2(x))


class Transformer(nn.Module):
    """`forward(tokens, targets)`, both [batch, seq], gives the mean cross-entropy. `recompute`: per layer."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Mapping[str, Any], seq_len: int, recompute: bool = False) -> None:
        super().__init__()
        kind = config["model_type"]
        if kind not in ("llama", "mixtral", "nemotron"):
            raise ValueError(f"model_type {kind!r}: the truth model knows llama, mixtral and nemotron")
        if kind == "nemotron" and config.get("hidden_act") != "gelu":
            raise ValueError(f"hidden_act {config.get('hidden_act')!r}: of nemotron, only gelu is built here")
        hidden, vocab = config["hidden_size"], config["vocab_size"]
        self.recompute = recompute
        self.embedding = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Block(config) for _ in range(config["num_hidden_layers"]))
        self.norm = norm(config)
        self.head = nn.Linear(hidden, vocab, bias=False)
        self.head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
        self.rotary_base = config.get("rope_theta", 10000.0)
        self.register_buffer("cos", torch.empty(seq_len, self.head_dim), persistent=False)
        self.register_buffer("sin", torch.empty(seq_len, self.head_dim), persistent=False)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            if self.recompute:
                x = checkpoint(layer, x, self.cos, self.sin, use_reentrant=False)
            else:
                x = layer(x, self.cos, self.sin)
        return loss_of(self.head(self.norm(x)), targets)

    def compile_parts(self) -> None:
        """`torch.compile` layer by layer, as torchtitan does: one graph serves all layers that are alike."""
        for layer in self.layers:
            layer.compile()


def build(
    config: Mapping[str, Any],
    seq_len: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    recompute: bool = False,
) -> Transformer:
    """The model with its first weights, made in its own format at once: no copy in fp32 ever exists."""
    with torch.device("meta"):
        model = Transformer(config, seq_len, recompute)
    model = model.to(dtype).to_empty(device=device)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
        else:  # of a norm
            nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)
    with torch.no_grad():
        for buffer, table in zip(
            (model.cos, model.sin), rotary_tables(seq_len, model.head_dim, model.rotary_base), strict=True
        ):
            buffer.copy_(table)
    return model


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in fp32. The upcast makes a second copy of the logits in bf16, none in fp32."""
    return functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))


def norm(config: Mapping[str, Any]) -> nn.Module:
    hidden = config["hidden_size"]
    if config["model_type"] == "nemotron":
        return nn.LayerNorm(hidden, eps=config.get("norm_eps", 1e-5))
    return RMSNorm(hidden, config.get("rms_norm_eps", 1e-5))


def parameters_in(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
