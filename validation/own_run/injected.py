"""Faults put into real jobs of this machine, and the cause that is found first: gloo, CPU, torch.profiler.

    python validation/own_run/injected.py [--repeats N] [--only slow-rank] [--seconds 0.15]

A healthy run of the same job is what a step is expected to take, class by class; then one fault at a time. Printed: the
first cause, its seconds, and those that were put in.

    healthy            nothing
    slow-rank          rank 1 sleeps in each step
    loader             the data set sleeps for each batch, on every rank
    host-bound         every rank sleeps between its operators
    collective         an all-reduce more, which all ranks wait for
    uneven             another rank sleeps in each step
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from windtunnel.studies.measured_run.against import ORDER, lateness, mean_classes, noise, representative
from windtunnel.studies.measured_run.causes import Cause, Evidence, causes_of
from windtunnel.studies.measured_run.traced import read_traced

EXPECTED = {
    "healthy": "", "slow-rank": "slow rank 1", "loader": "data loader", "host-bound": "host-bound",
    "collective": "exposed communication", "uneven": "imbalance",
}  # fmt: skip
SECONDS = 0.15
JOB = """
import os, sys, time
import torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

rank, world, folder, port, fault, seconds = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6], float(sys.argv[6])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo", rank=rank, world_size=world)
rows = 64  # little to compute: what else runs on this machine must not be what is measured

class Rows(Dataset):
    def __len__(self): return 64
    def __getitem__(self, at):
        if fault == "loader": time.sleep(seconds)
        return torch.zeros(rows, 512)

model = torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
more = torch.zeros(16_000_000)
spent = []
with profile(
    activities=[ProfilerActivity.CPU], record_shapes=False, schedule=schedule(wait=2, warmup=2, active=8),
    on_trace_ready=lambda recorded: recorded.export_chrome_trace(f"{folder}/rank{rank}.json"),
) as recording:
    for step, batch in zip(range(12), DataLoader(Rows(), batch_size=1)):
        late = fault == "slow-rank" and rank == 1 or fault == "uneven" and step % world == rank
        if fault == "host-bound" or late:
            time.sleep(seconds)
        model(batch[0]).square().mean().backward()
        flat = torch.cat([one.grad.flatten() for one in model.parameters()])
        dist.all_reduce(flat)
        if fault == "collective":
            begun = time.perf_counter()
            for _ in range(2):
                dist.all_reduce(more)
            spent.append(time.perf_counter() - begun)
        optimizer.step()
        optimizer.zero_grad()
        recording.step()
dist.destroy_process_group()
if rank == 0:
    print(sorted(spent)[len(spent) // 2] if spent else seconds if fault != "healthy" else 0.0)
"""


def run(fault: str, folder: Path, seconds: float = SECONDS, world: int = 2) -> tuple[list[Path], float]:
    """Traces of a job with a fault, and the seconds a step that were put in."""
    script = folder / "job.py"
    script.write_text(JOB)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(world), str(folder), port, fault, str(seconds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = [rank.communicate(timeout=180) for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(said[0][1][-2000:])
    return [folder / f"rank{rank}.json" for rank in range(world)], float(said[0][0].split()[-1])


def found_in(traces: list[Path], healthy: list[Path]) -> tuple[Cause, ...]:
    """The causes, against a healthy run."""
    base = read_traced(healthy)
    expected, late = mean_classes(base), lateness(base)
    traced = read_traced(traces)
    step_s = sum(representative(steps).length_s for steps in traced.values()) / len(traced)
    wait_s, differ = late.seconds if late else 0.0, {name: noise(base, name) for name in ORDER}
    return causes_of(Evidence(step_s, expected, traced, expected_wait_s=wait_s, expected_noise=differ))


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--repeats", type=int, default=1)
    asked.add_argument("--only", choices=list(EXPECTED))
    asked.add_argument("--seconds", type=float, default=SECONDS)
    options = asked.parse_args()
    right = total = 0
    with TemporaryDirectory() as place:
        base = Path(place) / "base"
        base.mkdir()
        healthy, _ = run("healthy", base)
        for fault, expected in EXPECTED.items():
            if options.only not in (None, fault):
                continue
            for repeat in range(options.repeats):
                folder = Path(place) / f"{fault}{repeat}"
                folder.mkdir()
                traces, put_in = run(fault, folder, options.seconds)
                causes = found_in(traces, healthy)
                first = causes[0] if causes else None
                hit = (first.cause if first else "") == expected
                right, total = right + hit, total + 1
                said = f"{first.cause}, {first.seconds:.3f} s" if first else "healthy"
                more = "; ".join(f"{one.cause} {one.seconds:.3f}" for one in causes[1:3])
                print(f"{'right' if hit else 'WRONG'}  {fault:11s} put in {put_in:.3f} s   found {said}   ({more})")
    print(f"{right} of {total} right")


if __name__ == "__main__":
    main()
