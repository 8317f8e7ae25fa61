"""`windtunnel run`: whole scripts as one real rank among virtual peers, and what can go wrong."""

import gzip
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from forked import windtunnel

from windtunnel.process import processes

CLUSTER = ("--cluster", "h100-sxm:1024")
HEAD = """
import os, time, torch, torch.distributed as dist
from torch import nn
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64))
x = torch.randint(0, 64, (64,), generator=torch.Generator().manual_seed(1))
y = x.roll(1)
def loss_of(model):
    return nn.functional.cross_entropy(model(x), y)
"""
DDP = HEAD + "model = nn.parallel.DistributedDataParallel(model)\n"
FSDP2 = (
    HEAD
    + """
from torch.distributed.fsdp import fully_shard
for layer in model:
    fully_shard(layer)
fully_shard(model)
"""
)
TRAIN = """
optimizer = torch.optim.AdamW(model.parameters(), lr=LR)
for step in range(STEPS):
    loss = loss_of(model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("loss", step, loss.item(), flush=True)
"""


def train(steps: int = 12, lr: float = 1e-2) -> str:
    return TRAIN.replace("STEPS", str(steps)).replace("LR", str(lr))


def line(script: Path, *options: str, cluster: tuple[str, ...] = CLUSTER) -> list[str]:
    return [sys.executable, "-m", "windtunnel", "run", *cluster, *options, str(script)]


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Temporary files in a place of the test's own, so that what is left behind is seen."""
    (folder / "tmp").mkdir(exist_ok=True)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1", **more}


