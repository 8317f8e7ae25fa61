"""What few scripts do, in one of each kind; `validation/emulation/unusual.py` has a script for each."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

import forked

SCRIPT = """
import logging, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
logging.basicConfig(filename="train.log", level=logging.INFO)
store = _get_default_store()
if rank == 0:
    store.set("scale", "3")
scale = int(store.get("scale"))
given = [None]
dist.scatter_object_list(given, [{"part": part} for part in range(world)] if rank == 0 else None, src=0)
assert given[0] == {"part": rank} and scale == 3
weight = nn.Parameter(torch.ones(8, 8, device="cpu:0"))
optimizer = torch.optim.SGD([weight], lr=0.1)
to = [1 + (rank + other) % 3 for other in range(world)]
for step in range(4):
    x = torch.ones(4, 8) + torch.ones(4, 8).to("cpu:0")
    loss = (x @ weight).sum()
    loss.backward()
    work = dist.all_reduce(weight.grad, async_op=True)
    dist.all_to_all_single(torch.empty(sum(to), 2), torch.ones(sum(to), 2), to, to)
    work.wait()
    optimizer.step()
    optimizer.zero_grad()
    said = [None] * world
    dist.all_gather_object(said, step)
    assert said == [step] * world and torch.allclose(x, torch.full((4, 8), 2.0))
    if torch.isnan(loss):
        sys.exit(3)
    logging.info(f"{step}: {loss:.3f}")
    if rank == 0:
        torch.save(weight, "part.pt")
        os.replace("part.pt", "model.pt")
    if rank == 2 and "skip" in sys.argv:
        dist.barrier()
"""
FILES = {"train.py": SCRIPT, "model.pt": "mine", "train.log": "before\n"}


def windtunnel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "tmp").mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
    done = forked.windtunnel(*words, cwd=folder, env=environment, timeout=600)
    assert not list((folder / "tmp").glob("windtunnel-*"))
    return done


def users_files(folder: Path) -> dict[str, str]:
    ours = ("captured", "tmp", "__pycache__")
    found = (path for path in folder.iterdir() if path.name not in ours)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.slow
def test_an_unusual_script_is_captured_and_no_file_changes(folder: Path) -> None:
    before = users_files(folder)
    done = windtunnel(folder, "capture", "--world-size", "4", "--device", "cpu", "train.py")
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())  # wrapped at 80 columns where sizes of pickled objects are told longer
    assert re.search(r"all_gather 1 \S+ \S+ objects and small tensors of the host", text), done.stdout
    assert users_files(folder) == before


@pytest.mark.slow
def test_a_call_of_one_rank_alone_is_named(folder: Path) -> None:
    done = windtunnel(folder, "capture", "--world-size", "4", "--device", "cpu", "train.py", "skip")
    assert done.returncode == 4
    assert "the job could not run" in done.stderr
    assert "rank 2" in done.stderr


OTHER_GROUP = """import torch, torch.distributed as dist
dist.init_process_group("gloo")
first = dist.new_group([0, 1])
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    model(torch.randn(2, 8)).sum().backward()
    for parameter in model.parameters():
        if dist.get_rank() == 1:
            dist.all_reduce(parameter.grad, group=first)
        else:
            dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_both_groups_of_a_call_on_the_wrong_one_are_named(tmp_path: Path) -> None:
    (tmp_path / "group.py").write_text(OTHER_GROUP)
    done = windtunnel(tmp_path, "capture", "--world-size", "4", "--device", "cpu", "group.py")
    assert done.returncode == 4
    error, more = done.stderr.splitlines()[-2:]
    assert error.startswith("windtunnel: error: the job could not run: collective 1 of group world")
    assert more.startswith("found, too: hang: collective 1 of group ranks 0, 1, in step 1: rank 1 calls all_reduce")


@pytest.mark.slow
def test_an_unusual_script_runs_and_its_object_collectives_are_told(folder: Path) -> None:
    done = windtunnel(folder, "run", "--cluster", "h100-sxm:8", "--json", "--no-memory", "train.py")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["control"] == {"all_gather": 4, "scatter": 1}
    assert document["kinds"]["all_to_all"][0] == 4
    assert (folder / "model.pt").read_bytes() != b"mine"  # it ran for real
