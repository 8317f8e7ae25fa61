"""What an op costs besides its kernel: its launch from Python, from compiled code, and from a CUDA graph.

Eager: the time per call of an addition to one element. Compiled: the slope between compiled functions of few and many
tiny matrix products, which nothing fuses. On a CPU the kernel of one element is part of it, some tens of nanoseconds.
`torch.compile` runs in a process of its own: it may take long, need a compiler that is not there, or fail.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from windtunnel.physics.hardware.calibration import LARGER_PROCESSES
from windtunnel.process import no_garbage_collection
from windtunnel.real.calibrate.device import gpu_errors
from windtunnel.real.calibrate.timing import HostTimer, quantile, summary
from windtunnel.real.calibrate.torch_ops import torch_dtype

if TYPE_CHECKING:
    from types import ModuleType

    from torch import Tensor

_MANY, _FEW = 33, 1
_NEW_BYTES = 48 << 20
_ROUNDS = 15  # of an op on new pages and on old ones: on a shared machine a few may all fall into one spell
_IDLE_ROUNDS, _IDLE_RESULTS, _IDLE_S = 4, 10, 1.5  # of taking pages that have lain free for as long as a step takes
_MOST_ROWS, _SHAPES = 512, 15
_COMPILED = """
import sys, time
import torch
device = sys.argv[1]
if device == "cpu":
    torch.set_num_threads(int(sys.argv[2]))
else:  # what waits and launches is the current device
    torch.cuda.set_device(device)
w = [torch.randn(4, 4, device=device) for _ in range(33)]
def chain(n):
    def run(x):
        for one in w[:n]:
            x = torch.mm(x, one)
        return x
    return torch.compile(run, dynamic=False)
def wait():
    if device != "cpu":
        torch.cuda.synchronize()
