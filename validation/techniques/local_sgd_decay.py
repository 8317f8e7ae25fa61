"""Learning rates that decay over rounds, and over rounds and local steps: final loss on clients with unlike data.

    python validation/techniques/local_sgd_decay.py [--seeds 5]

Ten clients whose classes follow Dirichlet(0.1), softmax regression and a small network, 40 rounds of 20 steps. Every
schedule is tuned over the same number of first rates. Clients are a batch dimension, so one process is enough; that the
real loop averages the same weights is tested on gloo. The paper (IJCNN 2021) was not to be had: nothing is claimed of
it.
"""

from __future__ import annotations

import argparse

import torch

from windtunnel.studies.techniques.parameters import LocalPlan

CLIENTS, CLASSES, FEATURES, HIDDEN, ROUNDS, LOCAL, BATCH = 10, 10, 20, 32, 40, 20, 16
FIRST_RATES = (0.1, 0.3, 1.0, 2.0, 4.0)
SCHEDULES = {
    "constant": LocalPlan(LOCAL, "constant", 0.0, "constant", 0.0),
    "rounds 1/t": LocalPlan(LOCAL, "inverse", 0.1, "constant", 0.0),
    "rounds exp": LocalPlan(LOCAL, "exponential", 0.05, "constant", 0.0),
    "both 1/t": LocalPlan(LOCAL, "inverse", 0.1, "inverse", 0.2),
    "both exp": LocalPlan(LOCAL, "exponential", 0.05, "exponential", 0.1),
}


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = 1.2 * torch.randn(CLASSES, FEATURES, generator=generator)
    torch.manual_seed(seed)
    shares = torch.distributions.Dirichlet(torch.full((CLASSES,), 0.1)).sample((CLIENTS,))
    labels = torch.multinomial(shares, 400, replacement=True, generator=generator)
    return centres[labels] + 1.5 * torch.randn(CLIENTS, 400, FEATURES, generator=generator), labels


def losses(weights: list[torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = x @ weights[0] if len(weights) == 1 else torch.tanh(x @ weights[0]) @ weights[1]
    each = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return each.view(len(x), -1).mean(1)


def run(seed: int, plan: LocalPlan, first: float, deep: bool) -> float:
    x, y = data(seed)
    generator = torch.Generator().manual_seed(1000 + seed)
    shapes = [(FEATURES, HIDDEN), (HIDDEN, CLASSES)] if deep else [(FEATURES, CLASSES)]
    shared = [torch.randn(shape, generator=generator) / shape[0] ** 0.5 for shape in shapes]
    rows = torch.arange(CLIENTS)[:, None]
    for number in range(ROUNDS):
        local = [w.expand(CLIENTS, *w.shape).clone().requires_grad_() for w in shared]
        for step in range(plan.local_steps):
            pick = torch.randint(0, x.shape[1], (CLIENTS, BATCH), generator=generator)
            gradients = torch.autograd.grad(losses(local, x[rows, pick], y[rows, pick]).sum(), local)
            with torch.no_grad():
                for weight, gradient in zip(local, gradients, strict=True):
                    weight -= first * plan.factor(number, step) * gradient
        shared = [w.detach().mean(0) for w in local]
    return float(losses([w.expand(CLIENTS, *w.shape) for w in shared], x, y).mean())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    torch.set_num_threads(1)
    for deep in (False, True):
        for name, plan in SCHEDULES.items():
            tried = {
                first: torch.tensor([run(seed, plan, first, deep) for seed in range(seeds)]) for first in FIRST_RATES
            }
            best = min(tried, key=lambda first: float(tried[first].nan_to_num(1e9).mean()))
            print(
                f"{'network' if deep else 'softmax':8} {name:12} first rate {best:4}: final loss "
                f"{float(tried[best].mean()):.4f} +- {float(tried[best].std()):.4f} over {seeds} seeds",
                flush=True,
            )


if __name__ == "__main__":
    main()
