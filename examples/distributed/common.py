"""What every script here shares: arguments, process group, data, loss, gradient clipping, and one line per step."""
# mypy: allow-subclassing-any

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from model import CONFIGS
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, DistributedSampler


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The arguments that all scripts know."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", choices=sorted(CONFIGS), default="debug")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seq", type=int, help="tokens in a sequence (default: the config's)")
    parser.add_argument("--batch", type=int, help="sequences in a step, of all ranks (default: one a micro-batch)")
    parser.add_argument("--micro-batches", type=int, default=1, help="forward and backward passes in a step")
    parser.add_argument("--precision", choices=("bf16", "fp32"), default="bf16", help="of layers, where FSDP is used")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--all-ranks", action="store_true", help="print on every rank, not on rank 0 alone")
    return parser


@dataclass(frozen=True)
class Job:
    """This process among its peers, as torchrun's environment says."""

    rank: int
    world_size: int
    device: torch.device


@contextmanager
def job() -> Iterator[Job]:
    """Join the process group: nccl and one GPU a rank, or gloo and the CPU where there is none."""
    rank, world_size, local_rank = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if torch.cuda.is_available():
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    try:
        yield Job(rank, world_size, device)
        dist.barrier()
        if device.type == "cpu":
            time.sleep(0.2)  # gloo's threads let go of their last tensors; after Python's end that aborts (torch 2.13)
    finally:
        dist.destroy_process_group()


class Counting(Dataset):
    """Sequences that count to 32, over and over, from different numbers: so easy that the loss falls at once."""

    def __init__(self, seq: int, size: int) -> None:
        self.seq, self.size = seq, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Tensor:
        return (7 * index + torch.arange(self.seq + 1)) % 32


def batches(
    args: argparse.Namespace, job: Job, replica: int, replicas: int, first_step: int = 0
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Step number, tokens and targets [sequences, seq] of one data-parallel replica, its micro-batches together."""
    batch = args.batch or replicas * args.micro_batches
    if batch % (replicas * args.micro_batches):
        raise SystemExit(
            f"--batch {batch}: must be a multiple of {replicas} replicas x {args.micro_batches} micro-batches"
        )
    data = Counting(args.seq or CONFIGS[args.config].seq, batch * args.steps)
    order = DistributedSampler(data, replicas, replica, shuffle=False)
    loader = DataLoader(data, batch // replicas, sampler=order, num_workers=args.workers, drop_last=True)
    for step, sequences in enumerate(loader):
        if step >= first_step:
            sequences = sequences.to(job.device, non_blocking=True)
            yield step, sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()


def micro_batches(args: argparse.Namespace, tokens: Tensor, targets: Tensor) -> Iterator[tuple[bool, Tensor, Tensor]]:
    """Parts of a step's tokens and targets, and whether each is the last."""
    count = args.micro_batches
    for index, (x, y) in enumerate(zip(tokens.chunk(count), targets.chunk(count), strict=True)):
        yield index == count - 1, x, y


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over all tokens, in fp32."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def clip_gradients(
    *parts: tuple[list[nn.Parameter], dist.ProcessGroup | None], limit: float = 1.0, foreach: bool | None = None
) -> Tensor:
    """Clip all gradients by their common norm, and return it.

    Each part: parameters of one device mesh, and the group whose members hold other parameters of the model (None: all
    of them are seen here).
    """
    squares = []
    for parameters, group in parts:
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None], foreach=foreach)
        square = (norm.full_tensor() if isinstance(norm, DTensor) else norm) ** 2
        if group is not None:
            dist.all_reduce(square, group=group)
        squares.append(square)
    total = torch.stack(squares).sum().sqrt()
    for parameters, _ in parts:
        nn.utils.clip_grads_with_norm_(parameters, limit, total, foreach=foreach)
    return total


class Progress:
    """Prints loss, gradient norm and seconds after each step; a step begins where the last one was printed."""

    def __init__(self, args: argparse.Namespace, job: Job) -> None:
        self.shown = job.rank == 0 or args.all_ranks
        self.began = time.perf_counter()

    def step(self, step: int, loss: Tensor, norm: Tensor, parts: int) -> None:
        """`loss` is a mean on `parts` of the ranks, which have different data, and 0 on the others."""
        loss = loss.detach().clone()
        dist.all_reduce(loss)
        line = f"step {step + 1}  loss {loss.item() / parts:.5f}  gradient norm {norm.item():.5f}"
        now = time.perf_counter()  # after item(), which has waited for the device
        if self.shown:
            print(f"{line}  {now - self.began:.3f} s", flush=True)
        self.began = now
