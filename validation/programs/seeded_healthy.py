"""Scripts of shapes like those of `seeded_bugs.py` of which nothing is to be said."""

from __future__ import annotations

HEALTHY: dict[str, str] = {
    "a ring, odd ranks receive first": """
def main():
    rank, world = setup()
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        x, y = batch()
        other = torch.empty_like(x)
        if rank % 2:
            dist.recv(other, (rank - 1) % world); dist.send(x, (rank + 1) % world)
        else:
            dist.send(x, (rank + 1) % world); dist.recv(other, (rank - 1) % world)
        F.cross_entropy(model(x + other), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "a save every fifty steps, a barrier for all": """
def save(model, step, rank):
    if (step + 1) % 50:
        return
    if rank == 0:
        torch.save(model.state_dict(), f"/tmp/model_{step}.pt")
    dist.barrier()

def main():
    rank, world = setup()
    model = DDP(Net().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(200):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step(); optimizer.zero_grad()
        save(model.module, step, rank)
main()
""",
    "splits are told before they are used": """
def main():
    rank, world = setup()
    mine = 16 if rank < world - 1 else 8
    splits = [mine // world + (k < mine % world) for k in range(world)]
    model, router = Net().cuda(), nn.Linear(64, 64).cuda()
    optimizer = torch.optim.AdamW([*model.parameters(), *router.parameters()])
    for step in range(4):
        x, y = batch(mine)
        sends = torch.tensor(splits, device="cuda")
        comes = torch.empty_like(sends)
        dist.all_to_all_single(comes, sends)
        outs = comes.tolist()
        h = x.new_empty(sum(outs), 64)
        dist.all_to_all_single(h, router(x).detach(), outs, splits)
        back = x.new_empty(mine, 64)
        dist.all_to_all_single(back, h.contiguous(), splits, outs)
        F.cross_entropy(model(x + back), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "a rank without rows takes a dummy batch": """
def main():
    rank, world = setup()
    model = Net().cuda()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    samples = 16 * world * 3 - 10
    for step in range(3):
        begin = step * 16 * world + rank * 16
        rows = max(0, min(16, samples - begin))
        x, y = batch(16)
        weight = (torch.arange(16, device="cuda") < rows).float()
        (F.cross_entropy(model(x), y, reduction="none") * weight).sum().div(16).backward()
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "as many rounds as the shortest shard has": """
def main():
    rank, world = setup()
    mine = 12 if rank < world - 1 else 9
    fewest = torch.tensor(mine, device="cuda")
    dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
    model = DDP(Net().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(int(fewest)):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "a norm is made whole by all, and printed by one": """
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
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
        optimizer.step(); optimizer.zero_grad()
        if rank == 0:
            print(step, norm.item())
main()
""",
    "rank 0 evaluates what is inside the wrapper": """
@torch.no_grad()
def evaluate(model):
    model.eval()
    x, y = batch()
    loss = F.cross_entropy(model(x), y).item()
    model.train()
    return loss

def main():
    rank, world = setup()
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)).cuda()
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(30):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step(); optimizer.zero_grad()
        if step % 10 == 9 and rank == 0:
            print(step, evaluate(model.module))
main()
""",
    "rank 0 evaluates the wrapped model, whose buffers then are not sent in the next step": """
@torch.no_grad()
def evaluate(model):
    model.eval()
    x, y = batch()
    loss = F.cross_entropy(model(x), y).item()
    model.train()
    return loss

def main():
    rank, world = setup()
    net = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)).cuda()
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(30):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        optimizer.step(); optimizer.zero_grad()
        if step % 10 == 9 and rank == 0:
            print(step, evaluate(model))
main()
""",
    "another stream that waits and is waited for": """
def main():
    rank, world = setup()
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    side = torch.cuda.Stream()
    for step in range(4):
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for p in model.parameters():
                dist.all_reduce(p.grad)
        torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        optimizer.zero_grad()
main()
""",
    "one forward, one backward, by hand": """
def main():
    rank, world = setup()
    stage = nn.Sequential(*(Block(64) for _ in range(2))).cuda()
    optimizer = torch.optim.AdamW(stage.parameters())
    micro, first, last = 8, rank == 0, rank == world - 1
    warm = min(world - rank - 1, micro)
    def forward(held):
        x = torch.randn(8, 64, device="cuda")
        if not first:
            dist.recv(x, rank - 1)
        x.requires_grad_()
        out = stage(x)
        held.append((x, out))
        return out
    def backward(held, g):
        x, out = held.pop(0)
        out.backward(g)
        return x.grad
    for step in range(3):
        held = []
        for number in range(warm):
            dist.send(forward(held).detach(), rank + 1)
        for number in range(micro - warm):
            out = forward(held)
            g = torch.ones_like(out)
            if not last:
                ops = [dist.P2POp(dist.isend, out.detach(), rank + 1), dist.P2POp(dist.irecv, g, rank + 1)]
                for work in dist.batch_isend_irecv(ops):
                    work.wait()
            grad = backward(held, g)
            if not first:
                dist.send(grad, rank - 1)
        for number in range(warm):
            g = torch.empty(8, 64, device="cuda")
            dist.recv(g, rank + 1)
            grad = backward(held, g)
            if not first:
                dist.send(grad, rank - 1)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "the root is the group's first rank": """
def main():
    rank, world = setup()
    mesh = init_device_mesh("cuda", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    tp, dp = mesh.get_group("tp"), mesh.get_group("dp")
    model = Net().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        x, y = batch()
        dist.broadcast(x, src=dist.get_global_rank(tp, 0), group=tp)
        dist.broadcast(y, src=rank // 2 * 2, group=tp)
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, group=dp)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "tokens of all are counted, and all stop": """
def main():
    rank, world = setup()
    model = DDP(Net().cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    seen = torch.zeros((), device="cuda")
    for step in range(1000):
        x, y = batch()
        mask = torch.rand(16, device="cuda") < 0.9
        (F.cross_entropy(model(x), y, reduction="none") * mask).sum().backward()
        optimizer.step(); optimizer.zero_grad()
        count = mask.sum().float()
        dist.all_reduce(count)
        seen += count
        if seen.item() >= 4000:
            break
main()
""",
    "parts of unlike lengths that fit": """
def main():
    rank, world = setup()
    model = Net(d=36, layers=1).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = sum(p.numel() for p in model.parameters())
    longest = math.ceil(total / world)
    part = torch.zeros(min(longest, total - rank * longest), device="cuda")
    for step in range(4):
        x, y = batch(d=36)
        F.cross_entropy(model(x), y).backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.reduce_scatter(part, list(flat.split(longest)))
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "both branches' gradients, zeros where there are none": """
def main():
    rank, world = setup()
    trunk, text, image = Net().cuda(), nn.Linear(10, 10).cuda(), nn.Linear(10, 10).cuda()
    parameters = [*trunk.parameters(), *text.parameters(), *image.parameters()]
    optimizer = torch.optim.AdamW(parameters)
    for step in range(4):
        x, y = batch()
        F.cross_entropy((text, image)[(step + rank) % 2](trunk(x)), y).backward()
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
        optimizer.step(); optimizer.zero_grad()
main()
""",
    "a stop that ranks of unlike shards agree on, as a float": """
def main():
    rank, world = setup()
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = iter(range(9 + 3 * rank))
    while True:
        try:
            next(rows)
            flag = torch.tensor(1.0, device="cuda")
        except StopIteration:
            flag = torch.tensor(0.0, device="cuda")
        dist.all_reduce(flag, op=dist.ReduceOp.MIN)
        if flag.item() < 1:
            break
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
        optimizer.step(); optimizer.zero_grad()
    dist.barrier()
main()
""",
}
