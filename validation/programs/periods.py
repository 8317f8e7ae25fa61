"""Scripts whose steps differ, with periods of 2 to 50: whether a capture finds the period, and prices its mean step.

    python validation/programs/periods.py [--only evaluates]

Each script is captured at two ranks as a user would. The truth: every step of two periods is recorded one by one on
both ranks, by the same recorder and with nothing that looks for periods, and each kind is priced alone; the mean over
the second period is held against what `predict` says of the captured folder. The scripts say when a step differs in
different ways: conditions in the loop, in a helper, counters, generators, the ends of epochs, no condition at all. Exit
status 1 where a period is not found and nothing is said of that, or a mean is more than 1 % off.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

RANKS, CLUSTER = 2, "h100-sxm:2"
HEAD = """
import itertools
import torch, torch.nn as nn, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("cuda", rank)
torch.cuda.set_device(device)
torch.manual_seed(0)

def made(width=1024):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)).to(device)

def batch(rows=8192, width=1024):
    return torch.randn(rows, width, device=device)

model = made()
ddp = DDP(model, device_ids=[rank])
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)

def train(x, model=ddp, optimizer=optimizer):
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

def average(loss):
    loss = loss.detach().clone()
    dist.all_reduce(loss)
    return loss / world

def evaluate(batches=4):
    model.eval()
    with torch.no_grad():
        total = sum(model(batch(16384)).pow(2).mean() for _ in range(batches))
    model.train()
    return average(total)
"""
LAST = 130  # steps that each script takes


@dataclass(frozen=True)
class Script:
    """A script behind HEAD, and what it does."""

    period: int
    text: str


SCRIPTS = {
    "outer step every 4 (local SGD)": Script(
        4,
        """
local = made()
inner = torch.optim.AdamW(local.parameters(), lr=1e-3)
for step in range(LAST):
    train(batch(), local, inner)
    if (step + 1) % 4 == 0:
        for p in local.parameters():
            dist.all_reduce(p.data)
            p.data.div_(world)
""",
    ),
    "evaluates every 10, in a helper": Script(
        10,
        """
def due(step, every):
    return step > 0 and step % every == 0
for step in range(LAST):
    train(batch())
    if due(step, 10):
        evaluate()
""",
    ),
    "moving average every 5, by a counter": Script(
        5,
        """
averaged = made()
since = 0
for step in range(LAST):
    train(batch())
    since += 1
    if since == 5:
        since = 0
        with torch.no_grad():
            for mine, theirs in zip(averaged.parameters(), model.parameters()):
                mine.lerp_(theirs, 0.1)
""",
    ),
    "checkpoint every 25, in a class": Script(
        25,
        """
class Trainer:
    def __init__(self, every):
        self.every, self.step = every, 0
    def run(self, steps):
        while self.step < steps:
            train(batch())
            self.step += 1
            self.after()
    def after(self):
        if self.step % self.every:
            return
        dist.barrier()
        for p in model.parameters():
            parts = [torch.empty_like(p) for _ in range(world)]
            dist.all_gather(parts, p.data)
Trainer(25).run(LAST)
""",
    ),
    "lengths in turn, by an index": Script(
        3,
        """
rows = (2048, 8192, 32768)
for step in range(LAST):
    train(batch(rows[step % len(rows)]))
""",
    ),
    "critic twice, generator once": Script(
        3,  # steps of an optimizer
        """
critic = DDP(made(), device_ids=[rank])
theirs = torch.optim.AdamW(critic.parameters(), lr=1e-3)
for turn in itertools.cycle(("critic", "both")):
    train(batch(16384), critic, theirs)
    if turn == "both":
        train(batch(4096))
""",
    ),
    "evaluates at the end of epochs of 12 batches": Script(
        12,
        """
