"""Small distributed scripts with one bug each, and some without: the line that is to be named ends with `# here`."""

from __future__ import annotations

from typing import NamedTuple

PRELUDE = """
import torch, torch.nn as nn, torch.nn.functional as F, torch.distributed as dist
torch.manual_seed(0)
dist.init_process_group("gloo")
r, w = dist.get_rank(), dist.get_world_size()
m = nn.Linear(16, 16)
opt = torch.optim.SGD(m.parameters(), lr=0.1, foreach=False)
def back(x=None):
    loss = m(torch.randn(8, 16) if x is None else x).sum()
    loss.backward()
    return loss
def reduce(group=None):
    for p in m.parameters():
        dist.all_reduce(p.grad, group=group)
def done():
    opt.step()
    opt.zero_grad()
"""


class Bug(NamedTuple):
    """A script, and what is to be said of it."""

    kind: str
    ranks: tuple[int, ...]
    group: str
    script: str


PAIRS = """
dp = [dist.new_group([i, i + 2]) for i in range(2)][r % 2]
tp = [dist.new_group([i, i + 1]) for i in (0, 2)][r // 2]
"""

BUGS: dict[str, Bug] = {
    "a rank skips a metric": Bug(
        "skipped",
        (1,),
        "world",
        """
for i in range(3):
    loss = back(); reduce()
    if r != 1:
        dist.all_reduce(loss.detach().clone())  # here
    done()
""",
    ),
    "a rank adds a barrier": Bug(
        "extra",
        (2,),
        "world",
        """
for i in range(3):
    back(); reduce()
    if r == 2:
        dist.barrier()  # here
    done()
""",
    ),
    "only rank 0 evaluates together": Bug(
        "extra",
        (0,),
        "world",
        """
for i in range(3):
    back(); reduce(); done()
    if r == 0:
        score = torch.zeros(1)
        dist.all_reduce(score)  # here
""",
    ),
    "in one late step": Bug(
        "extra",
        (0,),
        "world",
        """
for i in range(8):
    loss = back(); reduce()
    if i == 5 and r == 0:
        dist.all_reduce(loss.detach().clone())  # here
    done()
""",
    ),
    "one rank has an uneven batch": Bug(
        "shape",
        (3,),
        "world",
        """
for i in range(2):
    loss = back(); n = 10 + (r == 3)
    out = [torch.empty(n) for _ in range(w)]
    dist.all_gather(out, torch.ones(n))  # here
    reduce(); done()
""",
    ),
    "another dtype": Bug(
        "dtype",
        (2,),
        "world",
        """
for i in range(2):
    loss = back(); reduce()
    t = torch.ones(4, dtype=torch.int32 if r == 2 else torch.float32)
    dist.all_reduce(t)  # here
    done()
""",
    ),
    "another reduction": Bug(
        "reduction",
        (1,),
        "world",
        """
for i in range(2):
    loss = back(); reduce()
    dist.all_reduce(loss.detach().clone(), op=dist.ReduceOp.MAX if r == 1 else dist.ReduceOp.SUM)  # here
    done()
""",
    ),
    "another root": Bug(
        "root",
        (3,),
        "world",
        """
for p in m.parameters():
    dist.broadcast(p.data, src=1 if r == 3 else 0)  # here
for i in range(2):
    back(); reduce(); done()
""",
    ),
    "reduce to itself": Bug(
        "root",
        (1, 3),
        "world",
        """
for i in range(2):
    loss = back(); reduce()
    dist.reduce(loss.detach().clone(), dst=r % 2)  # here
    done()
""",
    ),
    "a row for a column": Bug(
        "group",
        (3,),
        "ranks 2, 3",
        PAIRS
        + """
for i in range(2):
    back()
    g = tp if r == 3 else dp
    for p in m.parameters():
        dist.all_reduce(p.grad, group=g)  # here
    done()
""",
    ),
    "the world for a group": Bug(
        "group",
        (2,),
        "world",
        PAIRS
        + """
for i in range(2):
    back()
    for p in m.parameters():
        dist.all_reduce(p.grad, group=None if r == 2 else dp)  # here
    done()
""",
    ),
    "a group made by its members only": Bug(
        "set-up",
        (2, 3),
        "world",
        """
if r < 2:
    g = dist.new_group([0, 1])  # here
for i in range(2):
    back(); reduce(g if r < 2 else None) if r < 2 else None
    dist.barrier(); done()
""",
    ),
    "groups in another order": Bug(
        "set-up",
        (3,),
        "world",
        """
for ranks in ([0, 1], [2, 3]) if r != 3 else ([2, 3], [0, 1]):
    g = dist.new_group(ranks)  # here
for i in range(2):
    back(); reduce(); done()
""",
    ),
    "another backend": Bug(
        "set-up",
        (1,),
        "world",
        """
dist.destroy_process_group()
dist.init_process_group("gloo" if r != 1 else "cpu:gloo,cuda:gloo")  # here
for i in range(2):
    back(); reduce(); done()
""",
    ),
    "splits that do not fit": Bug(
        "splits",
        (0, 1),
        "world",
        """
for i in range(2):
    back(); reduce()
    ins, outs = [4] * w, [4] * w
    if r == 0: ins[1] = 6
    y = torch.empty(sum(outs), 16)
    dist.all_to_all_single(y, torch.randn(sum(ins), 16), outs, ins)  # here
    done()
""",
    ),
    "splits that are not transposed": Bug(
        "splits",
        (0, 1),
        "world",
        """
for i in range(2):
    back(); reduce()
    ins = outs = [r + k + (r < k) for k in range(w)]
    dist.all_to_all_single(torch.empty(sum(outs), 4), torch.randn(sum(ins), 4), outs, ins)  # here
    done()
""",
    ),
    "an even exchange of uneven ranks": Bug(
        "splits",
        (0, 3),
        "world",
        """
for i in range(2):
    back(); reduce()
    x = torch.randn(8 if r == 3 else 4, 16)
    dist.all_to_all_single(torch.empty_like(x), x)  # here
    done()
""",
    ),
    "half a gradient is sent": Bug(
        "message",
        (1, 0),
        "world",
        """
for i in range(2):
    back(); reduce()
    if r == 0:
        dist.recv(torch.empty(8, 64), 1)
    if r == 1:
        dist.send(torch.ones(4, 64), 0)  # here
    done()
""",
    ),
    "sent in another dtype": Bug(
        "message",
        (0, 1),
        "world",
        """
for i in range(2):
    back(); reduce()
    if r == 0:
        dist.send(torch.ones(64, dtype=torch.float16), 1)  # here
    if r == 1:
        dist.recv(torch.empty(64, dtype=torch.bfloat16), 0)
    done()
""",
    ),
    "a message that nobody receives": Bug(
        "message",
        (0, 1),
        "4 ranks",
        """
for i in range(2):
    back(); reduce()
    if r == 0:
        dist.send(torch.ones(64), 1)  # here
    done()
""",
    ),
    "a ring that receives first": Bug(
        "deadlock",
        (0, 3, 2),
        "4 ranks",
        """
for i in range(2):
    back(); reduce()
    y = torch.empty(1024)
    dist.recv(y, (r - 1) % w)  # here
    dist.send(torch.ones(1024), (r + 1) % w)
    done()
""",
    ),
    "two groups in opposite order": Bug(
        "deadlock",
        (0, 1),
        "",
        """
a, b = dist.new_group([0, 1]), dist.new_group([0, 1])
for i in range(2):
    back()
    ps = list(m.parameters())
    if r < 2:
        order = ((a, 0), (b, 1)) if r == 0 else ((b, 1), (a, 0))
        for g, n in order:
            dist.all_reduce(ps[n].grad, group=g)  # here
    done()
""",
    ),
    "a result is read before wait": Bug(
        "race",
        (0, 1, 2, 3),
        "world",
        """
for i in range(2):
    back()
    handles = [dist.all_reduce(p.grad, async_op=True) for p in m.parameters()]
    opt.step()  # here
    for h in handles: h.wait()
    opt.zero_grad()
""",
    ),
    "a buffer is written before wait": Bug(
        "race",
        (0, 1, 2, 3),
        "world",
        """
buffer = torch.empty(64)
for i in range(2):
    back(); reduce()
    h = dist.irecv(buffer, (r - 1) % w); s = dist.isend(torch.ones(64), (r + 1) % w)
    buffer.zero_()  # here
    h.wait(); s.wait(); done()
""",
    ),
    "a gathered tensor is used before wait": Bug(
        "race",
        (0, 1, 2, 3),
        "world",
        """
for i in range(2):
    back(); reduce()
    whole = torch.empty(4 * w)
    h = dist.all_gather_into_tensor(whole, torch.ones(4), async_op=True)
    total = whole.sum()  # here
    h.wait(); done()
""",
    ),
    "each rank skips on its own loss": Bug(
        "data",
        (0, 1, 2, 3),
        "world",
        """
for i in range(4):
    loss = back()
    if not torch.isnan(loss) and loss.item() < 0.05:  # here
        opt.zero_grad(); continue
    reduce(); done()
""",
    ),
    "each rank skips on its own NaN": Bug(
        "data",
        (0, 1, 2, 3),
        "world",
        """
for i in range(4):
    loss = back()
    if not torch.isfinite(loss):  # here
        opt.zero_grad(); continue
    reduce(); done()
""",
    ),
    "each rank stops on its own loss": Bug(
        "data",
        (0, 1, 2, 3),
        "world",
        """
for i in range(6):
    loss = back(); reduce(); done()
    value = loss.item()  # here
    if value < 1e-6:
        break
""",
    ),
    "each rank skips where it counts nothing": Bug(
        "data",
        (0, 1, 2, 3),
        "world",
        """
for i in range(4):
    x = torch.randn(8, 16)
    count = int((x > 2).any(-1).sum())  # here
    if count == 0:
        continue
    back(x); reduce(); done()
""",
    ),
    "a pipeline without its last message": Bug(
        "message",
        (2, 3),
        "4 ranks",
        """
for i in range(2):
    x = torch.randn(8, 16)
    if r: dist.recv(x, r - 1)
    back(x)
    if r < w - 2: dist.send(x, r + 1)
    done()
""".replace("if r: dist.recv(x, r - 1)", "if r: dist.recv(x, r - 1)  # here"),
    ),
    "a rank stops early": Bug(
        "skipped",
        (3,),
        "world",
        """
for i in range(3 - (r == 3)):
    back()
    for p in m.parameters():
        dist.all_reduce(p.grad)  # here
    done()
""",
    ),
    "only rank 0 gathers a state": Bug(
        "extra",
        (0,),
        "world",
        """
for i in range(2):
    back(); reduce(); done()
    if r == 0:
        parts = [torch.empty(16, 16) for _ in range(w)]
        dist.all_gather(parts, m.weight.data)  # here
""",
    ),
    "ranks broadcast different numbers of layers": Bug(
        "skipped",
        (2,),
        "world",
        """
for p in list(m.parameters())[: 1 if r == 2 else 2]:
    dist.broadcast(p.data, src=0)  # here
for i in range(2):
    back(); done()
""",
    ),
    "all that is gathered lies in one tensor": Bug(
        "overlap",
        (0, 1, 2, 3),
        "world",
        """
for i in range(2):
    loss = back(); reduce()
    parts = [torch.zeros(())] * w
    dist.all_gather(parts, loss.detach())  # here
    done()
""",
    ),
    "each rank skips on a value that a function gave": Bug(
        "data",
        (0, 1, 2, 3),
        "world",
        """
def measure(x):
    value = F.mse_loss(m(x), x).item()  # here
    return value
def is_good(value):
    return value < 0.5
for i in range(3):
    if is_good(measure(torch.randn(8, 16))): continue
    back(); reduce(); done()
""",
    ),
    "a rank leaves out two collectives": Bug(
        "skipped",
        (2,),
        "world",
        """
for i in range(3):
    if i < 1 or r != 2:
        dist.all_gather([torch.zeros(2) for _ in range(w)], torch.zeros(2))  # here
        dist.all_reduce(torch.zeros(3))
    back(); reduce(); done()
""",
    ),
    "weights of a seed of the rank's own": Bug(
        "replicas",
        (0, 1, 2, 3),
        "world",
        """
torch.manual_seed(5 + r)
m = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
opt = torch.optim.SGD(m.parameters(), lr=0.1)
for i in range(2):
    back()
    for p in m.parameters():
        dist.all_reduce(p.grad)  # here
    done()
""",
    ),
    "a rank does not step its scheduler": Bug(
        "replicas",
        (3,),
        "ranks 1, 3",
        PAIRS
        + """
schedule = torch.optim.lr_scheduler.StepLR(opt, 1)
for i in range(3):
    back(); reduce(dp)
    opt.step()  # here
    opt.zero_grad()
    if r != 3 or i: schedule.step()
""",
    ),
    "an optimizer of parameters that are replaced": Bug(
        "optimizer",
        (0, 1, 2, 3),
        "world",
        """
m = nn.parallel.DistributedDataParallel(nn.Linear(16, 16))
for i in range(3):
    back()
    opt.step()  # here
    opt.zero_grad()
""",
    ),
    "a part of a sum goes into a norm": Bug(
        "partial",
        (0, 1, 2, 3),
        "ranks 0, 1",
        """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial
tp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
for i in range(2):
    x = torch.randn(8, 16)
    part = DTensor.from_local(x, tp, [Partial()]).to_local() * 2
    back(F.layer_norm(x + part, (16,))); reduce(); done()  # here
""",
    ),
}

