"""Scripts that do what few do, and what `windtunnel capture`, `predict` and `run` are to make of each.

Each is plain PyTorch: what it asserts holds in a real job too. Where a script cannot be captured or run, `captured` and
`ran` say what is said. `writes` are the files that it writes itself: `run` runs it for real, so there they change;
`capture` changes none.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
device = "cuda" if torch.cuda.is_available() else "cpu"
dist.init_process_group("nccl" if device == "cuda" else "gloo")
rank, world = dist.get_rank(), dist.get_world_size()
if device == "cuda":
    torch.cuda.set_device(rank % torch.cuda.device_count())
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.randn(16, 32, device=device)
def train_step(model=model, x=x):
    loss = model(x).square().mean()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    return loss
"""


@dataclass(frozen=True)
class Script:
    """A script, and what is to come of it. Where `captured` or `ran` is a text, that is the one message."""

    text: str
    captured: str = ""  # "": it is captured, and the folder predicted
    ran: str = ""  # "": it ends with status 0
    writes: tuple[str, ...] = ()  # files of its own
    options: tuple[str, ...] = ()  # of capture
    head: bool = True
    steps: bool = True  # `run` finds steps
    needs: str = ""  # a module

    @property
    def whole(self) -> str:
        """What is run."""
        return (HEAD if self.head else "") + self.text


FILES = {"model.pt": "mine", "state.json": "{}", "train.log": "before\n", "old/part.txt": "old", "data.bin": "0" * 4096}

