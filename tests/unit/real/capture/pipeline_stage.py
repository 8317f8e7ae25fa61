"""One stage of a pipeline among virtual peers; the stages reach each other by mailbox. Run by test_world_training.

python pipeline_stage.py STAGE OF WORLD_SIZE PORT
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist
from mailboxes import connect_mailbox
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from windtunnel.real.capture.virtual_world.world import World

stages, world_size, port = map(int, sys.argv[1:])
stage, others = 0, []
for other in range(1, stages):  # a process each
    others.append(os.fork())
    if others[-1] == 0:
        stage, others = other, []
        break
torch.set_num_threads(1)
rank = stage * (world_size // stages) + 3
with World(rank, world_size, mailbox=connect_mailbox(port), mailbox_timeout_s=60) as world:
    world.calls = []
    dist.init_process_group("gloo")
    mesh = dist.init_device_mesh("cpu", (stages, world_size // stages), mesh_dim_names=("pp", "dp"))
    assert mesh["pp"].get_local_rank() == stage
    torch.manual_seed(stage)
    module = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh())
    part = PipelineStage(module, stage, stages, torch.device("cpu"), group=mesh["pp"].get_group())
    schedule = Schedule1F1B(part, 4, loss_fn=torch.nn.functional.mse_loss)
    for _ in range(2):
        losses: list[torch.Tensor] = []
        x = torch.ones(8, 8)
        if stage == 0:
            schedule.step(x)
        elif stage == stages - 1:
            schedule.step(target=x, losses=losses)
        else:
            schedule.step()
    data = [call for call in world.calls if not call.is_control]
    ends = 1 if stage in (0, stages - 1) else 2
    assert sum(call.kind == "send" for call in data) == ends * 8, [call.kind for call in data]
    assert sum(call.kind == "recv" for call in data) == ends * 8
    assert any(call.is_control and call.is_message for call in world.calls)
    assert all(torch.isfinite(loss) for loss in losses)
    assert all(torch.isfinite(p.grad).all() for p in module.parameters())
print("ok", stage, flush=True)
sys.exit(any(os.waitpid(pid, 0)[1] for pid in others))
