"""`windtunnel capture` changes no file of the user, and leaves no process and no file of its own."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from capture_verb import capture, capture_anew, environment, left_over

LOADING = """
import torch, torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((8,), float(index)), index % 4

dist.init_process_group("gloo")
model = nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for x, y in DataLoader(Numbers(), 8, num_workers=2, persistent_workers=True):
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""

SAVING = """
import json, logging, os, shutil
from pathlib import Path
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch import nn

dist.init_process_group("nccl")
rank = dist.get_rank()
logging.basicConfig(filename="train.log", level=logging.INFO)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda())
optimizer = torch.optim.Adam(model.parameters())
if rank == 0:
    os.makedirs("checkpoints/last")
    shutil.rmtree("old")
    assert not Path("old").exists()
dist.barrier()
for step in range(3):
    model(torch.ones(2, 64, device="cuda")).sum().backward()
    optimizer.step()
    logging.info("step %d", step)
    if rank == 0:
        torch.save({"model": model.state_dict(), "step": step}, "checkpoints/last/part")
        os.replace("checkpoints/last/part", "model.pt")
        json.dump({"step": step}, open("state.json", "w"))
    Path(f"checkpoints/last/{rank}").write_text("done")
    dcp.save({"model": model.state_dict()}, checkpoint_id=f"dcp/{step}")
    optimizer.zero_grad()
if rank == 0:
    resumed = torch.load("model.pt")
    assert resumed["step"] == 2 and resumed["model"]["module.weight"].shape == (64, 64)
"""

REACHING = """
import ctypes, io, os, posix, subprocess, sys
import torch, torch.distributed as dist
from torch import nn

def fd(descriptor):
    if descriptor < 0:
        raise OSError("refused")

path = os.path.abspath("model.pt")
refused = []
for way in (
    lambda: io.FileIO(path, "w"),
    lambda: posix.open(path, os.O_WRONLY | os.O_TRUNC),
    lambda: posix.unlink(path),
    lambda: subprocess.run(["sh", "-c", f"echo x > {path}"], check=True, stderr=subprocess.DEVNULL),
    lambda: subprocess.run([sys.executable, "-c", f"open('made', 'w')"], check=True, stderr=subprocess.DEVNULL),
    lambda: fd(ctypes.CDLL(None).open(path.encode(), os.O_WRONLY)),
    lambda: fd(ctypes.CDLL(None).chmod(path.encode(), 0)),
    lambda: open(f"/proc/self/root{path}", "w"),
    lambda: open(f"/proc/{os.getppid()}/root{path}", "w"),
):
    try:
        way()
    except (OSError, subprocess.CalledProcessError):
        refused.append(True)
    else:
        refused.append(False)
if not refused[-1] or len({*refused[:-1]}) > 1:  # all others end in a copy, or are refused
    sys.exit(f"not refused: {refused}")
with open(path, "w") as mine:  # a copy
    mine.write("mine")
assert open(path).read() == "mine"
memory = torch.multiprocessing.get_context("fork").RawArray("i", 4)
dist.init_process_group("gloo")
model = nn.Linear(4, 4)
model(torch.ones(2, 4)).sum().backward()
torch.optim.SGD(model.parameters(), 0.1).step()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "loading.py").write_text(LOADING.lstrip())
    return tmp_path


def test_a_script_that_saves_changes_no_file(folder: Path) -> None:
    (folder / "saving.py").write_text(SAVING)
    (folder / "old").mkdir()
    for name in ("old/file", "model.pt", "state.json", "train.log"):
        (folder / name).write_text("precious")

    def files() -> dict[str, bytes]:
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in folder.rglob("*")
            if path.is_file() and not {"captured", "tmp", "__pycache__"} & set(path.relative_to(folder).parts)
        }

    before = files()
    done = capture(folder, "--world-size", "16", "--steps=3", "saving.py")
    assert done.returncode == 0, done.stderr
    assert files() == before
    assert left_over(folder) == []
    # Saving is no work of the device: the rank that saves does what all others do.
    assert "1 class of ranks" in done.stdout
    assert "checkpoints are not written" in done.stdout


def test_what_goes_past_python_ends_in_a_copy_or_is_refused_or_one_line_says_that_it_is_not(folder: Path) -> None:
    from windtunnel.real.capture.processes import read_only

    (folder / "reaching.py").write_text(REACHING)
    (folder / "model.pt").write_text("precious")
    before = (folder / "model.pt").stat()
    text = (
        f"from pathlib import Path; from {read_only.__name__} import hold_files; print(hold_files(Path('tmp')), end='')"
    )
    (folder / "tmp").mkdir()
    not_held = subprocess.run([sys.executable, "-c", text], cwd=folder, capture_output=True, text=True).stdout
    done = capture_anew(folder, "--world-size", "2", "--steps=1", "reaching.py")
    if not_held:
        assert "this system refuses" in done.stdout + done.stderr
        return
    assert done.returncode == 0, done.stderr
    after = (folder / "model.pt").stat()
    assert (folder / "model.pt").read_text() == "precious"
    assert (after.st_mode, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode, before.st_mtime_ns, before.st_ctime_ns
    )  # fmt: skip
    assert not (folder / "made").exists()
    assert left_over(folder) == []


def test_data_loader_workers_work_and_die_with_their_rank(folder: Path) -> None:
    done = capture(folder, "--device", "cpu", "--world-size", "2", "loading.py")
    assert done.returncode == 0, done.stderr
    assert not left_over(folder)


@pytest.mark.slow
@pytest.mark.parametrize("moments", [2, pytest.param(100, marks=pytest.mark.long)])
def test_interrupted_at_any_moment_it_leaves_nothing(folder: Path, moments: int) -> None:
    order = random.Random(5)
    statuses = set()
    for _ in range(moments):
        words = ["--device", "cpu", "--world-size", "2", "--steps", "3", "loading.py"]
        process = subprocess.Popen(
            [sys.executable, "-m", "windtunnel", "capture", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=environment(folder),
            start_new_session=True,
        )
        time.sleep(order.uniform(0.3, 4.0))
        os.killpg(process.pid, signal.SIGINT)
        statuses.add(process.wait(120))
        assert not left_over(folder)
    assert statuses <= {0, 130, -signal.SIGINT}
    assert 130 in statuses
