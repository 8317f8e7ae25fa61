"""`windtunnel run --ranks`: several real ranks, which truly communicate, among virtual peers."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from forked import windtunnel

HEAD = """
import json, os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
def say(**what):
    with open(f"said_{rank}.json", "w") as file:
        json.dump(what, file)
"""
TRAIN = """
torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64))
PARALLEL
data = torch.Generator().manual_seed(SEED)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
losses = []
for step in range(6):
    x = torch.randint(0, 64, (64,), generator=data)
    loss = nn.functional.cross_entropy(model(x), (x + 1) % 64)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
say(losses=losses)
"""
PARALLEL = {
    "ddp": "model = nn.parallel.DistributedDataParallel(model)",
    "fsdp2": "from torch.distributed.fsdp import fully_shard\n"
    "for layer in model: fully_shard(layer)\n"
    "fully_shard(model)",
    "tp": "from torch.distributed.device_mesh import init_device_mesh\n"
    "from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module\n"
    "parallelize_module(model, init_device_mesh('cpu', (world,)), {'1': ColwiseParallel(), '3': RowwiseParallel()})",
}


def training(parallel: str, seed: str = "1") -> str:
    return HEAD + TRAIN.replace("PARALLEL", PARALLEL[parallel]).replace("SEED", seed)


def environment(folder: Path) -> dict[str, str]:
    """Temporary files in a place of the test's own, so that what is left behind is seen."""
    (folder / "tmp").mkdir(exist_ok=True)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}


def line(ranks: str, world: int, *options: str) -> list[str]:
    return [*(sys.executable, "-m", "windtunnel", "run", "--cluster", f"h100-sxm:{world}", "--ranks", ranks),
            *options, "train.py"]  # fmt: skip


def run(folder: Path, text: str, ranks: str, world: int, *options: str) -> tuple[dict[int, Any], str]:
    """What each real rank said, and what was printed."""
    (folder / "train.py").write_text(text)
    done = windtunnel(*line(ranks, world, *options)[3:], cwd=folder, env=environment(folder))
    assert done.returncode == 0, done.stderr
    assert list((folder / "tmp").glob("windtunnel-*")) == [], "temporary files are left"
    said = {rank: json.loads((folder / f"said_{rank}.json").read_text()) for rank in map(int, ranks.split(","))}
    return said, done.stdout


def truth(folder: Path, text: str, world: int) -> dict[int, Any]:
    """The same of a real job."""
    (folder / "train.py").write_text(text)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), "train.py"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=folder, env=environment(folder), timeout=300)
    assert done.returncode == 0, done.stderr
    return {rank: json.loads((folder / f"said_{rank}.json").read_text()) for rank in range(world)}


