"""Small decoders and what runs them, for the tests of the recorder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import nn

from windtunnel.real.capture.fake_tensors.fake import fake_tensors
from windtunnel.real.capture.recorder.recorder import Recorder
from windtunnel.real.capture.torch_private import distributed as compat
from windtunnel.real.capture.virtual_world.world import World
from windtunnel.studies.programs.program import RankProgram

torch.set_num_threads(1)

VOCABULARY, SEQUENCE = 256, 32


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, _ = x.shape
        width = self.wq.out_features // self.heads
        q, k, v = (w(x).view(batch, sequence, -1, width).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(out.transpose(1, 2).reshape(batch, sequence, -1))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width), Attention(width, heads)
        self.ffn_norm = nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.silu(self.up(self.ffn_norm(x))))


class Decoder(nn.Module):
    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def batch(device: str = "cpu") -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (2, SEQUENCE), device=device)


def train(
    model: nn.Module, steps: int = 2, device: str = "cpu", *, accumulate: int = 1, clip: bool = False
) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        for _ in range(accumulate):
            tokens = batch(device)
            loss = loss_of(model(tokens), tokens)
            loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def recorded(job: Callable[..., Any], *, fake: str | None = None, **how: Any) -> Recorder:
    """`job(device)` on real CPU tensors, or on fake ones on a device."""
    with fake_tensors(fake) if fake else contextlib.nullcontext(), Recorder(0, 1, **how) as recorder:
        job(fake or "cpu")
    return recorder


@contextlib.contextmanager
def rank_of(world_size: int, rank: int, *, fake: str | None = None) -> Iterator[World]:
    """A rank of a virtual world, with torchrun's environment."""
    environment = {
        **{"RANK": str(rank), "WORLD_SIZE": str(world_size), "LOCAL_RANK": str(rank % 8)},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"},
    }
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        with contextlib.ExitStack() as stack:
            if fake:
                stack.enter_context(fake_tensors(fake, gpus=8, local_rank=rank % 8))
                stack.enter_context(compat.real_device_meshes())
                stack.enter_context(compat.ddp_outside_modes())
            world = stack.enter_context(World(rank, world_size))
            dist.init_process_group("nccl" if fake == "cuda" else "gloo")
            yield world
    finally:
        os.environ.clear()
        os.environ.update(before)


def replayed(program: RankProgram) -> dict[int, int]:
    """Bytes by storage when the step is over."""
    held: dict[int, int] = {}
    for event in (*program.resident, *program.memory):
        held[event.storage] = held.get(event.storage, 0) + event.bytes
    return {storage: size for storage, size in held.items() if size}
