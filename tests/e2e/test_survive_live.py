"""A real job whose ranks are killed, as a person would run it: `python -m windtunnel.survive`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from forked import EARLY, windtunnel

pytest.importorskip("torch")
pytestmark = pytest.mark.extras

STEPS = 24
# Each strike happens once, at its step, whoever plays the rank. At step 4 rank 0 is killed; then its replacement, when
# the group of the next view stands, while rank 1 is held back as a thread is that still builds: with all its
# connections open, so that nobody hears of the second death from them. At step 12 ranks 0 and 1 are killed at once.
SCRIPT = """
import gc, json, os, signal, sys, threading, time
from pathlib import Path
import torch
import torch.distributed as dist
from windtunnel.real.survive import train
from windtunnel.real.survive.live.place import own_place

strikes, folder = "strike" in sys.argv, Path(sys.argv[1])
(folder / f"{os.getpid()}.pid").touch()
torch.manual_seed(0)
layers = [torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4)]
model = torch.nn.Sequential(*layers)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
gloo = dist.ProcessGroupGloo

def once(name):
    try:
        (folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def held_back(store, rank, size, timeout):
    group = gloo(store, rank, size, timeout)
    if threading.current_thread().name == "group 1":
        store.set(f"stands/{rank}", "")
        store.wait([f"stands/{one}" for one in range(size)])
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1:
            time.sleep(900)
    return group

def strike(step, rank):
    if step == 4 and rank == 0 and once("first"):
        os.kill(os.getpid(), signal.SIGKILL)
    pair = folder / "pair.pid"
    if step == 8 and rank == 2 and once("late"):  # longer than a collective may take: the group comes apart
        time.sleep(6)
    if step == 12 and rank == 1 and not pair.exists():
        (folder / "pair").write_text(str(os.getpid()))
        (folder / "pair").rename(pair)
        time.sleep(900)
    if step == 12 and rank == 0 and once("second"):
        while not pair.exists():
            time.sleep(0.01)
        os.kill(int(pair.read_text()), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

if strikes:
    dist.ProcessGroupGloo = held_back

def loss(step, rank, world):
    if strikes:
        strike(step, rank)
    gc.collect()
    x = torch.randn(16, 8, generator=torch.Generator().manual_seed(step * world + rank))
    return (model(x) - x[:, :4].sin()).square().mean()

losses = train(model, optimizer, loss, int(sys.argv[2]))
partial = folder / f"losses.{os.getpid()}"
assert "garbage collection" in (own_place().folder / f"{own_place().name}.log.names").read_text()
averages = model[1].running_mean.tolist() + model[1].running_var.tolist()
partial.write_text(json.dumps([one.hex() for one in losses + averages]))
partial.rename(folder / "losses.json")
sys.exit(3 if "fail" in sys.argv else 0)
"""


def job(folder: Path, *words: str, options: tuple[str, ...] = (), text: str = SCRIPT) -> dict[str, Any]:
    """What the launcher tells of a job of four ranks and a standby, and `losses`."""
    folder.mkdir()
    (folder / "script.py").write_text(text)
    command = ["--nproc-per-node", "4", *options, "--report-json", str(folder / "told.json")]
    command += [str(folder / "script.py"), str(folder), str(STEPS), *words]
    environment = {**os.environ, **EARLY}
    done = windtunnel(*command, cwd=folder, env=environment, timeout=120, module="windtunnel.real.survive")
    told: dict[str, Any] = json.loads((folder / "told.json").read_text())
    assert told["status"] == done.returncode, done.stderr
    losses = folder / "losses.json"
    for path in folder.glob("*.pid"):
        if path.stem.isdigit():
            with pytest.raises(ProcessLookupError):
                os.kill(int(path.stem), 0)
    return {**told, "said": done.stderr, "losses": json.loads(losses.read_text()) if losses.exists() else None}


@pytest.mark.slow
def test_killed_ranks_are_replaced_and_the_losses_are_the_same_bits(tmp_path: Path) -> None:
    calm = job(tmp_path / "calm")
    assert calm["status"] == 0, calm["said"]
    assert not calm["replacements"]
    assert len(set(calm["losses"])) == STEPS + 32
    told = job(tmp_path / "killed", "strike", options=("--timeout", "4"))
    assert told["status"] == 0, told["said"]
    dead = [len(one["dead"]) for one in told["replacements"]]
    assert [one for one in dead if one] == [2, 2]
    assert 0 in dead
    assert all(one["downtime_s"] > 0 for one in told["replacements"])
    assert told["losses"] == calm["losses"]
    # Planned: the last rank, and the one that tells of first steps. What the script does after its steps counts too.
    told = job(tmp_path / "planned", "fail", options=("--replace", "3@2", "--replace", "0@8"))
    assert told["status"] == 3, told["said"]
    assert [(one["planned"], one["dead"]) for one in told["replacements"]] == [(True, []), (True, [])]
    assert not told["not_replaced"]
    assert told["losses"] == calm["losses"]


@pytest.mark.slow
def test_a_launcher_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    script = tmp_path / "stays.py"
    script.write_text(
        f"""
import os, subprocess, time
from pathlib import Path
child = subprocess.Popen(["sleep", "600"])
path = Path({str(tmp_path)!r}) / f"{{os.getpid()}}"
path.write_text(f"{{os.getpid()}} {{child.pid}}")
path.rename(path.with_suffix(".pids"))
time.sleep(600)
"""
    )
    words = [sys.executable, "-m", "windtunnel.real.survive", "--nproc-per-node", "2", "--standby", "0", str(script)]
    launcher = subprocess.Popen(words)
    while len(list(tmp_path.glob("*.pids"))) < 2:
        assert launcher.poll() is None
        time.sleep(0.02)
    launcher.terminate()
    assert launcher.wait() == 128 + signal.SIGTERM
    pids = [int(word) for path in tmp_path.glob("*.pids") for word in path.read_text().split()]
    assert len(pids) == 4
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_script_that_fails_ends_the_job_with_its_status(tmp_path: Path) -> None:
    told = job(tmp_path / "bad", text="raise SystemExit(7)")
    assert told["status"] == 7
    assert "exit status 7" in told["reason"]
