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
    throttled          all ranks stand still for 3 ms of each 9 (SIGSTOP), as cores do that are too hot
    memory             each allocation is given back and asked for again, and the job's log says that memory is full

What was put in is what was slept, what the all-reduces took, or the share of the step in which the ranks stood still.
Of memory it is not known apart from the job: there only the cause is judged.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from windtunnel.studies.measured_run import read_run, steady_of
from windtunnel.studies.measured_run.against import mean_classes
from windtunnel.studies.measured_run.causes import Cause, Evidence, causes_of, length_s
from windtunnel.studies.measured_run.traced import read_traced

EXPECTED = {
    "healthy": "", "slow-rank": "slow rank 1", "loader": "data loader", "host-bound": "host-bound",
    "collective": "exposed communication", "uneven": "imbalance", "throttled": "clocks or power",
    "memory": "memory is full",
}  # fmt: skip
SECONDS = 0.15
ROWS = {"throttled": 1024, "memory": 1024}  # where kernels are what is slow; else little to compute, so that what
# else runs on this machine is not what is measured
STILL_S, EVERY_S = 0.003, 0.009
FULL_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_TOP_PAD_": "0"}
JOB = """
import os, resource, sys, time
import torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

rank, world, folder, port, fault, seconds = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:6], float(sys.argv[6])
rows = int(sys.argv[7])
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
torch.set_num_threads(1)
torch.manual_seed(0)
dist.init_process_group("gloo", rank=rank, world_size=world)

class Rows(Dataset):
    def __len__(self): return 64
    def __getitem__(self, at):
        if fault == "loader": time.sleep(seconds)
        return torch.zeros(rows, 512)

model = torch.nn.Sequential(*[layer for _ in range(6) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())])
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
more = torch.zeros(16_000_000)
spent = []
log = open(f"{folder}/log{rank}.txt", "w")
with profile(
    activities=[ProfilerActivity.CPU], record_shapes=False, schedule=schedule(wait=2, warmup=2, active=8),
    on_trace_ready=lambda recorded: recorded.export_chrome_trace(f"{folder}/rank{rank}.json"),
) as recording:
    last = time.perf_counter()
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
        now, peak = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f" iteration {step + 1}/ 12 | elapsed time per iteration (ms): {1e3 * (now - last):.1f} |", file=log)
        after = f"[Rank {rank}] (after {step + 1} iterations) memory (MB)"
        print(f"{after} | max allocated: {peak} | max reserved: {peak}", file=log)
        last = now
dist.destroy_process_group()
if rank == 0:
    print(sorted(spent)[len(spent) // 2] if spent else seconds if fault != "healthy" else 0.0)
"""


def run(fault: str, folder: Path, seconds: float = SECONDS, world: int = 2, rows: int = 64) -> tuple[list[Path], float]:
    """Traces of a job with a fault, and the seconds a step that were put in; of a throttled job their share of it."""
    script = folder / "job.py"
    script.write_text(JOB)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(world), str(folder), port, fault, str(seconds), str(rows)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (FULL_MEMORY if fault == "memory" else {}),
        )
        for rank in range(world)
    ]
    share: list[float] = []
    if fault == "throttled":
        threading.Thread(target=throttle, args=(ranks, share), daemon=True).start()
    said = [rank.communicate(timeout=180) for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise RuntimeError(said[0][1][-2000:])
    put_in = share[-1] if share else float(said[0][0].split()[-1])
    return [folder / f"rank{rank}.json" for rank in range(world)], put_in


def throttle(ranks: list[subprocess.Popen[str]], share: list[float]) -> None:
    """Lets the ranks stand still again and again until they end; adds the share of the time so far each time."""
    begun, still = time.perf_counter(), 0.0
    while all(rank.poll() is None for rank in ranks):
        stopped = time.perf_counter()
        for number, length in ((signal.SIGSTOP, STILL_S), (signal.SIGCONT, EVERY_S - STILL_S)):
            for rank in ranks:
                rank.send_signal(number)
            if number == signal.SIGCONT:
                still += time.perf_counter() - stopped
            time.sleep(length)
        share.append(still / (time.perf_counter() - begun))


def found_in(traces: list[Path], healthy: list[Path], fault: str) -> tuple[Cause, ...]:
    """The causes, against a healthy run; a job short of memory has a log beside its trace."""
    well, traced = read_traced(healthy), read_traced(traces)
    evidence = Evidence(length_s(traced), mean_classes(well), traced, healthy=well)
    if fault == "memory":
        log = read_run([str(path.parent / f"log{rank}.txt") for rank, path in enumerate(traces)])
        capacity = int(1.01 * max(log.reserved_bytes.values()))  # a device that the job just fits
        evidence = replace(evidence, run=log, steady=steady_of(log), capacity_bytes=capacity)
    return causes_of(evidence)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--repeats", type=int, default=1)
    asked.add_argument("--only", choices=list(EXPECTED))
    asked.add_argument("--seconds", type=float, default=SECONDS)
    options = asked.parse_args()
    right = total = 0
    with TemporaryDirectory() as place:
        healthy = {}
        for rows in sorted({64, *ROWS.values()}):
            base = Path(place) / f"base{rows}"
            base.mkdir()
            healthy[rows], _ = run("healthy", base, rows=rows)
        for fault, expected in EXPECTED.items():
            if options.only not in (None, fault):
                continue
            for repeat in range(options.repeats):
                folder = Path(place) / f"{fault}{repeat}"
                folder.mkdir()
                rows = ROWS.get(fault, 64)
                traces, put_in = run(fault, folder, options.seconds, rows=rows)
                put_in *= length_s(read_traced(traces)) if fault == "throttled" else fault != "memory"
                causes = found_in(traces, healthy[rows], fault)
                first = causes[0] if causes else None
                hit = (first.cause if first else "") == expected
                right, total = right + hit, total + 1
                said = f"{first.cause}, {first.seconds:.3f} s" if first else "healthy"
                more = "; ".join(f"{one.cause} {one.seconds:.3f}" for one in causes[1:3])
                print(f"{'right' if hit else 'WRONG'}  {fault:11s} put in {put_in:.3f} s   found {said}   ({more})")
    print(f"{right} of {total} right")


if __name__ == "__main__":
    main()
