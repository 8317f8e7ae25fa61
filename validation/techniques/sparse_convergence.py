"""Sparse gradients against whole ones: final loss and traffic over seeds, on three small models, two gloo ranks.

    python validation/techniques/sparse_convergence.py [--seeds 5] [--steps 600]

Models: a three-layer perceptron on a teacher's noisy outputs, logistic regression on labels that a teacher draws, and a
small transformer on a language of repeated patterns with one symbol in ten at random. Loss: mean of the last tenth of
the steps, over both ranks' batches. Plain SGD; with `--momentum 0.9` momentum, in the hook where gradients are sparse
(momentum correction), in the optimizer where they are whole.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
from datetime import timedelta

SETTINGS = {  # model -> (learning rate, what is sent)
    "perceptron": (0.05, {"ratio": 0.10, "chunk": 64, "warmup": 10}),
    "logistic": (0.5, {"ratio": 0.10, "chunk": 64, "warmup": 10}),
    "transformer": (0.2, {"ratio": 0.10, "chunk": 64, "warmup": 10}),
}


def build(name: str, seed: int):
    import torch
    from torch import nn

    torch.manual_seed(seed)
    if name == "perceptron":
        return nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(), nn.Linear(128, 8))
    if name == "logistic":
        return nn.Sequential(nn.Linear(64, 100))

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(16, 32), nn.Parameter(torch.randn(16, 32) / 10)
            layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
            self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(32, 16)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            return self.head(self.body(self.embed(x) + self.place, mask=mask, is_causal=True))

    return Small()


def loss_of(name: str, model, generator, teacher):
    import torch
    from torch.nn import functional

    if name == "perceptron":
        x = torch.randn(32, 32, generator=generator)
        noise = 0.3 * torch.randn(32, 8, generator=generator)
        return (model(x) - teacher(x) - noise).square().mean()
    if name == "logistic":
        x = torch.randn(64, 64, generator=generator)
        drawn = torch.multinomial((6.0 * teacher(x)).softmax(1), 1, generator=generator).view(-1)
        return functional.cross_entropy(model(x), drawn)
    start = torch.randint(0, 16, (16, 4), generator=generator)
    x = start.repeat(1, 5)  # four symbols again and again: predictable from the fifth on
    random = torch.randint(0, 16, x.shape, generator=generator)
    x = torch.where(torch.rand(x.shape, generator=generator) < 0.1, random, x)
    return functional.cross_entropy(model(x[:, :16]).flatten(0, 1), x[:, 1:17].flatten())


def train(name: str, seed: int, steps: int, momentum: float, sparse: dict | None) -> tuple[float, float, bool]:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from windtunnel.real.techniques import sparse_gradients

    rate = SETTINGS[name][0] * (1.0 - momentum)
    torch.manual_seed(1000 + seed)
    teacher = torch.nn.Linear(32, 8) if name == "perceptron" else torch.nn.Linear(64, 100)
    for parameter in teacher.parameters():
        parameter.requires_grad_(False)
    ddp = DistributedDataParallel(build(name, seed))
    state = None
    if sparse is not None:
        state = sparse_gradients.State(ddp.module, **sparse, momentum=momentum)
        ddp.register_comm_hook(state, sparse_gradients.hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=rate, momentum=0.0 if sparse else momentum)
    generator = torch.Generator().manual_seed(100 * seed + dist.get_rank())
    losses = []
    for _ in range(steps):
        loss = loss_of(name, ddp, generator, teacher)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    final = torch.tensor([statistics.mean(losses[-steps // 10 :])])
    dist.all_reduce(final)
    flat = torch.cat([p.detach().reshape(-1) for p in ddp.parameters()])
    both = [torch.empty_like(flat) for _ in range(2)]
    dist.all_gather(both, flat)
    return float(final) / 2, state.share_sent if state else 1.0, torch.equal(*both)


def rank_main(rank: int, asked: argparse.Namespace, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    where = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=timedelta(seconds=600))
    for name, (_, sparse) in SETTINGS.items():
        if asked.only not in ("", name):
            continue
        whole, thin, shares, equal = [], [], [], True
        for seed in range(asked.seeds):
            whole.append(train(name, seed, asked.steps, asked.momentum, None)[0])
            loss, share, same = train(name, seed, asked.steps, asked.momentum, sparse)
            thin.append(loss)
            shares.append(share)
            equal &= same
        if rank == 0:
            gap = statistics.mean(thin) / statistics.mean(whole) - 1.0
            print(
                f"{name:12} whole {statistics.mean(whole):.5f} sparse {statistics.mean(thin):.5f} gap {gap:+.2%},"
                f" traffic {1 / statistics.mean(shares):.1f} x less, replicas bit-equal {equal}, {asked.seeds} seeds",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    processes = [multiprocessing.Process(target=rank_main, args=(rank, options, 29641)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
