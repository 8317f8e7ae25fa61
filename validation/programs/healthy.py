"""Fifty healthy programs: the debugger is to say nothing of any, and each is to be captured and predicted.

    python validation/programs/healthy.py [--only "ddp"] [--slice 0 10] [--ranks 4]
    python validation/programs/healthy.py --truth --count 20    # on the CPU: real gloo ranks against a capture

Each is put together of parts that people put together: how the model is divided (nothing, DistributedDataParallel,
FSDP2, FSDP 1, HSDP, TP, sequence parallel, a pipeline, TP with FSDP2, context parallel, ZeRO's optimizer, local SGD,
experts' all-to-all), and two to four of what stands in a training loop (loader, autocast, gradient scaler, clipping,
moving average, accumulation, compile, recomputation, evaluation, checkpoint, logging on rank 0, profiler, scheduler,
early stop for all, barrier, objects, asynchronous metric, seeds, set-up of more groups, a skip of bad losses by all).
Which meet is drawn from a fixed seed. One line each; exit status 1 where one is not captured or a finding is told.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

HEAD = """
import contextlib, copy, os, random
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
rank, world, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
device = torch.device("cuda", local)
torch.cuda.set_device(device)
dist.init_process_group("nccl", device_id=device)
torch.manual_seed(1234)
W, V, S = 64, 128, 16

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(W, W) for _ in range(4))
    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, 16)).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.attention, self.n2 = nn.LayerNorm(W), Attention(), nn.LayerNorm(W)
        self.up, self.down = nn.Linear(W, 4 * W), nn.Linear(4 * W, W)
    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.down(F.gelu(self.up(self.n2(x))))

class Model(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(V, W), nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(W), nn.Linear(W, V)
    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = run(block, x)
        return self.head(self.norm(x))

def run(block, x):
    return block(x)
def batches():
    while True:
        yield torch.randint(0, V, (4, S), device=device)
def loss_of(model, tokens):
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
context, scaled, stepped, before, after, done = contextlib.nullcontext, None, None, [], [], []
group, source, every = None, batches(), 1
model = Model().to(device)
original = model
"""
DIVIDED = {
    "ddp": """
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(model, device_ids=[local])
""",
    "ddp, small buckets": """
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(model, device_ids=[local], bucket_cap_mb=0.05, gradient_as_bucket_view=True, static_graph=True)
""",
    "ddp, bf16 hook": """
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
model = DDP(model, device_ids=[local])
model.register_comm_hook(None, bf16_compress_hook)
""",
    "ddp, SyncBN": """
from torch.nn.parallel import DistributedDataParallel as DDP
class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv1d(W, W, 3, padding=1), nn.BatchNorm1d(W), nn.Linear(W, V)
        self.embedding = nn.Embedding(V, W)
    def forward(self, tokens):
        return self.head(F.relu(self.bn(self.conv(self.embedding(tokens).mT))).mT)
original = nn.SyncBatchNorm.convert_sync_batchnorm(Pictures()).to(device)
model = DDP(original, device_ids=[local])
""",
    "fsdp2": """
from torch.distributed.fsdp import fully_shard
for block in model.blocks:
    fully_shard(block)
fully_shard(model)
""",
    "fsdp2, bf16, kept": """
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32), "reshard_after_forward": False}
for block in model.blocks:
    fully_shard(block, **policy)
fully_shard(model, **policy)
""",
    "hsdp": """
from torch.distributed.fsdp import fully_shard
mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("replicate", "shard"))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
""",
    "fsdp 1": """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=device, use_orig_params=True)
""",
    "tp": """
from torch.distributed.tensor.parallel import ColwiseParallel as C, RowwiseParallel as R, parallelize_module
mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
plan = {f"attention.{n}": C() for n in "qkv"} | {"attention.o": R(), "up": C(), "down": R()}
for block in model.blocks:
    parallelize_module(block, mesh["tp"], plan)
def reduced():
    for p in model.parameters():
        if p.grad is not None:
            g = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
            dist.all_reduce(g, group=mesh["dp"].get_group())
before.append(reduced)
group = mesh["dp"].get_group()
stepped = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)  # DTensors beside tensors
""",
    "tp and fsdp2": """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel as C, RowwiseParallel as R, parallelize_module
mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
plan = {f"attention.{n}": C() for n in "qkv"} | {"attention.o": R(), "up": C(), "down": R()}
for block in model.blocks:
    parallelize_module(block, mesh["tp"], plan)
    fully_shard(block, mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
group = mesh["dp"].get_group()
""",
    "by hand, flat": """
def reduced():
    flat = torch.cat([p.grad.flatten() for p in model.parameters()])
    dist.all_reduce(flat, op=dist.ReduceOp.AVG)
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at : at + p.numel()].view_as(p)); at += p.numel()
before.append(reduced)
""",
    "by hand, asynchronous hooks": """
works = []
for p in model.parameters():
    p.register_post_accumulate_grad_hook(lambda p: works.append(dist.all_reduce(p.grad, async_op=True)))
def waited():
    for work in works:
        work.wait()
    works.clear()
before.append(waited)
""",
    "ZeRO's optimizer": """
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
model = DDP(model, device_ids=[local])
stepped = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
""",
    "local SGD": """
count = 0
def averaged():
    global count
    count += 1
    if count % 3 == 0:
        for p in model.parameters():
            dist.all_reduce(p.data); p.data.div_(world)
after.append(averaged)
""",
    "experts": """
class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.expert = nn.Linear(W, world), nn.Linear(W, W)
    def forward(self, x):
        shape, x = x.shape, x.flatten(0, -2)
        order = self.router(x).argmax(-1).argsort()
        sent, back = torch.empty_like(x), torch.empty_like(x)
        import torch.distributed.nn.functional as D
        sent = D.all_to_all_single(sent, x[order])
        back = D.all_to_all_single(back, self.expert(sent))
        return x.index_add(0, order, back).view(shape)
for block in model.blocks:
    block.down = nn.Sequential(block.down, Experts().to(device))
def shared():
    for name, p in model.named_parameters():
        if ".expert." not in name and p.grad is not None:
            dist.all_reduce(p.grad)
before.append(shared)
""",
    "pipeline": """
first, ends, pairs = rank == 0, rank == world - 1, []
model = nn.Sequential(*(Block() for _ in range(2))).to(device)
original = model
front, back = (nn.Embedding(V, W).to(device) if first else None), (nn.Linear(W, V).to(device) if ends else None)
def loss_of(model, tokens):
    if first:
        x = front(tokens)
    else:
        x = torch.empty(4, S, W, device=device); dist.recv(x, rank - 1); x.requires_grad_()
    y = model(x)
    pairs.append((x, y))
    if ends:
        return F.cross_entropy(back(y).flatten(0, 1), tokens.flatten())
    dist.send(y.detach(), rank + 1)
    grad = torch.empty_like(y); dist.recv(grad, rank + 1)
    return (y * grad).sum()
def upstream():
    x, y = pairs.pop(); pairs.clear()
    if not first:
        dist.send(x.grad, rank - 1)
before.append(upstream)
""",
    "pipeline, 1F1B": """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
part = nn.Sequential(*(Block() for _ in range(2))).to(device)
original = part
stage = PipelineStage(part, rank, world, device)
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda y, target: F.mse_loss(y, target))
model = part
def loss_of(model, tokens):
    x = torch.randn(8, S, W, device=device)
    if rank == 0:
        schedule.step(x)
    elif rank == world - 1:
        losses = []; schedule.step(target=x, losses=losses)
    else:
        schedule.step()
    return None
""",
}
MORE = {
    "loader": """
data = torch.utils.data.TensorDataset(torch.randint(0, V, (4096, S)))
sampler = torch.utils.data.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler, num_workers=1, drop_last=True)
def loaded():
    epoch = 0
    while True:
        sampler.set_epoch(epoch); epoch += 1
        for (x,) in loader:
            yield x.to(device, non_blocking=True)
source = loaded()
""",
    "autocast": "context = lambda: torch.autocast('cuda', torch.bfloat16)\n",
    "scaler": "scaled = torch.amp.GradScaler('cuda')\n",
    "clip": "before.append(lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0))\n",
    "moving average": """
averaged = copy.deepcopy(original).requires_grad_(False)
def follow():
    with torch.no_grad():
        for mine, theirs in zip(averaged.parameters(), original.parameters()):
            mine.lerp_(theirs.detach(), 0.01)
after.append(follow)
""",
    "accumulation": "every = 3\n",
    "compile": "model = torch.compile(model)\n",
    "recomputation": """
