"""What the scripts of this folder share: arguments, a corpus, and how losses are written."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--out", type=Path, required=True, help="folder for losses and weights, by rank")
parser.add_argument("--pause", type=float, default=0.0)
asked = parser.parse_args()
torch.set_num_threads(1)


def start(seed: int = 0) -> tuple[int, int]:
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    return dist.get_rank(), dist.get_world_size()


def survivable(step, *things, **named):
    if os.environ.get("PLAIN"):
        return step
    from windtunnel.survive import standby

    if not os.environ.get("STRIKE"):
        return standby(step, *things, **named)
    from strikes import counted

    step, begun = counted(dist.get_rank(), step)
    begun.append(standby(step, *things, **named))
    return begun[0]


def offloaded(model):
    """With OFFLOAD=w, a window of w layers beside the one that computes."""
    if not os.environ.get("OFFLOAD"):
        return model
    from windtunnel.real.techniques import offload

    return offload.apply(model, window=int(os.environ["OFFLOAD"]))


def finish(losses, *modules) -> None:
    """Losses as bits, and a hash of all weights that this rank holds."""
    digest = hashlib.sha256()
    for module in modules:
        for value in module.state_dict().values():
            if isinstance(value, torch.Tensor):
                local = value.to_local() if hasattr(value, "to_local") else value
                digest.update(local.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    told = {"losses": [float(one).hex() for one in losses], "weights": digest.hexdigest()}
    path = asked.out / f"{dist.get_rank()}.json"
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(told))
    partial.replace(path)
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
