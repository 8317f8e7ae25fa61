"""What the host takes to run an eager transformer layer, forward and backward, per kernel as the model counts them.

    python validation/eager_host.py

A layer of GPT as Megatron-DeepSpeed has it (biases, dropout, attention as plain products) on tensors so small that only
Python, PyTorch's dispatcher and autograd take time. Needs torch; a CPU will do. The times are of this host and of this
PyTorch; a CUDA launch (about 5 us) stands in the place of a tiny kernel. The smallest of many runs counts.
"""

from __future__ import annotations

import time
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


def main() -> None:
    """Measure and print."""
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