def seconds(call):
    x = torch.randn(4, 4, device=device)
    with torch.no_grad():
        for _ in range(20):
            call(x)
        wait()
        best = []
        for _ in range(200):
            begun = time.perf_counter_ns()
            call(x)
            best.append((time.perf_counter_ns() - begun) / 1e9)
            wait()
    return sorted(best)[len(best) // 2]
print((seconds(chain(33)) - seconds(chain(1))) / 32)
"""


def eager_launch_s(torch: ModuleType, device: str) -> float:
    """Seconds of host time per op, from Python.

    On a GPU it is emptied before every 100 launches: a driver queues about a thousand before the host has to wait.
    """
    tensor = torch.ones(1, device=device)

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)  # without it, the current device

    def many() -> None:
        for _ in range(100):
            tensor.add_(1.0)

    with torch.no_grad(), no_garbage_collection():
        many()
        samples = []
        for _ in range(30):
            wait()
            samples += HostTimer().samples([many])
    return summary(samples).median_s / 100


def grad_call_s(torch: ModuleType, device: str) -> float:
    """Seconds of calling `torch.autograd.grad` on a graph without a node: paid once a step, not once an op."""
    leaf = torch.ones(1, device=device, requires_grad=True)
    gradient = torch.ones(1, device=device)
    with no_garbage_collection():
        samples = HostTimer().samples([lambda: torch.autograd.grad(leaf, leaf, gradient)] * 200)
    return summary(samples).median_s


def calls_beside_ops(torch: ModuleType) -> dict[str, float]:
    """Seconds of what runs around kernels: calling a module, a view that autograd records, a node going back."""
    chain = 200
    x = torch.ones(2, 2, requires_grad=True)
    module = torch.nn.Identity()

    def views() -> object:
        y = x
        for _ in range(chain):
            y = y.view(2, 2)
        return y

    def modules() -> None:
        for _ in range(chain):
            module(x)

    end = views()
    gradient = torch.ones(2, 2)
    calls = {
        "module_call_s": modules,
        "view_call_s": views,
        "grad_node_s": lambda: torch.autograd.grad(end, x, gradient, retain_graph=True),
    }
    with no_garbage_collection():
        return {name: summary(HostTimer().samples([call] * 40)).median_s / chain for name, call in calls.items()}


def new_shapes(torch: ModuleType, dtypes: Sequence[str]) -> dict[str, float]:
    """Seconds that the first product of a shape takes longer than the next: a library that writes code for each shape.

    Paid again and again where routing decides on the rows, as in a loop over experts.
    """
    products: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "forward": torch.nn.functional.linear,
        "dgrad": lambda x, weight: x.mm(weight),
        "wgrad": lambda x, weight: x.t().mm(weight[: len(x)]),
    }
    costs = {}
    for dtype in dtypes:
        wide, weight = (torch.randn(_MOST_ROWS, _MOST_ROWS).to(torch_dtype(torch, dtype)) for _ in range(2))
        for role, product in products.items():
            rows = range(_MOST_ROWS - 2 * _SHAPES, _MOST_ROWS, 2)
            with torch.no_grad(), no_garbage_collection():
                extra = [_first_time(product, wide[:m], weight) for m in rows]
            costs[f"new_shape_{role}_{dtype}_s"] = max(0.0, quantile(extra, 0.5))
    return costs


def _first_time(product: Callable[[Tensor, Tensor], Tensor], x: Tensor, weight: Tensor) -> float:
    first, again = (HostTimer().samples([lambda: product(x, weight)])[0].seconds for _ in range(2))
    return first - again


def new_pages(torch: ModuleType, dtypes: Sequence[str], available_bytes: int, limit_s: float) -> dict[str, float]:
    """Seconds per byte that writing costs more where the system hands out the page. Before `timing.keep_pages`.

    As an addition shows it, and as the root of a large tensor in each dtype does, which is what AdamW makes: how much
    of a fault hides behind an op's own traffic differs between them. Then in processes that hold some GiB, up to half
    of what is available, for about `limit_s` at most.
    """
    begin_s = time.monotonic()
    left, right = torch.randn(_NEW_BYTES // 4), torch.randn(_NEW_BYTES // 4)
    costs = {"new_page_s_per_byte": _newly(torch.add, left, right)}
    for dtype in dtypes:
        tensor = torch.rand(2 * _NEW_BYTES // 4).to(torch_dtype(torch, dtype))
        costs[f"new_page_update_{dtype}_s_per_byte"] = _newly(torch.sqrt, tensor)
    ballast: list[object] = []
    for size, name in LARGER_PROCESSES.items():
        if 2 * (size << 30) > available_bytes or time.monotonic() - begin_s >= limit_s:
            break
        ballast += [torch.ones(1 << 28) for _ in range(len(ballast), size)]
        costs[name] = _after_idling(torch.add, left, right)
    return costs


def _newly(op: Callable[..., Tensor], *inputs: Tensor) -> float:
    """Above every threshold of the heap a result has pages of its own, which go back when it is dropped."""
    with no_garbage_collection():
        there = op(*inputs)
        calls = {"warm": lambda: op(*inputs, out=there), "new": lambda: op(*inputs)}
        seconds = {name: summary(HostTimer().samples([call] * _ROUNDS)).median_s for name, call in calls.items()}
    return float(max(0.0, seconds["new"] - seconds["warm"]) / (there.numel() * there.element_size()))


def _after_idling(op: Callable[..., Tensor], *inputs: Tensor) -> float:
    """The mean over some rounds of taking pages and giving them back, with as much time between as a step takes.

    A virtual machine may give back to its host what lies free, beyond what that keeps for it; the first write to such
    a page then costs several times as much. Taken again at once, the same pages cost what they cost a small process.
    """
    there = op(*inputs)
    extra = []
    with no_garbage_collection():
        for _ in range(_IDLE_ROUNDS):
            warm = summary(HostTimer().samples([lambda: op(*inputs, out=there)] * _IDLE_RESULTS)).median_s
            begin_s = time.perf_counter()
            results = [op(*inputs) for _ in range(_IDLE_RESULTS)]
            del results
            extra.append(time.perf_counter() - begin_s - _IDLE_RESULTS * warm)
            until = time.perf_counter() + _IDLE_S
            while time.perf_counter() < until:  # not asleep: a step is not either
                op(*inputs, out=there)
    rounds = extra[1:]  # the first finds whatever lay free until now
    return float(max(0.0, sum(rounds)) / len(rounds) / (_IDLE_RESULTS * there.numel() * there.element_size()))


def compiled_launch_s(device: str, threads: int, limit_s: float) -> tuple[float | None, str]:
    """Seconds per op in compiled code, or None and why not."""
    command = [sys.executable, "-c", _COMPILED, device, str(threads)]
    begin_s = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return None, f"torch.compile was not ready within {limit_s:.0f} s; its launch cost was not measured"
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return None, f"torch.compile does not work here ({last[:120]}); its launch cost was not measured"
    seconds = float(done.stdout.split()[-1])
    if seconds <= 0:
        return None, f"the launch cost of compiled code was lost in noise after {time.monotonic() - begin_s:.0f} s"
    return seconds, ""


def graph_launch_s(torch: ModuleType, device: str, clock: Callable[[], int] = time.perf_counter_ns) -> float:
    """Seconds per kernel when a CUDA graph replays a chain of tiny kernels.

    The tiny kernel's own microsecond is part of it, as it is in the eager cost of a host that has to wait for it. Not
    yet run on a GPU.
    """
    with gpu_errors(), torch.no_grad(), torch.cuda.device(device):
        tensor = torch.ones(1, device=device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # what a first call sets up must not be captured
            for _ in range(3):
                tensor.add_(1.0)
        torch.cuda.current_stream().wait_stream(side)
        times = {}
        for count in (_FEW, 1000 + _FEW):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):  # in place: nothing is allocated while it captures
                for _ in range(count):
                    tensor.add_(1.0)
            graph.replay()  # the first one also uploads the graph
            samples = []
            for _ in range(20):
                torch.cuda.synchronize()
                begin_ns = clock()
                graph.replay()
                torch.cuda.synchronize()
                samples.append((clock() - begin_ns) / 1e9)
            times[count] = quantile(samples, 0.5)
            graph.reset()
        return max(0.0, (times[1000 + _FEW] - times[_FEW]) / 1000)