def test_real_members_exchange_and_each_virtual_one_is_like_one_of_them(tmp_path: Path) -> None:
    """Ranks 0 and 8 of 16, one call of each kind: 1..7 hold what rank 0 holds, 9..15 what rank 8 does."""
    text = HEAD + (
        "own = torch.full((3,), float(rank + 1))\n"
        "total = own.clone(); dist.all_reduce(total)\n"
        "most = own.clone(); dist.all_reduce(most, dist.ReduceOp.MAX)\n"
        "all_ = torch.empty(world * 3); dist.all_gather_into_tensor(all_, own)\n"
        "parts = [torch.empty(3) for _ in range(world)]; dist.all_gather(parts, own)\n"
        "piece = torch.empty(2); dist.reduce_scatter_tensor(piece, torch.arange(2. * world) * (rank + 1))\n"
        "given = own.clone(); dist.broadcast(given, 8)\n"
        "back = torch.empty(world); dist.all_to_all_single(back, torch.arange(world) + 100. * rank)\n"
        "every = [None] * world; dist.all_gather_object(every, {'rank': rank})\n"
        "said = [f'from {rank}'] if rank == 8 else [None]; dist.broadcast_object_list(said, 8)\n"
        "if rank == 0: dist.send(own, 8); got = []\n"
        "else: got = torch.empty(3); dist.recv(got, 0); got = got.tolist()\n"
        "dist.barrier()\n"
        "say(total=total.tolist(), most=most.tolist(), all_=all_.tolist(), parts=[p[0].item() for p in parts],\n"
        "    piece=piece.tolist(), given=given.tolist(), back=back.tolist(), every=[e['rank'] for e in every],\n"
        "    said=said, got=got)\n"
    )
    found, told = run(tmp_path, text, "0,8", 16)
    assert "ranks 0, 8 of 16 ran for real, each in a process of its own, 14 peers virtual" in told
    for rank in (0, 8):
        said = found[rank]
        assert said["total"] == [8 * 1 + 8 * 9] * 3
        assert said["most"] == [9] * 3
        assert said["all_"] == [1] * 3 * 8 + [9] * 3 * 8
        assert said["parts"] == [1] * 8 + [9] * 8
        assert said["piece"] == [2.0 * rank * 80, (2.0 * rank + 1) * 80]
        assert said["given"] == [9] * 3
        assert said["back"] == [rank] * 8 + [rank + 800] * 8
        assert said["every"] == [0] * 8 + [8] * 8
        assert said["said"] == ["from 8"]
    assert found[8]["got"] == [1] * 3


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["ddp", "fsdp2", "tp"])
def test_with_all_ranks_real_losses_are_the_real_jobs_bit_by_bit(tmp_path: Path, parallel: str) -> None:
    text = training(parallel, "1 + rank" if parallel != "tp" else "1")
    found, _ = run(tmp_path, text, "0,1", 2, "--no-memory")
    assert found == truth(tmp_path, text, 2)


@pytest.mark.long
def test_replicas_of_one_batch_lose_the_same_with_one_two_and_four_real_ranks(tmp_path: Path) -> None:
    text = training("ddp")
    one, _ = run(tmp_path, text, "0", 1024, "--no-memory")
    for ranks in ("0,8", "0,8,16,1023"):
        several, _ = run(tmp_path, text, ranks, 1024, "--no-memory")
        assert list(several.values()) == [one[0]] * len(several)


@pytest.mark.long
def test_replicas_of_different_batches_lose_what_a_real_job_of_the_real_ranks_does(tmp_path: Path) -> None:
    """1,024 ranks, half of which read what rank 0 reads: their average gradient is that of two ranks."""
    text = training("ddp", "1 + rank // 512")
    found, _ = run(tmp_path, text, "0,512", 1024, "--no-memory")
    assert list(found.values()) == list(truth(tmp_path, training("ddp", "1 + rank"), 2).values())


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_it_ends_nothing_is_left(tmp_path: Path, number: int) -> None:
    """After SIGKILL what the script had started ends, and the folder goes, with the next start."""
    from windtunnel.real.capture.processes.leftovers import FOLDER_VARIABLE

    text = training("ddp").replace("range(6)", "range(10**6)")
    (tmp_path / "train.py").write_text("import subprocess\nsubprocess.Popen(['sleep', '300'])\n" + text)
    process = subprocess.Popen(
        line("0,8", 1024), cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    mark = f"{FOLDER_VARIABLE}={tmp_path / 'tmp'}".encode()

    def started() -> list[Path]:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (place / "environ").read_bytes():
                    found.append(place)
            except OSError:
                continue
        return found

    until = time.monotonic() + 60
    while len(started()) < 4 and time.monotonic() < until:
        time.sleep(0.1)
    process.send_signal(number)
    process.wait(60)
    if number == signal.SIGKILL:
        run(tmp_path, HEAD + "say()\n", "0", 8)
    until = time.monotonic() + 10
    while started() and time.monotonic() < until:
        time.sleep(0.1)
    assert started() == []
    assert list((tmp_path / "tmp").glob("windtunnel-*")) == []
