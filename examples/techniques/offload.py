"""A model whose state is four times a device's memory, trained in a window of layers, bit-equal to plain training.

    python examples/techniques/offload.py

On a CPU the device is played by a second set of storages, and only what would be on it is counted.
"""

from __future__ import annotations

import torch
from torch import nn

from windtunnel.real.techniques import offload

LAYERS, WIDTH, STEPS = 32, 128, 5


def adam(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """The optimizer of a layer, or of what is always on the device."""
    return torch.optim.Adam(parameters, lr=1e-3)


def build() -> nn.Sequential:
    """The same model every time."""
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(LAYERS)])


def main() -> None:
    """Train plainly and in a window, and say what both come to."""
    model, plain = build(), build()
    state = 4 * sum(p.numel() * p.element_size() for p in model.parameters())
    windowed = offload.apply(model, adam, window="auto", device_memory=state // 4)
    optimizer = adam(list(plain.parameters()))
    for step in range(STEPS):
        x = torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(step))
        for net in (plain, model):
            loss = (net(x) - x).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        windowed.step()
    held = windowed.whole_parameters()
    same = all(torch.equal(parameter, held[name]) for name, parameter in plain.named_parameters())
    print(f"loss {loss.item():.4f}, parameters bit-equal to plain training: {same}")
    print(f"state {state / 2**20:.1f} MiB, window {windowed.window}, peak {windowed.arena.peak / 2**20:.1f} MiB")
    windowed.close()


if __name__ == "__main__":
    main()