HEALTHY: dict[str, str] = {
    "weights of a seed of the rank's own, broadcast": """
torch.manual_seed(5 + r)
m = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
opt = torch.optim.SGD(m.parameters(), lr=0.1)
for p in m.parameters():
    dist.broadcast(p.data, src=0)
for i in range(2):
    back(); reduce(); done()
""",
    "weights and rates of each stage's own": PAIRS
    + """
torch.manual_seed(5 + r % 2)
m = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
opt = torch.optim.SGD(m.parameters(), lr=0.1 + r % 2)
for i in range(2):
    back(); reduce(dp); done()
""",
    "each rank steps its own with its own rate": """
opt = torch.optim.SGD(m.parameters(), lr=0.1 + r)
for i in range(2):
    back()
    mean = m.weight.grad.clone(); dist.all_reduce(mean)
    done()
""",
    "an optimizer for show, and weights written by hand": """
show = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
for i in range(3):
    back(); reduce()
    show.step()
    with torch.no_grad():
        for p in m.parameters():
            p -= 0.1 * p.grad
            p.grad = None
""",
    "a part of a sum is added up before a norm": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial
tp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
for i in range(2):
    x = torch.randn(8, 16)
    part = DTensor.from_local(x, tp, [Partial()]).to_local() + x / 2
    dist.all_reduce(part, group=tp.get_group())
    back(F.layer_norm(part, (16,))); reduce(); done()
""",
    "a layer for each rank's optimizer, with a rate of its own": """
m = nn.Sequential(*(nn.Linear(16, 16, bias=False) for _ in range(w)))
opt = torch.optim.SGD([m[r].weight], lr=0.1 + r)
for i in range(2):
    back(); reduce(); opt.step()
    for owner, p in enumerate(m.parameters()):
        dist.broadcast(p.data, src=owner)
        p.grad = None
""",
    "weights of a seed of the rank's own, tried once and then broadcast": """
torch.manual_seed(5 + r)
m = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
opt = torch.optim.SGD(m.parameters(), lr=0.1)
m(torch.randn(1, 16))
for p in m.parameters():
    dist.broadcast(p.data, src=0)
for i in range(2):
    back(); reduce(); done()
""",
    "rank 0 has the schedule, and gives its weights to all behind each step": """
schedule = torch.optim.lr_scheduler.StepLR(opt, 1) if r == 0 else None
for i in range(3):
    back(); reduce(); done()
    if schedule: schedule.step()
    for p in m.parameters():
        dist.broadcast(p.data, src=0)
""",
    "an optimizer's groups hold a rank's own notes": """
for i in range(2):
    back(); reduce()
    opt.param_groups[0]["loss"] = 0.5 + r
    done()
""",
    "an optimizer waits for its turn beside one that accumulates": """
late = nn.Linear(4, 4)
other = torch.optim.SGD(late.parameters(), lr=0.1)
for i in range(8):
    back()
    other.step()
    if i % 4 == 3:
        reduce(); done()
""",
    "a part of a sum in a piece of a buffer, in one that is written anew, and in figures": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial
tp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
buffer, both = torch.zeros(8, 16), torch.zeros(16, 16)
for i in range(2):
    x = torch.randn(8, 16)
    part = DTensor.from_local(x + 1, tp, [Partial()]).to_local()
    both[:8].copy_(part)
    torch.relu(both[8:])
    torch.relu(torch.cat([part, x])[8:])
    buffer.copy_(part)
    buffer.copy_(x)
    torch.relu(buffer)
    with torch.no_grad():
        part.pow(2).sum()
    DTensor.from_local(x.sum(), tp, [Partial()]).to_local().exp()
    DTensor.from_local(x + 1, tp, [Partial("avg")]).to_local().exp()
    back(); reduce(); done()
""",
    "data parallel": "for i in range(3):\n    back(); reduce(); done()\n",
    "logging and saving on rank 0": """
for i in range(3):
    loss = back(); reduce(); done()
    if r == 0 and i % 2 == 0:
        print(i, loss.item())
        if loss.item() < 1e-3: print("good")
    dist.barrier()
""",
    "asynchronous and waited for": """
for i in range(2):
    back()
    hs = [dist.all_reduce(p.grad, async_op=True) for p in m.parameters()]
    for h in hs: h.wait()
    done()
""",
    "one flat buffer in parts": """
flat = torch.zeros(64)
for i in range(2):
    back(); reduce()
    h = dist.all_reduce(flat[:32], async_op=True)
    flat[32:].add_(1)
    h.wait(); done()
""",
    "two groups": PAIRS
    + """
for i in range(2):
    back(); reduce(dp)
    dist.all_reduce(torch.ones(4), group=tp); done()
""",
    "local groups": """
g = dist.new_group([r // 2 * 2, r // 2 * 2 + 1], use_local_synchronization=True)
for i in range(2):
    back(); reduce(g); done()
""",
    "stops on a loss that all know": """
for i in range(4):
    loss = back(); reduce(); done()
    total = loss.detach().clone(); dist.all_reduce(total)
    if total.item() < 0.01: break
""",
    "stops for all when it is not a number": """
for i in range(3):
    loss = back()
    if not torch.isfinite(loss): raise SystemExit("diverged")
    reduce(); done()
""",
    "a best value on each rank": """
best = 1e9
for i in range(3):
    loss = back(); reduce(); done()
    if loss.item() < best: best = loss.item()
""",
    "clipping": """
for i in range(3):
    loss = back(); reduce()
    norm = nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    if norm.item() > 100: opt.zero_grad(); continue
    done()
""",
    "a ring that sends first": """
for i in range(2):
    back(); reduce(); y = torch.empty(8)
    ops = [dist.P2POp(dist.isend, torch.ones(8), (r + 1) % w), dist.P2POp(dist.irecv, y, (r - 1) % w)]
    for h in dist.batch_isend_irecv(ops): h.wait()
    y.add_(1); done()
""",
    "uneven splits that fit": """
for i in range(2):
    back(); reduce()
    ins, outs = [r + k for k in range(w)], [k + r for k in range(w)]
    dist.all_to_all_single(torch.empty(sum(outs), 4), torch.randn(sum(ins), 4), outs, ins); done()
""",
    "a pipeline": """
for i in range(2):
    x = torch.randn(8, 16)
    if r: dist.recv(x, r - 1)
    back(x)
    if r < w - 1: dist.send(x, r + 1)
    done()
""",
    "DistributedDataParallel": """
from torch.nn.parallel import DistributedDataParallel as DDP
m = DDP(m)
for i in range(3):
    m(torch.randn(8, 16)).square().mean().backward(); done()
""",
    "objects of different sizes": """
for i in range(2):
    back(); reduce()
    parts = [None] * w; dist.all_gather_object(parts, "x" * r); done()
""",
    "gather of ranks' parts": """
for i in range(2):
    back(); reduce()
    dist.gather(torch.ones(4), [torch.empty(4) for _ in range(w)] if r == 0 else None, dst=0); done()
""",
    "a gradient scaler's sound numbers": """
for i in range(3):
    back(); reduce()
    bad = torch.stack([p.grad.isinf().any() | p.grad.isnan().any() for p in m.parameters()]).any()
    if not bad.item(): opt.step()
    opt.zero_grad()
    if i == 0: opt.step()
""",
    "accumulation": """
for i in range(6):
    back()
    if (i + 1) % 2 == 0: reduce(); done()
""",
}