data = torch.utils.data.TensorDataset(torch.randn(12 * 16 * world, 1024))
sampler = torch.utils.data.DistributedSampler(data)
loader = torch.utils.data.DataLoader(data, batch_size=16, sampler=sampler)
for epoch in range(LAST // 12):
    sampler.set_epoch(epoch)
    for (x,) in loader:
        train(x.to(device))
    evaluate()
""",
    ),
    "logs every 10, evaluates every 25": Script(
        50,
        """
for step in range(1, LAST):
    loss = train(batch())
    if step % 10 == 0:
        said = average(loss)
    if step % 25 == 0:
        evaluate(8)
""",
    ),
}


def every_step(path: Path, folder: Path, last: int) -> None:
    """Record each step up to `last` of each rank, into `folder`; the order of their digests in `steps_RANK.json`."""
    from windtunnel.real.capture.arguments import Launch
    from windtunnel.real.capture.fake_tensors.fake import fake_tensors
    from windtunnel.real.capture.processes.rank_process import run_script
    from windtunnel.real.capture.recorder.recorder import Recorder
    from windtunnel.real.capture.torch_private import distributed as compat
    from windtunnel.real.capture.virtual_world.world import World
    from windtunnel.studies.programs.program import RankProgram
    from windtunnel.studies.programs.program_file import write_program
    from windtunnel.studies.programs.rank_classes.equality import digest

    class Done(BaseException):
        pass

    rank = int(os.environ["RANK"])
    order: list[str] = []

    def on_step(program: RankProgram) -> None:
        key = digest(program)
        if key not in order:
            (folder / f"{key}_{rank}.jsonl.gz").write_bytes(write_program(replace(program, notes=())))
        order.append(key)
        if len(order) == last:
            raise Done

    launch = Launch(str(path), (), False, RANKS, RANKS)
    os.environ.update(launch.environment(rank))
    with (
        fake_tensors("cuda", gpus=RANKS, local_rank=rank, note=lambda text: None, missing=()),
        compat.real_device_meshes(),
        compat.ddp_outside_modes(),
        World(rank, RANKS, local_world_size=RANKS, any_can_run=True, devices=("cpu", "cuda")) as world,
        Recorder(rank, RANKS, world, device="cuda", first=1, on_step=on_step),
    ):
        world.fake = True
        with suppress(Done):
            run_script(launch)
    (folder / f"steps_{rank}.json").write_text(json.dumps(order))


def truth(path: Path, folder: Path, last: int) -> tuple[list[tuple[str, ...]], dict[tuple[str, ...], float]]:
    """Which kind each step up to `last` is of, and what each kind takes, in seconds."""
    from every_rank import whole_job

    from windtunnel.studies.programs.predict import predict_captured
    from windtunnel.studies.programs.program_file import read_program

    words = [sys.executable, "-W", "ignore", __file__, "--play", str(path), str(folder), str(last)]
    running = [
        subprocess.Popen(words, env={**os.environ, "RANK": str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(RANKS)
    ]
    if max(one.wait() for one in running):
        raise RuntimeError(f"{path.name}: a rank failed")
    orders = [json.loads((folder / f"steps_{rank}.json").read_text()) for rank in range(RANKS)]
    kinds = list(zip(*orders, strict=True))
    seconds = {}
    for kind in dict.fromkeys(kinds):
        programs = [read_program(folder / f"{key}_{rank}.jsonl.gz") for rank, key in enumerate(kind)]
        seconds[kind] = predict_captured(whole_job(programs), CLUSTER).step_time_s
    return kinds, seconds


def check(name: str, script: Script, folder: Path) -> bool:
    """Capture, predict and print one line; whether it is right, or says that more steps are needed."""
    path = folder / "train.py"
    path.write_text(f"LAST = {LAST}\n{HEAD}{script.text}")
    kinds, seconds = truth(path, folder, 2 * script.period + 10)
    times = [round(seconds[kind], 9) for kind in kinds[-2 * script.period :]]
    repeats = times[: script.period] == times[script.period :] and len({*times}) > 1
    mean_s = sum(times[script.period :]) / script.period
    tool, out = [sys.executable, "-W", "ignore", "-m", "windtunnel"], str(folder / "captured")
    begun = os.times()
    words = [*tool, "capture", "--world-size", str(RANKS), "--out", out, "--json", str(path)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        print(f"{name}: status {done.returncode}: {done.stderr.strip().splitlines()[-1]}", flush=True)
        return False
    ended = os.times()
    cpu_s = ended.children_user + ended.children_system - begun.children_user - begun.children_system
    document = json.loads(done.stdout)
    words = [*tool, "predict", out, "--cluster", CLUSTER, "--json"]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    off = json.loads(said)["step_time_ns"] / 1e9 / mean_s - 1
    seen = "; ".join(one for one in document["not_seen"] if "ranks were not run" not in one)
    right = document["period_steps"] == script.period and abs(off) <= 0.01
    print(
        f"{name}: period {script.period}{'' if repeats else ' (NOT in truth)'}, found {document['period_steps']};"
        f" mean step {1e3 * mean_s:.4g} ms, predicted {100 * off:+.2f} %; {cpu_s:.0f} CPU-s; not seen: {seen or '-'}",
        flush=True,
    )
    return repeats and (right or bool(seen))


def main() -> int:
    """Check all, or those whose name begins so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--play", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        path, folder, last = given.play
        every_step(Path(path), Path(folder), int(last))
        return 0
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "unit" / "studies" / "programs"))
    right = True
    for name, script in SCRIPTS.items():
        if name.startswith(given.only):
            with tempfile.TemporaryDirectory() as folder:
                right &= check(name, script, Path(folder))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
