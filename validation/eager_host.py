"""What the host takes to run an eager transformer layer, forward and backward, per kernel as the model counts them.

    python validation/eager_host.py              plain modules
    python validation/eager_host.py --dtensor    a layer of Llama among four tensor-parallel ranks, beside plain modules

A layer of GPT as Megatron-DeepSpeed has it (biases, dropout, attention as plain products) on tensors so small that only
Python, PyTorch's dispatcher and autograd take time. Needs torch; a CPU will do. The times are of this host and of this
PyTorch; a CUDA launch (about 5 us) stands in the place of a tiny kernel. The smallest of many runs counts. DTensor's
collectives are those of a fake process group, which does nothing: what is left is its dispatch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

HIDDEN, HEADS, TOKENS, LAYERS, RUNS = 32, 2, 4, 8, 60
# Of one layer: `training/lowering/pass_lowering.py` for framework megatron-deepspeed, unfused attention.
FORWARD_KERNELS, BACKWARD_KERNELS = 13, 21


class Attention(nn.Module):
    """Queries, keys and values in one product, scores and probabilities written out."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.bias, self.drop = nn.Parameter(torch.zeros(HIDDEN)), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, sequences, hidden] -> the same, and a bias that is added with the residual."""
        s, b, h = x.shape
        d, n = h // HEADS, b * HEADS
        q, k, v = torch.split(self.qkv(x).view(s, b, HEADS, 3 * d), d, dim=3)
        q, k, v = (one.reshape(s, n, d).transpose(0, 1) for one in (q, k, v))
        scores = torch.baddbmm(torch.empty(n, s, s), q, k.transpose(1, 2), beta=0.0, alpha=d**-0.5)
        shares = self.drop(torch.softmax(scores.view(b, HEADS, s, s), dim=-1)).view(n, s, s)
        context = torch.bmm(shares, v).view(b, HEADS, s, d).permute(2, 0, 1, 3).contiguous().view(s, b, h)
        return self.out(context), self.bias


class Layer(nn.Module):
    """One block: norm, attention, residual with dropout, norm, feed-forward, residual with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)))
        self.attention = Attention()
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN, bias=False)
        self.bias = nn.Parameter(torch.zeros(HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, sequences, hidden] -> the same."""
        out, bias = self.attention(self.norms[0](x))
        x = x + nn.functional.dropout(out + bias, 0.1, self.training)
        out = self.down(nn.functional.gelu(self.up(self.norms[1](x))))
        return x + nn.functional.dropout(out + self.bias, 0.1, self.training)


class LlamaAttention(nn.Module):
    """Queries, keys and values in three products."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[sequences, tokens, hidden] -> the same."""
        by_head = (branch(x).unflatten(-1, (-1, HIDDEN // 8)).transpose(1, 2) for branch in self.branches)
        context: torch.Tensor = nn.functional.scaled_dot_product_attention(*by_head, is_causal=True)
        return self.out(context.transpose(1, 2).flatten(2))


class SwiGlu(nn.Module):
    """Gate and up in two products."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[sequences, tokens, hidden] -> the same."""
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class LlamaLayer(nn.Module):
    """torchtitan's block."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList((nn.RMSNorm(HIDDEN), nn.RMSNorm(HIDDEN)))
        self.attention, self.feed_forward = LlamaAttention(), SwiGlu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[sequences, tokens, hidden] -> the same."""
        x = x + self.attention(self.norms[0](x))
        return x + self.feed_forward(self.norms[1](x))


def sharded(layers: Sequence[nn.Module]) -> None:
    """Divide them among four ranks as torchtitan does: sequence-parallel norms, columns, rows."""
    from torch.distributed import init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, parallel
    from torch.testing._internal.distributed.fake_pg import FakeStore

    init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    mesh = init_device_mesh("cpu", (4,))
    rows = parallel.RowwiseParallel(output_layouts=Shard(1))
    gathered = parallel.PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    plan: dict[str, Any] = {f"norms.{number}": parallel.SequenceParallel() for number in range(2)}
    columns = [*(f"attention.branches.{number}" for number in range(3)), "feed_forward.gate", "feed_forward.up"]
    plan |= dict.fromkeys(columns, parallel.ColwiseParallel())
    plan |= {"attention": gathered, "attention.out": rows, "feed_forward": gathered, "feed_forward.down": rows}
    for layer in layers:
        parallel.parallelize_module(layer, mesh, plan)


def layer_s(layers: Sequence[nn.Module], x: torch.Tensor) -> tuple[float, float]:
    """Seconds a layer, forward and backward."""
    model, times = nn.Sequential(*layers), []
    for _ in range(RUNS):
        begun = time.thread_time()
        loss = model(x).sum()
        between = time.thread_time()
        loss.backward()
        times.append((between - begun, time.thread_time() - between))
    return min(one for one, _ in times) / len(layers), min(other for _, other in times) / len(layers)


def dtensor() -> None:
    """Print what DTensor adds to plain modules for each of a layer's four exchanges forward and four back."""
    torch.set_num_threads(1)
    plain, divided = ([LlamaLayer() for _ in range(LAYERS)] for _ in range(2))
    alone = layer_s(plain, torch.randn(1, TOKENS, HIDDEN, requires_grad=True))
    sharded(divided)
    among = layer_s(divided, torch.randn(1, TOKENS // 4, HIDDEN, requires_grad=True))
    for name, one, other in zip(("forward", "backward"), alone, among, strict=True):
        print(f"us a layer {name}: plain {one * 1e6:.0f}, DTensor {other * 1e6:.0f}")
    print(f"us an exchange: {1e6 * (sum(among) - sum(alone)) / 8:.0f}")


def main() -> None:
    """Measure and print."""
    if "--dtensor" in sys.argv:
        return dtensor()
    torch.set_num_threads(1)
    model = nn.Sequential(*(Layer() for _ in range(LAYERS)))
    x = torch.randn(TOKENS, 1, HIDDEN, requires_grad=True)
    found: dict[str, list[float]] = {"forward": [], "without a graph": [], "backward": []}

    def timed(name: str, call: Any) -> Any:
        begun = time.thread_time()
        result = call()
        found[name].append(time.thread_time() - begun)
        return result

    for _ in range(RUNS):
        loss = timed("forward", lambda: model(x)).sum()
        timed("backward", loss.backward)
        with torch.no_grad():
            timed("without a graph", lambda: model(x))
    layer = {name: min(values) / LAYERS for name, values in found.items()}
    forward, backward = layer["forward"] / FORWARD_KERNELS, layer["backward"] / BACKWARD_KERNELS
    print("us a layer:", ", ".join(f"{name} {seconds * 1e6:.0f}" for name, seconds in layer.items()))
    print(f"us a kernel: forward {forward * 1e6:.1f}, backward {backward * 1e6:.1f}, ratio {backward / forward:.2f}")


if __name__ == "__main__":
    main()