SCRIPTS: dict[str, Script] = {
    "torch.save from rank 0": Script(
        """
import json, shutil
from pathlib import Path
for step in range(6):
    train_step()
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "model.part")
        os.replace("model.part", "model.pt")
        Path("state.json").write_text(json.dumps({"step": step}))
        with open("train.log", "a") as log:
            log.write(f"step {step}\\n")
if rank == 0:
    shutil.rmtree("old")
    assert torch.load("model.pt")["step"] == 5
""",
        writes=("model.pt", "state.json", "train.log", "old", "old/part.txt"),
    ),
    "dcp.save, then resumed": Script(
        """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(6):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (0, 3):
        weights, state = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"checkpoints/{step}")
        dcp.load({"model": weights, "optimizer": state}, checkpoint_id=f"checkpoints/{step}")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
""",
        writes=("checkpoints",),
    ),
    "dcp.async_save": Script(
        """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
both = dist.new_group(backend="cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
saved = None
for step in range(6):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if saved is not None:
        saved.result()
    weights = {"model": get_model_state_dict(model)}
    saved = dcp.async_save(weights, checkpoint_id=f"checkpoints/{step}", process_group=both)
saved.result()
""",
        writes=("checkpoints",),
    ),
    "object collectives": Script(
        """
for step in range(6):
    loss = train_step()
    said = [None] * world
    dist.all_gather_object(said, {"rank": rank, "step": step})
    assert [one["step"] for one in said] == [step] * world
    told = [f"of rank 0 in step {step}"] if rank == 0 else [None]
    dist.broadcast_object_list(told, src=0)
    gathered = [None] * world if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert rank or len(gathered) == world
""",
    ),
    "scatter_object_list": Script(
        """
given = [None]
dist.scatter_object_list(given, [{"part": part} for part in range(world)] if rank == 0 else None, src=0)
assert given[0] == {"part": rank}
for step in range(6):
    train_step(x=x * (1 + given[0]["part"]))
""",
    ),
    "uneven all-to-all": Script(
        """
to = [1 + (rank + other) % 3 for other in range(world)]
back = [1 + (other + rank) % 3 for other in range(world)]
for step in range(6):
    train_step()
    rows = torch.ones(sum(to), 8, device=device)
    got = torch.empty(sum(back), 8, device=device)
    dist.all_to_all_single(got, rows, back, to)
    parts = [torch.empty(n, 4, device=device) for n in back]
    dist.all_to_all(parts, [torch.ones(n, 4, device=device) for n in to])
""",
    ),
    "DataLoader workers": Script(
        """
from torch.utils.data import DataLoader, Dataset, DistributedSampler
class Rows(Dataset):
    def __len__(self):
        return 16 * 8 * world
    def __getitem__(self, at):
        return torch.full((32,), at / 100), at % 32
rows = Rows()
sampler = DistributedSampler(rows)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for a, b in DataLoader(rows, 16, sampler=sampler, num_workers=2, pin_memory=device == "cuda"):
        loss = nn.functional.cross_entropy(model(a.to(device, non_blocking=True)), b.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    "torch.compile": Script(
        """
import torch._inductor.config
compiled = torch.compile(model)
for step in range(8):
    train_step(compiled)
""",
    ),
    "stops at NaN": Script(
        """
import math
for step in range(6):
    loss = train_step()
    if torch.isnan(loss) or not torch.isfinite(loss).all() or math.isnan(loss.item()):
        print("NaN", file=sys.stderr)
        sys.exit(3)
    if loss.isinf().any().item() or loss.item() > 1e6:
        raise RuntimeError("diverged")
""",
    ),
    "NaN for real": Script(
        """
for step in range(6):
    loss = train_step(x=x * (float("nan") if step == 4 else 1))
    if torch.isnan(loss):
        sys.exit(3)
""",
        ran="exit 3",
    ),
    "work of rank 0 only": Script(
        """
import copy
average = copy.deepcopy(model) if rank == 0 else None
for step in range(6):
    train_step()
    if rank == 0:
        with torch.no_grad():
            for mine, theirs in zip(average.parameters(), model.parameters()):
                mine.lerp_(theirs, 0.1)
            print(f"{step}: {average(x).mean():.3f}")
""",
    ),
    "deadlock": Script(
        """
for step in range(6):
    train_step()
    if rank < 2:
        got = torch.empty(8, device=device)
        dist.recv(got, src=1 - rank)
        dist.send(torch.ones(8, device=device), dst=1 - rank)
""",
        captured="the job could not run",
    ),
    "shapes disagree": Script(
        """
for step in range(6):
    dist.all_reduce(torch.ones(8 if rank else 16, device=device))
    train_step()
""",
        captured="they do not agree on the shape",
    ),
    "one rank skips a call": Script(
        """
for step in range(6):
    if rank != 3:
        dist.all_reduce(torch.ones(8, device=device))
    train_step()
""",
        captured="the job could not run",
    ),
    "store.get": Script(
        """
from torch.distributed.distributed_c10d import _get_default_store
store = _get_default_store()
store.set(f"of/{rank}", str(rank))
assert store.get(f"of/{rank}") == str(rank).encode()
if rank == 0:
    store.set("shared", "42")
assert int(store.get("shared")) == 42
count = store.add("counter", 1)
assert count >= 1
for step in range(6):
    train_step()
""",
    ),
    "a TCPStore of its own": Script(
        """
from datetime import timedelta
late = timedelta(seconds=30)
store = dist.TCPStore("localhost", 0 if rank == 0 else 29999, world, rank == 0, late, wait_for_workers=False)
store.set(f"mine/{rank}", "1")
store.wait([f"mine/{rank}"])
prefixed = dist.PrefixStore("again", store)
prefixed.set("a", "b")
assert prefixed.get("a") == b"b"
for step in range(6):
    train_step()
""",
    ),
    "cpu and cpu:0": Script(
        """
import os, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
place = torch.device("cpu", 0)
weight = nn.Parameter(torch.ones(8, 8, device=place))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    x = torch.ones(4, 8, device="cpu") + torch.ones(4, 8).to("cpu:0") + torch.ones(4, 8).to(weight.device)
    loss = (x @ weight).sum()
    assert loss.device.type == "cpu" and torch.zeros(1).device == torch.device("cpu")
    assert torch.tensor(1.0).cpu().device == torch.device("cpu")
    loss.backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
    optimizer.zero_grad()
""",
        options=("--device", "cpu"),
        head=False,
    ),
    "custom ops": Script(
        """
@torch.library.custom_op("mine::scaled", mutates_args=())
def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by
@scaled.register_fake
def _(x, by):
    return torch.empty_like(x)
scaled.register_autograd(lambda ctx, grad: (scaled(grad, 3.0), None), setup_context=lambda ctx, inputs, output: None)

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad
for step in range(6):
    loss = Square.apply(scaled(model(x), 3.0)).mean()
    loss.backward()
    dist.all_reduce(model[0].weight.grad)
    optimizer.step()
    optimizer.zero_grad()
""",
    ),
    "a custom op without a fake": Script(
        """
library = torch.library.Library("theirs", "DEF")
library.define("rows(Tensor x) -> Tensor")
library.impl("rows", lambda x: x[x[:, 0] > 0], "CPU")
for step in range(6):
    if device == "cpu":
        torch.ops.theirs.rows(torch.ones(4, 4))
    train_step()
""",
        options=("--device", "cpu"),
        captured="theirs.rows",
    ),
    "allclose and equal": Script(
        """
for step in range(6):
    before = model[0].weight.detach().clone()
    assert torch.allclose(before, model[0].weight) and torch.equal(before, model[0].weight.detach())
    train_step()
    torch.testing.assert_close(x, x.clone())
    same = x.clone()
    dist.broadcast(same, src=0)
    assert torch.allclose(same, x)
""",
    ),
    "loggers": Script(
        """
import csv, logging, sqlite3
logging.basicConfig(filename="train.log", level=logging.INFO)
table = sqlite3.connect(":memory:")
table.execute("create table losses (step, loss)")
out = csv.writer(open(f"metrics-{rank}.csv", "w", newline=""))
for step in range(6):
    loss = train_step().item()
    logging.info("step %d loss %.3f", step, loss)
    out.writerow([step, loss])
    table.execute("insert into losses values (?, ?)", (step, loss))
    print(f"{step} {loss:.4f}", flush=True)
""",
        writes=("train.log", "metrics-0.csv"),
    ),
    "a rank ends early": Script(
        """
for step in range(6):
    if rank == 3 and step == 1:
        sys.exit(0)
    train_step()
""",
        captured="rank 3",
    ),
    "subgroups": Script(
        """
halves = [dist.new_group(list(range(part, world, 2))) for part in range(2)]
mine, every = dist.new_subgroups(2)
for step in range(6):
    train_step()
    dist.all_reduce(torch.ones(8, device=device), group=halves[rank % 2])
    gathered = [torch.empty(4, device=device) for _ in range(2)]
    dist.all_gather(gathered, torch.ones(4, device=device), group=mine)
    assert dist.get_world_size(mine) == 2 and dist.get_rank(halves[rank % 2]) == rank // 2
""",
    ),
    "async ops": Script(
        """
for step in range(6):
    train_step()
    big = torch.ones(64, device=device)
    out = torch.empty(64 * world, device=device)
    part = torch.empty(64 // world, device=device)
    works = [dist.all_reduce(big, async_op=True), dist.all_gather_into_tensor(out, big, async_op=True)]
    works.append(dist.reduce_scatter_tensor(part, torch.ones(64, device=device), async_op=True))
    for work in reversed(works):
        work.wait()
    assert all(work.is_completed() for work in works) and works[0].is_success()
    later = dist.all_reduce(torch.ones(4, device=device), async_op=True).get_future().then(lambda done: done.value())
    later.wait()
""",
    ),
    "a ring of messages": Script(
        """
for step in range(6):
    train_step()
    got = torch.empty(8, device=device)
    ring = [dist.P2POp(dist.isend, torch.ones(8, device=device), (rank + 1) % world)]
    ring.append(dist.P2POp(dist.irecv, got, (rank - 1) % world))
    for work in dist.batch_isend_irecv(ring):
        work.wait()
""",
    ),
    "barrier only": Script(
        """
dist.barrier()
dist.barrier()
""",
        captured="no optimizer was stepped",
        steps=False,
    ),
    "no process group": Script(
        """
import torch
weight = torch.nn.Parameter(torch.ones(8, 8))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    (torch.ones(4, 8) @ weight).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        head=False,
    ),
    "resumes from a file": Script(
        """
import numpy
rows = numpy.memmap("data.bin", dtype="uint8", mode="r")
if os.path.exists("kept.pt"):
    model.load_state_dict(torch.load("kept.pt", map_location=device))
for step in range(6):
    picked = torch.from_numpy(rows[step * 32 : step * 32 + 32].astype("float32")).to(device)
    train_step(x=x + picked)
""",
    ),
    "accumulates, clips, scales": Script(
        """
ddp = nn.parallel.DistributedDataParallel(model)
scaler = torch.amp.GradScaler(device, enabled=device == "cuda")
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
for step in range(6):
    for micro in range(3):
        from contextlib import nullcontext
        with ddp.no_sync() if micro < 2 else nullcontext(), torch.autocast(device, dtype=torch.bfloat16):
            loss = ddp(x).float().square().mean() / 3
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    optimizer.zero_grad()
    print(f"{norm:.3f} {schedule.get_last_lr()[0]:.2e}")
""",
    ),
    "profiles itself": Script(
        """
from torch.profiler import profile, schedule
with profile(schedule=schedule(wait=1, warmup=1, active=2), on_trace_ready=lambda seen: None) as seen:
    for step in range(6):
        train_step()
        seen.step()
""",
    ),
    "starts a program, a thread, a handler": Script(
        """
import atexit, signal, subprocess, threading
commit = subprocess.run(["echo", "abc"], capture_output=True, text=True).stdout.strip()
assert commit == "abc"
beat = threading.Event()
threading.Thread(target=beat.wait, daemon=True).start()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
atexit.register(print, "over")
for step in range(6):
    train_step()
dist.monitored_barrier() if dist.get_backend() == "gloo" else dist.barrier()
dist.destroy_process_group()
""",
    ),
    "spawns its own ranks": Script(
        """
import torch, torch.multiprocessing as mp
def work(rank):
    print(rank)
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
""",
        head=False,
        captured="no optimizer was stepped",
        steps=False,
    ),
    "saves by safetensors": Script(
        """
from safetensors.torch import save_file, load_file
for step in range(6):
    train_step()
    if rank == 0:
        save_file(model.state_dict(), "model.safetensors")
        assert load_file("model.safetensors")["0.weight"].shape == (64, 32)
""",
        writes=("model.safetensors",),
        needs="safetensors",
    ),
    "gathers DTensors": Script(
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
mesh = init_device_mesh(device, (2, world // 2), mesh_dim_names=("dp", "tp"))
weight = nn.Parameter(distribute_tensor(torch.randn(32, 32, device=device), mesh["tp"], [Shard(0)]))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(6):
    rows = distribute_tensor(torch.randn(16, 32, device=device), mesh["tp"], [Replicate()])
    loss = (rows @ weight.t()).square().mean().full_tensor()
    loss.backward()
    dist.all_reduce(weight.grad.to_local(), group=mesh["dp"].get_group())
    optimizer.step()
    optimizer.zero_grad()
    assert weight.full_tensor().shape == (32, 32)
""",
    ),
}
