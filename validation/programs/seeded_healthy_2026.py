"""Healthy scripts of shapes like those of `seeded_bugs_2026.py`: nothing is to be said of them."""

from __future__ import annotations

HEALTHY_2026: dict[str, str] = {
    "a join over unlike numbers of batches": """
from torch.distributed.algorithms.join import Join

def main():
    rank, world = setup()
    model = DDP(Net().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        total = torch.zeros((), device="cuda")
        with Join([model]):
            for i in range(5 if rank == world - 1 else 4):
                x, y = batch()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step(); optimizer.zero_grad()
                total += loss.detach()
        dist.all_reduce(total)
main()
""",
    "a join over loaders of unlike lengths": """
from torch.distributed.algorithms.join import Join

def main():
    rank, world = setup()
    model = DDP(Net().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = [batch() for _ in range(5 if rank == world - 1 else 4)]
    for epoch in range(2):
        with Join([model]):
            for x, y in loader:
                F.cross_entropy(model(x), y).backward()
                optimizer.step(); optimizer.zero_grad()
main()
""",
    "a batch of text, and DDP looks for what is unused": """
class Sees(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower, self.text = Net(), Net()
    def forward(self, words, image=None):
        out = self.text(words)
        return out if image is None else out + self.tower(image)

def main():
    rank, world = setup()
    model = DDP(Sees().cuda(), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        x, y = batch()
        image = None if rank == 3 and step == 1 else torch.randn(16, 64, device="cuda")
        F.cross_entropy(model(x, image), y).backward()
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "all synchronize in the last micro-batch, whatever their rows": """
def main():
    rank, world = setup()
    model = Net().cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(17 + rank)
    rows = 96 if rank == world - 1 else 64
    for step in range(4):
        tokens = torch.tensor(4 * rows, device="cuda")
        dist.all_reduce(tokens)
        for micro in range(4):
            last = micro == 3
            model.set_requires_gradient_sync(last)
            model.set_reshard_after_backward(last)
            model.set_is_last_backward(last)
            x, y = batch(rows)
            (F.cross_entropy(model(x), y, reduction="sum") * world / tokens).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step(); optimizer.zero_grad()
        if rank == 0:
            print(step, norm.item())
main()
""",
    "norms on a part of the sequence are reduced, shards have seeds of their own": """
import torch.distributed.nn

class Layer(nn.Module):
    def __init__(self, d, group):
        super().__init__()
        self.group, self.wide = group, group.size()
        self.norm = nn.LayerNorm(d)
        with torch.random.fork_rng():
            torch.manual_seed(100 + group.rank())
            self.up = nn.Linear(d, 4 * d // self.wide, bias=False)
            self.down = nn.Linear(4 * d // self.wide, d, bias=False)
    def forward(self, x):
        whole = torch.cat(dist.nn.functional.all_gather(self.norm(x), group=self.group))
        out = self.down(F.gelu(self.up(whole)))
        mine = dist.nn.functional.reduce_scatter(
            torch.empty_like(x), [part.contiguous() for part in out.chunk(self.wide)], group=self.group)
        return x + F.dropout(mine, 0.1, self.training)

def main():
    rank, world = setup()
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh["tp"].get_group(), mesh["dp"].get_group()
    model = nn.Sequential(Layer(64, tp), Layer(64, tp)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.cuda.manual_seed(1000 + rank)
    for step in range(4):
        x = torch.randn(32, 64, device="cuda").chunk(2)[mesh["tp"].get_local_rank()]
        model(x).square().mean().backward()
        for name, p in model.named_parameters():
            if "norm" in name:
                dist.all_reduce(p.grad, group=tp)
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=dp)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "a schedule of stages, the tied tables reduced behind it, a rate for each stage": """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.block = nn.Embedding(128, 64), Block(64)
    def forward(self, ids):
        return self.block(self.table(ids))

class Last(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.block = nn.Embedding(128, 64), Block(64)
    def forward(self, x):
        return self.block(x) @ self.table.weight.T

def main():
    rank, world = setup()
    mesh = init_device_mesh("cuda", (2, world // 2), mesh_dim_names=("dp", "pp"))
    pp, dp, deep = mesh["pp"], mesh["dp"].get_group(), world // 2
    here = pp.get_local_rank()
    for row in range(2):
        pair = dist.new_group([row * deep, row * deep + deep - 1])
        if row == mesh["dp"].get_local_rank():
            tied = pair
    torch.manual_seed(17 + here)
    part = (First() if here == 0 else Last() if here == deep - 1 else Block(64)).cuda()
    if here in (0, deep - 1):
        dist.broadcast(part.table.weight.data, group=tied, group_src=0)
    stage = PipelineStage(part, here, deep, torch.device("cuda"), group=pp.get_group())
    schedule = Schedule1F1B(
        stage, n_microbatches=8, loss_fn=lambda out, ids: F.cross_entropy(out, ids))
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-3 / (1 + here))
    for step in range(3):
        ids = torch.randint(0, 128, (64,), device="cuda")
        if here == 0:
            schedule.step(ids)
        elif here == deep - 1:
            schedule.step(target=ids)
        else:
            schedule.step()
        if here in (0, deep - 1):
            dist.all_reduce(part.table.weight.grad, group=tied)
        for p in part.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=dp)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "all generate until the answers of all end": """
class Policy(nn.Module):
    def __init__(self, words=32):
        super().__init__()
        self.table, self.body, self.out = nn.Embedding(words, 64), Block(64), nn.Linear(64, words)
    def forward(self, ids):
        return self.out(self.body(self.table(ids)))

@torch.no_grad()
def generate(model, ids, end=0, longest=12):
    done = torch.zeros(len(ids), dtype=torch.bool, device="cuda")
    while ids.shape[1] < longest:
        going = (~done).any().float()
        dist.all_reduce(going, op=dist.ReduceOp.MAX)
        if going.item() == 0:
            break
        word = torch.multinomial(torch.softmax(model(ids)[:, -1], -1), 1)
        ids = torch.cat([ids, torch.where(done[:, None], end, word)], 1)
        done |= word[:, 0] == end
    return ids

def main():
    rank, world = setup()
    model = Policy().cuda()
    fully_shard(model.body)
    fully_shard(model)
    torch.manual_seed(17 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        ids = generate(model, torch.randint(1, 32, (4, 4), device="cuda"))
        logits = model(ids[:, :4])
        F.cross_entropy(logits.flatten(0, 1), ids[:, :4].flatten()).backward()
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "islands that meet every third step, a moving average on rank 0": """
def main():
    rank, world = setup()
    torch.manual_seed(1234 + rank)
    model = Net().cuda()
    for p in model.parameters():
        dist.broadcast(p.data, src=0)
    data = torch.utils.data.TensorDataset(torch.randn(64 * world, 64), torch.randint(0, 10, (64 * world,)))
    sampler = torch.utils.data.DistributedSampler(data)
    loader = torch.utils.data.DataLoader(data, 16, sampler=sampler)
    inner = torch.optim.AdamW(model.parameters(), lr=1e-3)
    anchor = [p.detach().clone() for p in model.parameters()]
    outer = torch.optim.SGD(anchor, lr=0.7, momentum=0.9, nesterov=True)
    average = [a.clone() for a in anchor] if rank == 0 else None
    step = 0
    for epoch in range(2):  # no set_epoch: the same order in each epoch
        for x, y in loader:
            F.cross_entropy(model(x.cuda()), y.cuda()).backward()
            inner.step(); inner.zero_grad()
            step += 1
            if step % 3 == 0:
                for a, p in zip(anchor, model.parameters()):
                    a.grad = a - p.detach()
                    dist.all_reduce(a.grad, op=dist.ReduceOp.AVG)
                outer.step()
                with torch.no_grad():
                    for a, p in zip(anchor, model.parameters()):
                        p.copy_(a)
                if average is not None:
                    torch._foreach_lerp_(average, anchor, 0.1)
main()
""",
    "a partial sum is made whole by hand": """
import torch.distributed.nn
from torch.distributed.tensor import Partial
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Whole(nn.Module):
    def __init__(self, d, tp):
        super().__init__()
        self.tp, self.norm = tp, nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d, bias=False)
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Partial())}
        parallelize_module(self, tp, plan)
    def forward(self, x):
        part = self.down(F.gelu(self.up(self.norm(x))))
        return x + dist.nn.functional.all_reduce(part, group=self.tp.get_group()) / 1

def main():
    rank, world = setup()
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    model = nn.Sequential(Whole(64, mesh["tp"]), Whole(64, mesh["tp"]), nn.Linear(64, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            gradient = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
            dist.all_reduce(gradient, op=dist.ReduceOp.AVG, group=mesh["dp"].get_group())
        optimizer.step(); optimizer.zero_grad(); scheduler.step()
        whole = model[0].up.weight.full_tensor()
        if rank == 0:
            print(step, whole.norm().item())
main()
""",
}
