"""Scripts with a bug each, for `seeded.py`, and what stands at the head of all its scripts.

The line that is to be named ends with `# here` (several lines may: each that a reader would point at).
"""

from __future__ import annotations

from typing import NamedTuple

HEAD = """
import argparse, math, os
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

def setup():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(17)
    return dist.get_rank(), dist.get_world_size()

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self, d=64, layers=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(layers))
        self.head = nn.Linear(d, 10)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)

def batch(n=16, d=64):
    return torch.randn(n, d, device="cuda"), torch.randint(0, 10, (n,), device="cuda")
"""


class Bug(NamedTuple):
    """A script, the kinds of finding that name it, and the ranks that are to be among those told."""

    kinds: tuple[str, ...]
    ranks: tuple[int, ...]
    script: str


BUGS: dict[str, Bug] = {
    "a ring that closes one rank early": Bug(
        ("message", "waits", "deadlock"),
        (6, 7),
        """
def exchange(block, rank, world):
    received = torch.empty_like(block)
    after, before = (rank + 1) % (world - 1), (rank - 1) % world
    ops = [dist.P2POp(dist.isend, block, after),  # here
           dist.P2POp(dist.irecv, received, before)]  # here
    for work in dist.batch_isend_irecv(ops):  # here
        work.wait()
    return received

def main():
    rank, world = setup()
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(6):
        x, y = batch()
        keys = x
        for hop in range(2):
            keys = exchange(keys.contiguous(), rank, world)
            x = x + keys
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()
main()
""",
    ),
    "a count that is an integer or a float": Bug(
        ("dtype", "shape"),
        (7,),
        """
class Meter:
    def __init__(self):
        self.right = 0
    def add(self, logits, y, keep):
        hits = (logits.argmax(-1) == y)[:keep]
        self.right = hits.sum() if keep else torch.zeros((), device="cuda")
    def total(self):
        dist.all_reduce(self.right)  # here
        return self.right.item()

def main():
    rank, world = setup()
    samples = 16 * (world - 1)
    keep = max(0, min(16, samples - 16 * rank))
    model = DDP(Net().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    meter = Meter()
    for step in range(5):
        x, y = batch()
        logits = model(x)
        F.cross_entropy(logits, y).backward()
        optimizer.step(); optimizer.zero_grad()
        meter.add(logits, y, keep)
        accuracy = meter.total()
main()
""",
    ),
    "groups are made in a loop by the first stage": Bug(
        ("set-up",),
        (4, 5, 6, 7),
        """
class Layout:
    def __init__(self, rank, world, pp=2):
        self.dp = world // pp
        self.stage, self.replica = divmod(rank, self.dp)
        for stage in range(pp):
            members = list(range(stage * self.dp, (stage + 1) * self.dp))
            made = dist.new_group(members)
            if stage == self.stage:
                self.dp_group = made
        self.tied = None
        if self.stage == 0:
            for replica in range(self.dp):
                made = dist.new_group([replica, self.dp + replica])  # here
                if replica == self.replica:
                    self.tied = made

def main():
    rank, world = setup()
    layout = Layout(rank, world)
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=layout.dp_group)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "a barrier behind an early return, every fifty steps": Bug(
        ("extra",),
        (0,),
        """
def save(model, step, rank, every=50):
    if (step + 1) % every or rank != 0:
        return
    torch.save(model.state_dict(), f"/tmp/model_{step}.pt")
    dist.barrier()  # here

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    rank, world = setup()
    model = DDP(Net().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(args.steps):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step(); optimizer.zero_grad(set_to_none=True)
        save(model.module, step, rank)
main()
""",
    ),
    "what is sent to experts is taken for what comes": Bug(
        ("splits",),
        (7,),
        """
class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, splits):
        ctx.splits = splits
        out = x.new_empty(sum(splits), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), splits, splits)  # here
        return out
    @staticmethod
    def backward(ctx, g):
        out = g.new_empty(sum(ctx.splits), g.shape[1])
        dist.all_to_all_single(out, g.contiguous(), ctx.splits, ctx.splits)
        return out, None

def main():
    rank, world = setup()
    total = 16 * world - 8
    mine = min(16, total - 16 * rank)
    splits = [mine // world + (k < mine % world) for k in range(world)]
    model = Net().cuda()
    router = nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW([*model.parameters(), *router.parameters()])
    for step in range(4):
        x, y = batch(mine)
        h = Exchange.apply(router(x), splits)
        h = Exchange.apply(h + 1, splits)
        F.cross_entropy(model(h), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "three groups in a circle": Bug(
        ("deadlock", "waits", "order"),
        (0, 1, 2),
        """
def main():
    rank, world = setup()
    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2]), dist.new_group([0, 2])]
    order = {0: (0, 2), 1: (1, 0), 2: (2, 1)}.get(rank, ())
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    statistics = torch.zeros(3, 4, device="cuda")
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        for number in order:
            dist.all_reduce(statistics[number], group=pairs[number])  # here
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "each rank stops at its own count of tokens": Bug(
        ("data",),
        (0,),
        """
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, default=4000)
    args = parser.parse_args()
    rank, world = setup()
    model = DDP(Net().cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    seen = 0
    for step in range(1000):
        x, y = batch()
        mask = torch.rand(16, device="cuda") < 0.9
        loss = (F.cross_entropy(model(x), y, reduction="none") * mask).sum()
        loss.backward()
        optimizer.step(); optimizer.zero_grad()
        seen += int(mask.sum())  # here
        if seen >= args.tokens:  # here
            break
main()
""",
    ),
    "a part is stepped on before it is there": Bug(
        ("race",),
        (0,),
        """
class Sharded:
    def __init__(self, model, rank, world):
        self.params = list(model.parameters())
        numel = sum(p.numel() for p in self.params)
        self.padded = math.ceil(numel / world) * world
        self.rank, self.world = rank, world
        self.part = torch.zeros(self.padded // world, device="cuda")
        self.momentum = torch.zeros_like(self.part)
    def reduce(self):
        flat = torch.zeros(self.padded, device="cuda")
        torch.cat([p.grad.flatten() for p in self.params], out=flat[:sum(p.numel() for p in self.params)])
        dist.reduce_scatter_tensor(self.part, flat, async_op=True)
    def step(self, lr=0.1):
        self.momentum.mul_(0.9).add_(self.part)  # here
        whole = torch.empty(self.padded, device="cuda")
        dist.all_gather_into_tensor(whole, self.momentum)
        at = 0
        for p in self.params:
            p.data.add_(whole[at:at + p.numel()].view_as(p), alpha=-lr)
            p.grad, at = None, at + p.numel()

def main():
    rank, world = setup()
    model = Net().cuda()
    optimizer = Sharded(model, rank, world)
    for step in range(5):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.reduce()
        optimizer.step()
main()
""",
    ),
    "a group's rank is taken for a rank": Bug(
        ("root",),
        (0, 1),
        """
def main():
    rank, world = setup()
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    node = rank - rank % 2
    for step in range(4):
        x, y = batch()
        dist.broadcast(x, src=node + dist.get_rank(tp), group=tp)  # here
        dist.broadcast(y, src=node, group=tp)
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=dp)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "the last shard has fewer micro-batches": Bug(
        ("skipped", "extra", "rounds", "order", "shape"),
        (7,),
        """
def shard(samples, rank, world):
    per_rank = math.ceil(samples / world)
    return range(rank * per_rank, min(samples, (rank + 1) * per_rank))

def main():
    rank, world = setup()
    mine = shard(16 * world - 4, rank, world)
    size = 4
    model = DDP(Net().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(4):
        for at in range(0, len(mine), size):
            x, y = batch(size)
            (F.cross_entropy(model(x), y) / 4).backward()  # here
            if (at // size + 1) % 2 == 0:
                optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "a part as long as the longest on the last rank": Bug(
        ("exception", "shape"),
        (7,),
        """
def main():
    rank, world = setup()
    model = Net(d=36, layers=1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    longest = math.ceil(sum(p.numel() for p in model.parameters()) / world)
    part = torch.zeros(longest, device="cuda")
    for step in range(4):
        x, y = batch(d=36)
        F.cross_entropy(model(x), y).backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.reduce_scatter(part, list(flat.split(longest)))  # here
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "FSDP's forward is skipped where the shard is empty": Bug(
        ("skipped", "extra", "order"),
        (7,),
        """
def main():
    rank, world = setup()
    model = Net().cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    samples = list(range(16 * world * 3 - 10))
    for step in range(3):
        mine = samples[step * 16 * world + rank * 16:][:16]
        mine = [one for one in mine if one < len(samples)]
        if len(mine) < 16:
            continue
        x, y = batch(len(mine))
        F.cross_entropy(model(x), y).backward()  # here
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "the last stage waits for one micro-batch more": Bug(
        ("message", "waits", "deadlock"),
        (6, 7),
        """
def main():
    rank, world = setup()
    stage = nn.Sequential(*(Block(64) for _ in range(2))).cuda()
    optimizer = torch.optim.AdamW(stage.parameters())
    micro, first, last = 4, rank == 0, rank == world - 1
    for step in range(3):
        held = []
        for number in range(micro if not last else micro + 1):
            x = torch.randn(8, 64, device="cuda")
            if not first:
                dist.recv(x, rank - 1)  # here
            x.requires_grad_()
            out = stage(x)
            held.append((x, out))
            if not last:
                dist.send(out.detach(), rank + 1)  # here
        for x, out in held[:micro]:
            g = torch.ones_like(out)
            if not last:
                dist.recv(g, rank + 1)
            out.backward(g)
            if not first:
                dist.send(x.grad, rank - 1)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "a mask is received before what it masks": Bug(
        ("message",),
        (0, 1),
        """
def main():
    rank, world = setup()
    stage = nn.Sequential(*(Block(64) for _ in range(2))).cuda()
    optimizer = torch.optim.AdamW(stage.parameters())
    for step in range(3):
        hidden = torch.randn(8, 64, device="cuda")
        mask = torch.ones(8, dtype=torch.bool, device="cuda")
        if rank % 2:
            dist.recv(mask, rank - 1)  # here
            dist.recv(hidden, rank - 1)  # here
        loss = (stage(hidden) * mask[:, None]).square().mean()
        loss.backward()
        if rank % 2 == 0:
            dist.send(hidden, rank + 1)  # here
            dist.send(mask, rank + 1)  # here
        for p in stage.parameters():
            dist.all_reduce(p.grad)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "only gradients that are there are reduced": Bug(
        ("shape", "skipped", "extra", "order", "group"),
        (1,),
        """
class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = Net()
        self.text, self.image = nn.Linear(10, 10), nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 10))
    def forward(self, x, kind):
        return getattr(self, kind)(self.trunk(x))

def main():
    rank, world = setup()
    model = Two().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    kinds = ["text", "image"]
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x, kinds[(step + rank) % 2]), y).backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)  # here
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "rank 0 prints the norm of a parameter that is sharded": Bug(
        ("extra", "order"),
        (0,),
        """
def main():
    rank, world = setup()
    model = Net().cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step(); optimizer.zero_grad()
        if rank == 0:
            print(step, model.head.weight.full_tensor().norm().item())  # here
main()
""",
    ),
    "gradients are reduced on another stream unasked": Bug(
        ("race",),
        (0,),
        """
def main():
    rank, world = setup()
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    side = torch.cuda.Stream()
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        with torch.cuda.stream(side):
            for p in model.parameters():
                dist.all_reduce(p.grad)  # here
        optimizer.step()  # here
        optimizer.zero_grad()
main()
""",
    ),
    "the second node turns the mesh": Bug(
        ("set-up",),
        (4,),
        """
def main():
    rank, world = setup()
    wide = 4 if rank < world // 2 else 2
    mesh = init_device_mesh("cuda", (world // wide, wide), mesh_dim_names=("dp", "tp"))  # here
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=mesh.get_group("dp"))
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "a rank leaves when its shard is read": Bug(
        ("skipped", "rounds"),
        (7,),
        """
def main():
    rank, world = setup()
    lengths = [12] * (world - 1) + [9]
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = iter(range(lengths[rank]))
    step = 0
    while True:
        try:
            next(rows)
        except StopIteration:
            break
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)  # here
        optimizer.step(); optimizer.zero_grad()
        step += 1
main()
""",
    ),
}
