"""What offload costs a step with and without torch.compile, in paired CPU time, and whether the bits stay.

    python validation/techniques/compiled_offload.py [WIDTH ...]

A transformer of six layers, one process, a window of one layer: each step is done by all six models in turn (eager,
aot_eager, inductor, each with and without), and a ratio is the median over steps. Needs torch and a compiler of C++.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

import torch

from windtunnel.real.techniques import offload

sys.path.insert(0, str(Path(__file__).parents[1] / "resilience" / "loops"))
import net

BACKENDS, STEPS, WARM_UP, LAYERS = ("eager", "aot_eager", "inductor"), 20, 2, 6


def made(backend: str, is_offloaded: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = net.Net(LAYERS)
    if is_offloaded:
        model = offload.apply(model, window=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return (model if backend == "eager" else torch.compile(model, backend=backend)), optimizer


def stepped(model: torch.nn.Module, optimizer: torch.optim.Optimizer, at: int) -> tuple[float, float]:
    """Loss, and CPU seconds."""
    torch.manual_seed(at)  # of dropout
    tokens, targets = net.batch(at, 0, 16)
    began = time.process_time()
    optimizer.zero_grad()
    loss = net.cross_entropy(model(tokens), targets)
    loss.backward()
    optimizer.step()
    return loss.item(), time.process_time() - began


def main() -> int:
    torch.set_num_threads(1)
    same = True
    for width in [int(word) for word in sys.argv[1:]] or [32, 128, 256]:
        net.WIDTH = width
        models = {(backend, away): made(backend, away) for backend in BACKENDS for away in (False, True)}
        done = {key: [stepped(*pair, at) for at in range(WARM_UP)] for key, pair in models.items()}
        for at in range(WARM_UP, WARM_UP + STEPS):
            for key, pair in models.items():
                done[key].append(stepped(*pair, at))
        for backend in BACKENDS:
            without, with_it = ([*zip(*done[backend, away], strict=True)] for away in (False, True))
            ratio = statistics.median(b / a for a, b in zip(without[1][WARM_UP:], with_it[1][WARM_UP:], strict=True))
            same &= without[0] == with_it[0]
            print(f"width {width}, {backend}: {ratio:.3f} x a step without, same bits {without[0] == with_it[0]}")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
