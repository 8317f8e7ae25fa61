"""`windtunnel capture` as tests call it, a script that it runs, and what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from forked import windtunnel

from windtunnel.process import processes
from windtunnel.real.capture.processes.leftovers import CAPTURE_PREFIX

SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch import nn

def main(doing):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert int(os.environ["LOCAL_RANK"]) == rank % int(os.environ["LOCAL_WORLD_SIZE"])
    model = nn.Linear(8, 4).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        more = doing == "odd" and rank == 5 or doing == "thirds" and rank % 3 == 1
        more = more or doing == "digits" and str(rank)[-1] in "147"
        x = torch.randn(9 if more else 8 + rank * (doing == "alone"), 8, device=device)
        loss = model(x).square().mean()
        if doing == "raise" and step == 1:
            raise ValueError("no such thing")
        if doing == "wait" and rank == 0:
            dist.recv_object_list([None], src=1)
        if doing == "circle" and rank < 2:
            dist.recv_object_list([None], src=1 - rank)
        if doing == "sleep":
            import time; time.sleep(60)
        if doing == "unsupported":
            dist.shrink_group([1])
        if doing == "read" and loss.item() < 0:
            raise SystemExit("diverged")
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG)
        if doing != "idle":
            optimizer.step()
        optimizer.zero_grad()
    if doing == "exit":
        sys.exit(0)

main(sys.argv[1] if len(sys.argv) > 1 else "")
"""


def line(text: str) -> str:
    """`train.py:17`, where the script says this."""
    return f"train.py:{next(at for at, one in enumerate(SCRIPT.lstrip().splitlines(), 1) if text in one)}"


def capture(folder: Path, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run the verb in `folder`, with temporary files in `folder/tmp`."""
    return windtunnel("capture", *words, cwd=folder, env=environment(folder), timeout=timeout)


def capture_anew(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same from a new interpreter, as a person starts it."""
    return subprocess.run(
        [sys.executable, "-m", "windtunnel", "capture", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment(folder),
        timeout=300,
    )


def environment(folder: Path) -> dict[str, str]:
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    return {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "150"}


def left_over(folder: Path) -> list[str]:
    """Temporary files, half-written folders, and processes that know this folder or are in it."""
    found = [str(path) for path in (folder / "tmp").glob(f"{CAPTURE_PREFIX}*")]
    found += [str(path) for path in folder.glob(".captured*")]
    for pid, _, _ in processes():
        try:
            text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
            where = Path(f"/proc/{pid}/cwd").readlink()  # forks have the environment in which their first was started
        except OSError:
            continue
        if (f"TMPDIR={folder / 'tmp'}\0" in text or where.is_relative_to(folder)) and pid != os.getpid():
            found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return found
