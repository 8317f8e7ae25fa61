"""A few blocks trained with DeepSpeed: `deepspeed_zero.py STAGE [init] [fp16]`; `init` builds them in `zero.Init`."""

from __future__ import annotations

import contextlib
import sys

import deepspeed
import torch
from torch import nn

WIDTH, BLOCKS, STEPS = 256, 3, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


def main(stage: int, *words: str) -> None:
    half = "fp16" in words
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": not half},
        "fp16": {"enabled": half},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "gradient_clipping": 1.0,
    }
    deepspeed.init_distributed()
    with deepspeed.zero.Init(config_dict_or_path=config) if "init" in words else contextlib.nullcontext():
        model = nn.Sequential(*[Block() for _ in range(BLOCKS)])
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    for _ in range(STEPS):
        x = torch.randn(4, WIDTH, device=engine.device, dtype=torch.float16 if half else torch.bfloat16)
        engine.backward(engine(x).float().square().mean())
        engine.step()


main(int(sys.argv[1]), *sys.argv[2:])