from torch.utils.checkpoint import checkpoint
def run(block, x):
    return checkpoint(block, x, use_reentrant=False)
""",
    "evaluation": """
def evaluate(step):
    if step % 3 == 2:
        with torch.no_grad():
            total = torch.stack([torch.as_tensor(loss_of(model, next(source))) for _ in range(2)]).mean()
        dist.all_reduce(total)
done.append(evaluate)
""",
    "checkpoint on rank 0": """
def save(step):
    if step == 2:
        state = {name: p.cpu() for name, p in original.state_dict().items()}
        if rank == 0:
            torch.save(state, "state.pt")
        dist.barrier()
done.append(save)
""",
    "logging on rank 0": """
def log(step):
    if rank == 0 and step % 2 == 0:
        print("step", step, "learning rate", optimizer.param_groups[0]["lr"], flush=True)
done.append(log)
""",
    "mean loss": """
def mean(step):
    value = last.detach().clone(); dist.all_reduce(value)
    if rank == 0:
        print(value.item() / world)
done.append(mean)
""",
    "profiler": "context_of_all = torch.profiler.profile\n",
    "scheduler": "scheduler = None\ndef slower(step):\n    scheduler.step()\ndone.append(slower)\n",
    "stops for all": """
def stop(step):
    value = last.detach().clone(); dist.all_reduce(value, op=dist.ReduceOp.MAX)
    if value.item() > 1e6:
        raise SystemExit(0)
done.append(stop)
""",
    "barrier": "done.append(lambda step: dist.barrier())\n",
    "objects": """
def tell(step):
    names = [None] * world
    dist.all_gather_object(names, {"rank": rank, "step": step})
done.append(tell)
""",
    "late metric": """
kept = []
def metric(step):
    value = last.detach().clone()
    if kept:
        work, before_value = kept.pop(); work.wait(); before_value.div_(world)
    kept.append((dist.all_reduce(value, async_op=True), value))
done.append(metric)
""",
    "seed by rank": "torch.manual_seed(rank); random.seed(rank)\n",
    "more groups": """
halves = [dist.new_group(list(range(k, world, 2))) for k in range(2)]
def among(step):
    x = torch.ones(8, device=device); dist.all_reduce(x, group=halves[rank % 2])
done.append(among)
""",
    "skips for all": """
def skips():
    grads = [p.grad for p in original.parameters() if p.grad is not None]
    bad = torch.stack([~torch.isfinite(grad).all() for grad in grads]).any().float()
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad.item():
        for p in original.parameters():
            p.grad = None
before.append(skips)
""",
    "offset print by rank": "print(f'rank {rank} of {world} has', sum(p.numel() for p in original.parameters()))\n",
    "foreach off": "stepped = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)\n",
    "fused": "stepped = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)\n",
}
LOOP = """
optimizer = stepped or torch.optim.AdamW(model.parameters(), lr=1e-3)
if "scheduler" in globals():
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
for step in range(8):
    for micro in range(every):
        with context():
            last = loss_of(model, next(source))
        if last is None:
            last = torch.zeros((), device=device)
        else:
            (scaled.scale(last / every) if scaled else last / every).backward()
    if scaled:
        scaled.unscale_(optimizer)
    for one in before:
        one()
    if scaled:
        scaled.step(optimizer); scaled.update()
    else:
        optimizer.step()
    optimizer.zero_grad()
    for one in after:
        one()
    for one in done:
        one(step)