def run(folder: Path, text: str, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    script = folder / "train.py"
    script.write_text(text)
    done = windtunnel("run", *CLUSTER, *options, str(script), cwd=folder, env=environment(folder, **more))
    assert list((folder / "tmp").glob("windtunnel-*")) == [], "temporary files are left"
    return done


def run_anew(folder: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    """The same from a new interpreter, as a person starts it."""
    script = folder / "train.py"
    script.write_text(text)
    done = subprocess.run(
        line(script, *options), capture_output=True, text=True, cwd=folder, env=environment(folder), timeout=300
    )
    assert list((folder / "tmp").glob("windtunnel-*")) == [], "temporary files are left"
    return done


def losses(text: str) -> list[float]:
    return [float(words.split()[2]) for words in text.splitlines() if words.startswith("loss ")]


def below(session_of: int) -> list[int]:
    """Processes that are left of what a command started."""
    return [pid for pid, parent, session in processes() if session_of in (parent, session)]


@pytest.mark.parametrize("parallel", [DDP, pytest.param(FSDP2, marks=pytest.mark.long)], ids=["ddp", "fsdp2"])
@pytest.mark.slow
def test_200_steps_among_1023_virtual_peers_keep_a_falling_loss(tmp_path: Path, parallel: str) -> None:
    done = run_anew(tmp_path, parallel + train(200, 2e-2), "--trace", "trace.json.gz")
    assert done.returncode == 0, done.stderr
    found = losses(done.stdout)
    assert len(found) == 200
    assert all(map(math.isfinite, found))
    assert sum(found[-20:]) < 0.97 * sum(found[:20])
    assert "rank 0 of 1,024 ran for real, 1,023 peers virtual" in done.stdout
    assert "peak memory" in done.stdout
    with gzip.open(tmp_path / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0 (real)", "rank 1 (virtual)", "rank 1023 (virtual)"}


def test_a_slow_peer_is_waited_for(tmp_path: Path) -> None:
    """Peers take what the real rank takes, one of them three times as long."""
    text = DDP + train(24).replace("loss.backward()", "time.sleep(0.02); loss.backward()")
    plain = json.loads(run(tmp_path, text, "--json", "--no-memory").stdout)
    slow = run(tmp_path, text, "--json", "--no-memory", "--slow", "gpu=3:3")
    assert slow.returncode == 0, slow.stderr
    assert len(losses(slow.stderr)) == 24  # the document has stdout for itself
    assert json.loads(slow.stdout)["median_step_s"] > 2.0 * plain["median_step_s"]


def test_what_the_script_left_in_a_session_of_its_own_is_ended(tmp_path: Path) -> None:
    starts = "import os, subprocess, sys\nif os.environ['RANK'] == '0':\n"
    starts += (
        "    left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
    )
    done = run(tmp_path, starts + "    print('left', left.pid)\n" + DDP + train(2), "--no-memory")
    pid = int(done.stdout.split("left ")[1].split()[0])
    assert pid not in [one for one, _, _ in processes()]


def test_an_exception_is_the_scripts_own_with_its_line(tmp_path: Path) -> None:
    done = run(tmp_path, DDP + "def f():\n    raise ValueError('too\\nbad')\nf()\n")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n  File ")
    assert "emulate/rank.py" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    number = (DDP + "def f():\n").count("\n") + 1
    assert last == f"windtunnel: error: train.py:{number}: ValueError: too bad"


def test_the_scripts_own_exit_status_is_passed_on(tmp_path: Path) -> None:
    assert run(tmp_path, HEAD + "raise SystemExit(5)\n").returncode == 5
    done = run(tmp_path, HEAD + "import sys\nsys.exit('no data')\n")
    assert done.returncode == 1
    assert done.stderr == "no data\n"


def test_a_process_that_dies_is_told(tmp_path: Path) -> None:
    done = run(tmp_path, HEAD + "os.kill(os.getpid(), 9)\n")
    assert done.returncode == 1
    assert "was killed (SIGKILL)" in done.stderr


def test_out_of_memory_names_the_op_and_the_line(tmp_path: Path) -> None:
    done = run(tmp_path, DDP + train(4) + "torch.empty(1 << 50)\n")
    assert done.returncode == 1
    assert "out of memory at " in done.stderr
    assert "train.py:" in done.stderr


def test_loaders_may_fork(tmp_path: Path) -> None:
    text = DDP + train(3) + (
        "class Data(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, i): return torch.full((2,), float(i))\n"
        "loader = torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2,\n"
        "    sampler=torch.utils.data.DistributedSampler(Data(), shuffle=False))\n"
        "print('batches', [b[:, 0].tolist() for b in loader])\n"
    )  # fmt: skip
    done = run(tmp_path, text, "--no-memory")
    assert done.returncode == 0, done.stderr
    assert "batches [[0.0]]" in done.stdout  # 8 samples over 1,024 ranks


def test_checkpoints_are_saved_and_resumed(tmp_path: Path) -> None:
    text = FSDP2 + train(3) + (
        "import torch.distributed.checkpoint as dcp\n"
        "torch.save({'step': 3}, 'plain.pt')\n"
        "state = {'model': model.state_dict()}\n"
        "dcp.save(state, checkpoint_id='checkpoint')\n"
        "before = [p.to_local().clone() for p in model.parameters()]\n"
        "for p in model.parameters(): p.data.zero_()\n"
        "dcp.load(state, checkpoint_id='checkpoint')\n"
        "assert all(torch.equal(a, b.to_local()) for a, b in zip(before, model.parameters()))\n"
        "print('resumed', torch.load('plain.pt')['step'])\n"
    )  # fmt: skip
    done = run(tmp_path, text, "--no-memory")
    assert done.returncode == 0, done.stderr
    assert "resumed 3" in done.stdout


def test_a_compiled_model_runs(tmp_path: Path) -> None:
    text = DDP.replace(
        "DistributedDataParallel(model)", "DistributedDataParallel(torch.compile(model, backend='aot_eager'))"
    )
    done = run(tmp_path, text + train(4), "--no-memory")
    assert done.returncode == 0, done.stderr
    assert len(losses(done.stdout)) == 4


def test_a_script_without_an_optimizer_says_nothing_about_times(tmp_path: Path) -> None:
    done = run(tmp_path, HEAD + "t = torch.ones(4)\ndist.all_reduce(t)\nprint('sum', t[0].item())\n")
    assert done.returncode == 0, done.stderr
    assert "sum 1024.0" in done.stdout
    assert "no optimizer of torch.optim was stepped twice" in done.stdout


STAGES = (
    HEAD
    + """
from torch.distributed.device_mesh import init_device_mesh
init_device_mesh("cpu", (world,))
back = torch.zeros(64, 64)
def loss_of(model):
    if rank == 1:
        dist.recv(back, 0)
        time.sleep(0.05)  # what no capture can price
        dist.send(back, 0)
        return model[1](torch.ones(1, 32)).sum()
    out = model(x)
    dist.send(out.detach(), 1)
    dist.recv(back, 1)
    return nn.functional.cross_entropy(out, y)
"""
)


@pytest.mark.slow
def test_what_another_class_measured_is_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(STAGES + train(12))
    words = ("capture", "--world-size", "2", "--device", "cpu", "--out", "job", str(script))
    done = windtunnel(*words, cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    step_s = {}
    for options in (
        ("--rank", "0", "--json"),
        ("--rank", "1", "--write-times", "rank1.json"),
        ("--rank", "0", "--peer-times", "rank1.json", "--json"),
    ):
        words = ("run", "--cluster", "h100-sxm:2", "--captured", "job", "--no-memory", *options, str(script))
        done = windtunnel(*words, cwd=tmp_path, env=environment(tmp_path))
        assert done.returncode == 0, done.stderr
        if "--json" in options:
            step_s["--peer-times" in options] = json.loads(done.stdout)["median_step_s"]
    assert 0.05 < step_s[True] < step_s[False] + 2 * 0.05  # waited for, and once
    assert step_s[True] > 2 * step_s[False]


def test_what_is_asked_wrongly_is_one_line(tmp_path: Path) -> None:
    for options, text in (
        (("--rank", "1024"), "--rank = 1024: ranks are 0 to 1023"),
        (("--slow", "gpu=0:1.2"), "is a real rank"),
        (("--slow", "lost=node1.nic0"), "virtual peers can be given"),
        (("--tape", "play:x"), "give record:FILE or replay:FILE"),
        (("--tape", "record:x"), "torchrun did not start this process"),
        (("--tape", "replay:none"), "cannot be read"),
        (("--peer-times", "x.json"), "name their job too, by --captured"),
    ):
        done = run(tmp_path, HEAD, *options)
        assert done.returncode == 2, (options, done.stderr)
        assert text in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after_s", [0.2, 2.5])
def test_an_interrupt_ends_everything_and_leaves_nothing(tmp_path: Path, number: int, after_s: float) -> None:
    script = tmp_path / "train.py"
    script.write_text(DDP + "import subprocess\nsubprocess.Popen(['sleep', '300'])\n" + train(10**6))
    process = subprocess.Popen(
        line(script), cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    time.sleep(after_s)
    started = below(process.pid)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    # An interpreter that has not come to the program yet ends with a status of its own.
    begun = b"Could not import runpy" not in told
    assert not begun or process.returncode in ({signal.SIGINT: (130, -2), signal.SIGTERM: (143, -15)}[number]), told
    for pid in started:
        assert (
            not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] == "Z"
        )
    assert list((tmp_path / "tmp").glob("windtunnel-*")) == []
    assert b"Traceback" not in told.split(b"KeyboardInterrupt")[-1]


def test_a_tape_gives_back_the_losses_of_the_real_run(tmp_path: Path) -> None:
    """Two real gloo processes; then rank 1 again, alone with what rank 0 had said."""
    script = tmp_path / "train.py"
    script.write_text(FSDP2 + "x, y = x.roll(rank), y\n" + train(5))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    words = line(script, "--tape", "record:tape-{rank}.bin", cluster=())
    ranks = [
        subprocess.Popen(
            words, cwd=tmp_path, stdout=subprocess.PIPE, text=True,
            env=environment(tmp_path, RANK=str(rank), LOCAL_RANK=str(rank), GLOO_SOCKET_IFNAME="lo", **common),
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=120)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    # gloo may abort at exit, when one of its threads drops its last tensor after Python has begun to end.
    assert all(process.returncode in (0, -6) for process in ranks)
    words = ("run", "--cluster", "h100-sxm:2", "--rank", "1", "--no-memory", "--tape", "replay:tape-1.bin", str(script))
    done = windtunnel(*words, cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == losses(said[1])
    assert losses(done.stdout) != losses(said[0])


def test_temporary_folders_of_killed_runs_are_swept(tmp_path: Path) -> None:
    environment(tmp_path)
    (tmp_path / "tmp" / "windtunnel-run-999999999-abc").mkdir()
    assert run(tmp_path, HEAD).returncode == 0
    assert tempfile.gettempdir()


@pytest.mark.extras
def test_a_technique_is_put_into_a_script_that_does_not_know_of_it(tmp_path: Path) -> None:
    """Each bucket is then two all-reduces, of norms and of chosen chunks, and what is learnt still counts."""
    options = ("--json", "--no-memory", "--technique", "sparse_gradients:ratio=0.05,chunk=16")
    done = run(tmp_path, DDP + train(12, 2e-2), *options)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["technique"]["parameters"]["ratio"] == 0.05
    assert document["technique"]["modules"] == 1
    assert document["kinds"]["all_reduce"][0] == 2 * 12
    assert 0.05 <= document["technique"]["share_sent"] < 0.2
    assert losses(done.stderr)[-1] < losses(done.stderr)[0]
