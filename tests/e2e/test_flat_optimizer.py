"""A distributed optimizer, whose flat buffer is cut anywhere: a few ranks against every rank, and parts of tensors that
ranks tell each other.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("torch")

from forked import windtunnel

from windtunnel.studies.programs.folder import load_job
from windtunnel.studies.programs.program import RankProgram
from windtunnel.studies.programs.rank_classes.equality import memory_facts

RANKS = 16
SCRIPT = """
import sys, torch, torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.Sequential(*(torch.nn.Linear(24, 24) for _ in range(5))).cuda().bfloat16()
params = list(model.parameters())
part = -(-sum(p.numel() for p in params) // (24 * size)) * 24
weights, grads = (torch.zeros(part * size, dtype=dtype, device="cuda") for dtype in (torch.bfloat16, torch.float32))
at, pieces = 0, []
for p in params:
    weights[at : at + p.numel()].copy_(p.data.view(-1))
    p.data = weights[at : at + p.numel()].view(p.shape)
    p.main_grad = grads[at : at + p.numel()].view(p.shape)
    low, high = max(at, rank * part), min(at + p.numel(), (rank + 1) * part)
    high = max(low, high)
    if "told" in sys.argv:
        local = weights[low:high].view(-1, *p.shape[1:])
        mesh = init_device_mesh("cuda", (size,))
        shard = DTensor.from_local(local, mesh, [Shard(0)], shape=p.shape, stride=p.stride())
        dist.all_gather_object(lengths := [None] * size, list(shard.to_local().shape))
        assert sum(length[0] for length in lengths) == p.shape[0], lengths
        assert lengths[rank] == list(local.shape)
        ends = torch.tensor([low == at, high == at + p.numel() and high > low], dtype=torch.int).cuda()
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        assert torch.all(ends), "a part is missing"
    if low < high:
        pieces.append((p.dim() > 1, torch.nn.Parameter(weights[low:high].clone().float()), slice(low, high)))
    at += p.numel()
for p in params:
    p.register_post_accumulate_grad_hook(lambda p: (p.main_grad.add_(p.grad), setattr(p, "grad", None))[1])
kinds = [[main for is_matrix, main, _ in pieces if is_matrix == kind] for kind in (True, False)]
optimizer = torch.optim.AdamW([{"params": mains} for mains in kinds if mains], lr=1e-4, foreach="each" not in sys.argv)
own = slice(rank * part, (rank + 1) * part)
for step in range(3):
    grads.zero_()
    model(torch.randn(8, 24, device="cuda", dtype=torch.bfloat16)).float().square().mean().backward()
    dist.reduce_scatter_tensor(grads[own], grads, op=dist.ReduceOp.AVG)
    for _, main, where in pieces:
        main.grad = grads[where].float()
    optimizer.step()
    for _, main, where in pieces:
        weights[where].copy_(main.detach())
    dist.all_gather_into_tensor(weights, weights[own].clone())
"""


def facts(program: RankProgram) -> tuple[object, ...]:
    """What a program executes, exchanges and holds."""
    calls = [(call.kind, call.bytes, len(call.members)) for op in program.ops if (call := op.communication)]
    return Counter(op.name for op in program.ops), calls, memory_facts(program)


def test_the_fold_of_a_flat_buffer_is_the_job_of_all_ranks(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    jobs = []
    for how in (("--verify", "0"), ("--representatives", "all")):
        words = ("--world-size", str(RANKS), "--out", how[0].strip("-"), *how, "train.py", "told", "each")
        done = windtunnel("capture", *words, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        jobs.append(load_job(tmp_path / how[0].strip("-")))
    few, every = jobs
    said = [facts(few.programs[int(few.runs[rank])]) for rank in range(RANKS)]
    assert said == [facts(every.programs[int(every.runs[rank])]) for rank in range(RANKS)]
    assert len({str(fact) for fact in said}) > 2  # or there was nothing to find
    assert len(few.programs) < RANKS // 2
