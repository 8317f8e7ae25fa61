"""What `predicted_and_run.py` runs on each rank: every technique's real twin, without and with it, in turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from predicted_and_run import COLUMNS, LAYERS, MIB, MICRO, ROWS, computes_of, paired
from torch import nn

from windtunnel.real.techniques import offload as window_offload
from windtunnel.real.techniques import prioritised_all_to_all, sparse_gradients
from windtunnel.real.techniques.collective_partitioning import partitioned

SIZES, NAP_S = (4 * 1024, 256 * 1024, MIB, 3 * MIB), 0.02


def timed(run: Callable[[], None]) -> float:
    """Seconds, from when all ranks are there until all are done."""
    dist.barrier()
    begin = time.perf_counter()
    run()
    done = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(done, op=dist.ReduceOp.MAX)
    return float(done)


def alone(wanted: tuple[str, ...]) -> dict[str, list[tuple[float, float]]]:
    """Median seconds by bytes of each collective that is wanted, as `predicted_and_run` counts them."""

    def measured(make: Callable[[int], Callable[[], None]]) -> list[tuple[float, float]]:
        points = []
        for size in SIZES:
            run = make(size)
            points.append((float(size), statistics.median(timed(run) for _ in range(7))))
        return points

    def filled(size: int) -> torch.Tensor:
        return torch.ones(size // 4)

    def choose(size: int) -> Callable[[], None]:
        """The hook's own work: all of it but the collectives."""
        kept, flat = filled(size), filled(size)

        def run() -> None:
            kept.add_(flat)
            stacked = torch.cat([kept.view(-1, 256)])
            magnitude = stacked.abs().mean(1)
            keep = torch.zeros(magnitude.numel(), dtype=torch.bool)
            keep[magnitude.topk(max(1, magnitude.numel() // 10)).indices] = True
            packed = stacked[keep]
            whole = torch.zeros_like(stacked)
            whole[keep] = packed / 2
            flat.copy_(whole.view(-1))
            kept.masked_fill_(keep[:, None].expand(-1, 256).reshape(-1), 0.0)

        return run

    def exchange(size: int) -> Callable[[], None]:
        source, target = filled(size), filled(size)
        return lambda: dist.all_to_all_single(target, source)

    def reduce(size: int) -> Callable[[], None]:
        tensor = filled(size)
        return lambda: dist.all_reduce(tensor)

    def gather(size: int) -> Callable[[], None]:
        out, shard = filled(size), filled(size // dist.get_world_size())
        return lambda: partitioned._gather(out, shard, None)

    def scatter(size: int) -> Callable[[], None]:
        shard, whole = filled(size // dist.get_world_size()), filled(size)
        return lambda: partitioned._scatter(shard, whole, None)

    def handed() -> list[tuple[float, float]]:
        """What a piece costs on the communication thread beyond its bytes: the same bytes in more pieces."""
        tensor = torch.ones(3 * MIB // 4)
        groups = tuple(dist.new_group() for _ in range(3))

        def pieces(count: int) -> None:
            size = 3 * MIB // count
            lane = prioritised_all_to_all.Communicator("static", order="r" * count, micro_op_bytes=size, groups=groups)
            lane.all_reduce(tensor).wait()
            lane.close()

        seconds = []
        for _ in range(9):
            few = timed(lambda: pieces(6))
            seconds.append((timed(lambda: pieces(24)) - few) / 18)
        each = max(0.0, statistics.median(seconds))
        return [(0.0, each), (1.0, each)]

    def overslept() -> list[tuple[float, float]]:
        """By how much a sleep is too long on the slower rank, which the other one then waits for."""
        over = statistics.median(timed(lambda: time.sleep(NAP_S)) for _ in range(9)) - NAP_S
        return [(0.0, over), (1.0, over)]

    constants = {"sleep": overslept, "hand over": handed}
    lines = {
        "all_to_all": exchange, "all_reduce": reduce, "all_gather": gather, "reduce_scatter": scatter, "choose": choose,
    }  # fmt: skip
    return {name: constants[name]() if name in constants else measured(lines[name]) for name in wanted}


def lina(rounds: int, order: str, short_s: float, long_s: float, exchange: float, reduce: float) -> dict:
    """All-to-all beside all-reduce, both in flight, against the order that the simulator gives."""
    computes = computes_of(short_s, long_s)
    source = torch.ones(int(exchange * MIB) // 4)
    received = torch.empty_like(source)
    gradients = [torch.ones(int(reduce * MIB) // 4) for _ in range(LAYERS)]
    reduces, groups = dist.new_group(), tuple(dist.new_group() for _ in range(3))

    def fifo() -> None:
        works = []
        for compute_s, gradient in zip(computes, gradients, strict=True):
            time.sleep(compute_s)
            dist.all_to_all_single(received, source)
            works.append(dist.all_reduce(gradient, group=reduces, async_op=True))
        for work in works:
            work.wait()

    def first() -> None:
        works = []
        lane = prioritised_all_to_all.Communicator("static", order=order, micro_op_bytes=MICRO, groups=groups)
        for compute_s, gradient in zip(computes, gradients, strict=True):
            time.sleep(compute_s)
            lane.all_to_all(received, source).wait()
            works.append(lane.all_reduce(gradient))
        for work in works:
            work.wait()
        lane.close()

    return paired(rounds, lambda: timed(fifo), lambda: timed(first))


class _Slow(torch.autograd.Function):
    """A backward that takes a while, as a kernel elsewhere would."""

    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.seconds)
        return gradient, None


class _Layers(nn.Module):
    def __init__(self, size: float, compute_s: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(int(size * MIB) // 4) / 100) for _ in range(LAYERS))
        self.compute_s = compute_s

    def forward(self, x):
        for weight in self.weights:
            x = _Slow.apply(x + weight, self.compute_s)
        return x.mean()


def sparse(rounds: int, compute_s: float, size: float, ratio: float) -> dict:
    """DistributedDataParallel as it is, against the sparse hook; a bucket a layer."""

    def made(hooked: bool) -> Callable[[], None]:
        ddp = nn.parallel.DistributedDataParallel(_Layers(size, compute_s), bucket_cap_mb=size * 0.9)
        if hooked:
            ddp.register_comm_hook(sparse_gradients.State(ddp.module, ratio=ratio, chunk=256), sparse_gradients.hook)
        x = torch.ones(int(size * MIB) // 4)

        def run() -> None:
            ddp(x).backward()

        run()
        run()  # buckets are built anew after the first
        return run

    without, after = made(False), made(True)
    return paired(rounds, lambda: timed(without), lambda: timed(after))


def partition(rounds: int, which: str, pieces: int, compute_s: float) -> dict:
    """A collective and the compute tied to it, in one piece against several; each piece's product also sleeps."""

    def made(count: int) -> Callable[[], None]:
        def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            time.sleep(compute_s / count)
            return a @ b

        if which == "gather":
            shard, thin = torch.ones(ROWS, COLUMNS), torch.ones(COLUMNS, 4)
            return lambda: partitioned.gathered_product(shard, thin, None, count, multiply)
        whole, wide = torch.ones(dist.get_world_size() * ROWS, 4), torch.ones(4, COLUMNS)
        return lambda: partitioned.scattered_product(whole, wide, None, count, multiply)

    one, many = made(1), made(pieces)
    return paired(rounds, lambda: timed(one), lambda: timed(many))


def local(rounds: int, compute_s: float, size: float, steps: int) -> dict:
    """An all-reduce in every step against one every `steps`, seconds of a step."""
    tensor = torch.ones(int(size * MIB) // 4)

    def every() -> None:
        for _ in range(steps):
            time.sleep(compute_s)
            dist.all_reduce(tensor)

    def seldom() -> None:
        for _ in range(steps):
            time.sleep(compute_s)
        dist.all_reduce(tensor)

    return paired(rounds, lambda: timed(every) / steps, lambda: timed(seldom) / steps)


OFFLOADED, LAYER_FLOATS, FORWARD_S, BACKWARD_S, UPDATE_S = 10, MIB // 4, 0.02, 0.04, 0.06


class _OneLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(LAYER_FLOATS) / 100)

    def forward(self, x):
        time.sleep(FORWARD_S)
        return _Slow.apply(x * self.weight, BACKWARD_S)


class _HostAdam(torch.optim.Adam):
    """An update that takes as long as a real host's of a larger layer."""

    def step(self, closure=None):
        time.sleep(UPDATE_S)
        return super().step(closure)


def offload(rounds: int, window: int, bytes_per_s: float) -> dict:
    """Everything on the device against a window, on rank 0 alone; the link is throttled."""
    model_bytes = LAYER_FLOATS * 4
    if dist.get_rank():
        return {}

    def adam(parameters):
        many = len(list(parameters)) > 1
        return (torch.optim.Adam if many else _HostAdam)(parameters, lr=1e-4)

    x = torch.ones(LAYER_FLOATS)
    plain = nn.Sequential(*[_OneLayer() for _ in range(OFFLOADED)])
    optimizer = torch.optim.Adam(plain.parameters(), lr=1e-4)
    model = nn.Sequential(*[_OneLayer() for _ in range(OFFLOADED)])
    run = window_offload.apply(model, adam, window=window, link_bytes_per_s=bytes_per_s)

    def resident() -> float:
        begin = time.perf_counter()
        for _ in range(2):
            plain(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        return (time.perf_counter() - begin) / 2

    def windowed() -> float:
        begin = time.perf_counter()
        for _ in range(3):
            model(x).mean().backward()
            run.step()
        run.wait()  # the last step's updates are part of it
        return (time.perf_counter() - begin) / 3

    found = paired(rounds, resident, windowed)
    stay = statistics.median(found["without"]) / OFFLOADED
    extra = max(0.0, stay - FORWARD_S - BACKWARD_S)  # arithmetic and update beside the sleeps, measured resident
    found["times"] = {
        "forward": FORWARD_S + extra / 3, "backward": BACKWARD_S + extra / 3, "fetch": model_bytes / bytes_per_s,
        "gradients": model_bytes / bytes_per_s, "update": UPDATE_S + extra / 3, "resident_update": extra / 3,
    }  # fmt: skip
    found |= {"layers": OFFLOADED, "ends": 0.0, "end": 0.0}
    run.close()
    return found
