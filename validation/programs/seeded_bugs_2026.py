"""A third set of scripts with a bug each, for `seeded.py`: what trainers of 2025 and 2026 get wrong.

The line that is to be named ends with `# here`. The ranks are those of a run of eight.
"""

from __future__ import annotations

from seeded_bugs import Bug

ALL = tuple(range(8))

BUGS_2026: dict[str, Bug] = {
    "each rank synchronizes at its own budget of tokens": Bug(
        ("skipped", "extra", "order", "shape"),
        (7,),
        """
def main():
    rank, world = setup()
    model = Net().cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = 96 if rank == world - 1 else 64
    for step in range(4):
        seen = 0
        for micro in range(4):
            seen += rows
            model.set_requires_gradient_sync(seen >= 256)
            x, y = batch(rows)
            F.cross_entropy(model(x), y).backward()  # here
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "a mesh is flattened by those that log": Bug(
        ("set-up", "waits", "skipped", "extra", "order"),
        ALL,
        """
def main():
    rank, world = setup()
    mesh = init_device_mesh("cuda", (world // 4, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    logs = mesh["tp"].get_local_rank() == 0
    if logs:
        group = mesh["dp", "cp"]._flatten("dp_cp").get_group()  # here
    for step in range(4):
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step(); optimizer.zero_grad()
        if logs:
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG, group=group)
main()
""",
    ),
    "the last stage's schedule has a micro-batch less": Bug(
        ("message", "waits", "deadlock"),
        (6, 7),
        """
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

def main():
    rank, world = setup()
    last = rank == world - 1
    part = nn.Sequential(Block(64), nn.Linear(64, 10)).cuda() if last else Block(64).cuda()
    stage = PipelineStage(part, rank, world, torch.device("cuda"))
    count = 15 if last else 16  # targets of whole micro-batches only
    schedule = Schedule1F1B(stage, n_microbatches=count, loss_fn=F.cross_entropy)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-3)
    for step in range(3):
        x, y = batch(64)
        if rank == 0:
            schedule.step(x)  # here
        elif last:
            schedule.step(target=y[:60])  # here
        else:
            schedule.step()  # here
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "the tied table is reduced before the last gradient is sent": Bug(
        ("deadlock", "waits"),
        ALL,
        """
def main():
    rank, world = setup()
    first, last = rank == 0, rank == world - 1
    tied = dist.new_group([0, world - 1])
    table = nn.Embedding(128, 64).cuda() if first or last else None
    block = Block(64).cuda()
    own = list(block.parameters()) + ([table.weight] if table is not None else [])
    optimizer = torch.optim.AdamW(own, lr=1e-3)
    for step in range(3):
        kept = []
        for micro in range(4):
            ids = torch.randint(0, 128, (16,), device="cuda")
            if first:
                came, x = None, table(ids)
            else:
                came = torch.empty(16, 64, device="cuda")
                dist.recv(came, rank - 1)  # here
                x = came.requires_grad_()
            out = block(x)
            if last:
                out = F.cross_entropy(out @ table.weight.T, ids)
            else:
                dist.send(out.detach(), rank + 1)
            kept.append((came, out))
        for micro, (came, out) in enumerate(kept):
            if last:
                out.backward()
            else:
                gradient = torch.empty_like(out)
                dist.recv(gradient, rank + 1)  # here
                out.backward(gradient)
            if table is not None and micro == len(kept) - 1:
                dist.all_reduce(table.weight.grad, group=tied)  # here
            if came is not None:
                dist.send(came.grad, rank - 1)  # here
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "a rank without tokens returns before the exchange": Bug(
        ("skipped", "extra", "order", "shape", "rounds"),
        (5,),
        """
import torch.distributed.nn

class Experts(nn.Module):
    def __init__(self, d, world):
        super().__init__()
        self.world, self.expert = world, Block(d)
    def forward(self, x):
        if not len(x):
            return x
        rows = F.pad(x, (0, 0, 0, -len(x) % self.world))
        there = dist.nn.functional.all_to_all_single(torch.empty_like(rows), rows.contiguous())  # here
        back = self.expert(there)
        back = dist.nn.functional.all_to_all_single(torch.empty_like(back), back.contiguous())  # here
        return x + back[: len(x)]

def main():
    rank, world = setup()
    model = nn.Sequential(Block(64), Experts(64, world), Block(64)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(5):
        tokens = 0 if rank == 5 and step == 2 else 64
        loss = model(torch.randn(tokens, 64, device="cuda")).square().sum()
        loss.backward()
        for part in (model[0], model[2]):
            for p in part.parameters():
                dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step(); optimizer.zero_grad(set_to_none=False)
main()
""",
    ),
    "the last part of a sequence is shorter in the ring": Bug(
        ("message", "shape"),
        (0, 6, 7),
        """
def ring(k, rank, world):
    received = torch.empty_like(k)
    ops = [dist.P2POp(dist.isend, k, (rank + 1) % world),  # here
           dist.P2POp(dist.irecv, received, (rank - 1) % world)]  # here
    for work in dist.batch_isend_irecv(ops):  # here
        work.wait()
    return received

def main():
    rank, world = setup()
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        x, y = torch.randn(1021, 64, device="cuda"), torch.randint(0, 10, (1021,), device="cuda")
        q, target = x.chunk(world)[rank], y.chunk(world)[rank]
        k, out = q.contiguous(), torch.zeros_like(q)
        for hop in range(world):
            out = out + torch.softmax(q @ k.T, -1) @ k
            if hop < world - 1:
                k = ring(k, rank, world)
        F.cross_entropy(model(out), target).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "a rank is taken for the group's rank": Bug(
        ("root", "exception", "shape"),
        (4, 5, 6, 7),
        """
def main():
    rank, world = setup()
    wide = world // 2
    for first in (0, wide):
        group = dist.new_group(range(first, first + wide))
        if first <= rank < first + wide:
            island, leader = group, first
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for p in model.parameters():
        dist.broadcast(p.data, group=island, group_src=leader)  # here
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=island)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "only the rank with the file loads": Bug(
        ("skipped", "extra", "order", "shape", "dtype"),
        (0,),
        """
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

def main():
    rank, world = setup()
    model = Net().cuda()
    fully_shard(model)
    saved = Net().state_dict() if rank == 0 else None
    if saved is not None:
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, saved, options=options)  # here
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "the next micro-batch adds to what is being reduced": Bug(
        ("race",),
        ALL,
        """
def main():
    rank, world = setup()
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        pending = []
        for micro in range(2):
            x, y = batch()
            F.cross_entropy(model(x), y).backward()  # here
            pending += [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]  # here
        for work in pending:
            work.wait()
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "the rank that loads takes the file's dtype": Bug(
        ("dtype", "shape"),
        (0,),
        """
def main():
    rank, world = setup()
    model = Net().cuda().bfloat16()
    if rank == 0:
        saved = {name: value.float() for name, value in model.state_dict().items()}
        model.load_state_dict(saved, assign=True)
    for p in model.parameters():
        dist.broadcast(p.data, src=0)  # here
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        x, y = batch()
        with torch.autocast("cuda", torch.bfloat16):
            F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "a batch of text leaves out the tower that DDP waits for": Bug(
        ("skipped", "extra", "exception", "waits", "rounds", "order", "shape"),
        (3,),
        """
class Sees(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower, self.text = Net(), Net()
    def forward(self, words, image=None):
        out = self.text(words)
        return out if image is None else out + self.tower(image)

def main():
    rank, world = setup()
    model = DDP(Sees().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        x, y = batch()
        image = None if rank == 3 and step == 1 else torch.randn(16, 64, device="cuda")
        F.cross_entropy(model(x, image), y).backward()  # here
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "a mean of losses inside a join": Bug(
        ("skipped", "extra", "rounds", "order", "shape", "exception"),
        (7,),
        """
from torch.distributed.algorithms.join import Join

def main():
    rank, world = setup()
    model = DDP(Net().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with Join([model]):
        for i in range(5 if rank == world - 1 else 4):
            x, y = batch()
            loss = F.cross_entropy(model(x), y)
            loss.backward()  # here
            optimizer.step(); optimizer.zero_grad()
            mean = loss.detach().double()
            dist.all_reduce(mean)  # here
main()
""",
    ),
    "prompts are cut into fewer parts than ranks": Bug(
        ("exception", "shape", "splits"),
        (0,),
        """
def main():
    rank, world = setup()
    model = DDP(Net().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(3):
        prompts = [f"question {i}" for i in range(4 * world - 5)]
        parts = [prompts[i : i + 4] for i in range(0, len(prompts), 4)] if rank == 0 else None
        mine = [None]
        dist.scatter_object_list(mine, parts, src=0)  # here
        x, y = batch(4 * len(mine[0]))
        F.cross_entropy(model(x), y).backward()
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "each rank generates until its own answers end": Bug(
        ("data",),
        ALL,
        """
class Policy(nn.Module):
    def __init__(self, words=32):
        super().__init__()
        self.table, self.body, self.out = nn.Embedding(words, 64), Block(64), nn.Linear(64, words)
    def forward(self, ids):
        return self.out(self.body(self.table(ids)))

@torch.no_grad()
def generate(model, ids, end=0, longest=12):
    done = torch.zeros(len(ids), dtype=torch.bool, device="cuda")
    while ids.shape[1] < longest and not done.all():  # here
        word = torch.multinomial(torch.softmax(model(ids)[:, -1], -1), 1)  # here
        ids = torch.cat([ids, word], 1)
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
    ),
    "a rank without targets does not step its scheduler": Bug(
        ("replicas",),
        (7,),
        """
def main():
    rank, world = setup()
    model = DDP(Net().cuda())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for step in range(6):
        x, y = batch()
        rows = 0 if rank == world - 1 and step == 2 else 16
        loss = F.cross_entropy(model(x), y, reduction="none")[:rows].sum() / 16
        loss.backward()
        optimizer.step()  # here
        optimizer.zero_grad()
        if rows:
            scheduler.step()  # here
main()
""",
    ),
    "weights from a seed of the rank's own": Bug(
        ("replicas",),
        ALL,
        """
def main():
    rank, world = setup()
    torch.manual_seed(1234 + rank)  # here
    model = Net().cuda()  # here
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)  # here
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "a norm on a part of the sequence is not reduced": Bug(
        ("replicas",),
        ALL,
        """
import torch.distributed.nn

class Layer(nn.Module):
    def __init__(self, d, group):
        super().__init__()
        self.group, self.wide = group, group.size()
        self.norm = nn.LayerNorm(d)
        self.up, self.down = nn.Linear(d, 4 * d // self.wide, bias=False), nn.Linear(4 * d // self.wide, d, bias=False)
    def forward(self, x):
        whole = torch.cat(dist.nn.functional.all_gather(self.norm(x), group=self.group))
        out = self.down(F.gelu(self.up(whole)))
        mine = dist.nn.functional.reduce_scatter(
            torch.empty_like(x), [part.contiguous() for part in out.chunk(self.wide)], group=self.group)
        return x + mine

def main():
    rank, world = setup()
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh["tp"].get_group(), mesh["dp"].get_group()
    model = nn.Sequential(Layer(64, tp), Layer(64, tp)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        x = torch.randn(32, 64, device="cuda").chunk(2)[mesh["tp"].get_local_rank()]
        model(x).square().mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG, group=dp)  # here
        optimizer.step()  # here
        optimizer.zero_grad()
main()
""",
    ),
    "a partial sum is taken for the whole": Bug(
        ("partial",),
        ALL,
        """
from torch.distributed.tensor import Partial
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

class Part(Block):
    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))  # here

def main():
    rank, world = setup()
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    model = Net()
    model.blocks = nn.ModuleList(Part(64) for _ in range(2))
    model = model.cuda()
    for block in model.blocks:
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel(output_layouts=Partial())}
        parallelize_module(block, mesh["tp"], plan)  # here
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()  # here
        for p in model.parameters():
            gradient = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
            dist.all_reduce(gradient, op=dist.ReduceOp.AVG, group=mesh["dp"].get_group())
        optimizer.step(); optimizer.zero_grad()
main()
""",
    ),
    "the optimizer is made before the model is sharded": Bug(
        ("optimizer",),
        ALL,
        """
def main():
    rank, world = setup()
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)  # here
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()  # here
        optimizer.zero_grad()
main()
""",
    ),
}