dist.destroy_process_group()
"""
# What cannot be put together: by PyTorch itself, or because it would be a bug.
SHARDED = ("fsdp2", "fsdp2, bf16, kept", "hsdp", "fsdp 1", "tp and fsdp2", "tp")
NOT = {
    "moving average": (*SHARDED, "experts"),
    "checkpoint on rank 0": SHARDED,  # DTensors are gathered another way
    "skips for all": (*SHARDED, "pipeline, 1F1B"),
    "clip": ("pipeline", "pipeline, 1F1B", "tp"),
    "scaler": ("pipeline", "pipeline, 1F1B", "ZeRO's optimizer", *SHARDED, "by hand, asynchronous hooks", "experts"),
    "accumulation": ("pipeline", "pipeline, 1F1B", "by hand, asynchronous hooks"),
    "evaluation": ("pipeline", "pipeline, 1F1B"),
    "autocast": ("pipeline", "pipeline, 1F1B"),
    "compile": ("pipeline", "pipeline, 1F1B", "experts", "fsdp 1", "by hand, asynchronous hooks"),
    "recomputation": ("pipeline, 1F1B", "ddp, SyncBN", "pipeline"),
    "foreach off": ("ZeRO's optimizer",),
    "fused": ("ZeRO's optimizer", "tp", "tp and fsdp2"),
}


def programs(count: int) -> dict[str, str]:
    """So many scripts by name, always the same: each division in turn, with what is drawn."""
    drawn = random.Random(37)
    found: dict[str, str] = {}
    divisions = list(DIVIDED)
    while len(found) < count:
        division = divisions[len(found) % len(divisions)]
        can = [name for name in MORE if division not in NOT.get(name, ())]
        chosen = [name for name in MORE if name in drawn.sample(can, drawn.randint(2, 4))]
        if {"foreach off", "fused"} <= {*chosen} or {"clip", "scaler", "skips for all"} <= {*chosen}:
            continue
        text = DIVIDED[division] + "".join(MORE[name] for name in chosen)
        found[f"{division} + {', '.join(chosen)}"] = HEAD + text + LOOP
    return found


def check(name: str, script: str, folder: Path, ranks: int) -> bool:
    """Capture and predict one; whether nothing is said of it."""
    path, out = folder / "train.py", str(folder / "captured")
    path.write_text(script)
    tool = [sys.executable, "-W", "ignore", "-m", "windtunnel"]
    words = [*tool, "capture", "--world-size", str(ranks), "--out", out, "--json", str(path)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        print(f"{name}: STATUS {done.returncode}: {last}", flush=True)
        return False
    document = json.loads(done.stdout)
    said = [f"{one['kind']} at {one['line']}: {one['text']}" for one in document["findings"]]
    words = [*tool, "predict", out, "--cluster", f"h100-sxm:{ranks}", "--json"]
    priced = subprocess.run(words, capture_output=True, text=True)
    step = priced.stderr[-300:] if priced.returncode else f"{json.loads(priced.stdout)['step_time_ns'] / 1e6:.3g} ms"
    print(f"{name}: {len(document['classes'])} classes, period {document['period_steps']}, {step}", *said, flush=True)
    return not said and not priced.returncode


ON_CPU = (
    ('device = torch.device("cuda", local)\ntorch.cuda.set_device(device)\n', 'device = torch.device("cpu")\n'),
    ('"nccl", device_id=device', '"gloo"'),
    (", device_ids=[local]", ""),
    ('init_device_mesh("cuda"', 'init_device_mesh("cpu"'),
    ("autocast('cuda'", "autocast('cpu'"),
    ("GradScaler('cuda'", "GradScaler('cpu'"),
)


def compare(name: str, script: str, folder: Path) -> bool:
    """Hold the capture of one, on the CPU, against real ranks: two, or four where its mesh has two dimensions."""
    for gpu, cpu in ON_CPU:
        script = script.replace(gpu, cpu)
    (folder / "train.py").write_text(script)
    ranks = "4" if "world // 2" in script else "2"
    truth = Path(__file__).resolve().parents[1] / "emulation" / "captured_truth.py"
    words = [sys.executable, "-W", "ignore", str(truth), "--ranks", ranks, "--", "train.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    error = [line for line in done.stderr.splitlines() if "Error" in line][: not done.stdout]
    print(
        f"{name}: {ranks} ranks, status {done.returncode}", *done.stdout.splitlines(), *error, sep="\n    ", flush=True
    )
    return not done.returncode


def main() -> int:
    """Check all, or those whose name begins so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--slice", type=int, nargs=2, default=(0, 1000), help="from which to before which")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--show", action="store_true", help="print the scripts instead")
    parser.add_argument("--truth", action="store_true", help="hold captures against real ranks instead")
    given = parser.parse_args()
    wrong, count = 0, 0
    for name, script in [*programs(given.count).items()][slice(*given.slice)]:
        if name.startswith(given.only):
            count += 1
            if given.show:
                print(f"# {name}\n{script}")
                continue
            with tempfile.TemporaryDirectory() as folder:
                place = Path(folder)
                fits = compare(name, script, place) if given.truth else check(name, script, place, given.ranks)
                wrong += not fits
    what = "equal to real ranks" if given.truth else "captured, predicted, and nothing said"
    print(f"{count - wrong} of {count}: {what}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
