"""Checkpoints: killed at any byte, a disk that is full, a file cut off, other ranks, another layout."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from windtunnel.errors import InputFileError  # noqa: E402
from windtunnel.real.survive.checkpoint import CheckpointError, Checkpoints  # noqa: E402

pytestmark = pytest.mark.extras


def trained(steps: int):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Linear(50, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 40)).square().sum().backward()
        optimizer.step()
    return model, optimizer


def same(a, b) -> bool:
    tensors = [(one.state_dict(), other.state_dict()) for one, other in zip(a, b, strict=True)]
    weights = all(torch.equal(tensors[0][0][key], tensors[0][1][key]) for key in tensors[0][0])
    moments = tensors[1][0]["state"], tensors[1][1]["state"]
    return weights and all(
        torch.equal(moments[0][at][name], moments[1][at][name]) for at in moments[0] for name in moments[0][at]
    )


# PyTorch is loaded once (`_dynamo` by the first optimizer, if not here), and each that is killed is a fork.
KILLED = """
import os, resource, signal, sys
import torch._dynamo, torch.distributed.checkpoint
sys.path.insert(0, {tests!r})
from test_checkpoint import trained, Checkpoints
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for byte in map(int, sys.argv[2:]):
    pid = os.fork()
    if pid == 0:
        saved = Checkpoints(Path(sys.argv[1]) / str(byte))
        saved.save(1, *trained(1)); saved.wait()
        resource.setrlimit(resource.RLIMIT_FSIZE, (byte, byte))
        saved.save(2, *trained(2)); saved.wait()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


def test_killed_at_a_byte_the_last_complete_one_restores(tmp_path: Path) -> None:
    """The kernel kills a process at exactly the byte that its file may not have (SIGXFSZ, as good as kill -9)."""
    whole = Checkpoints(tmp_path / "whole")
    whole.save(2, *trained(2))
    whole.wait()
    sizes = sorted(file.stat().st_size for file in (tmp_path / "whole" / "step-000000002").iterdir())
    died = 0
    bytes_written = (0, sizes[0] - 1, sizes[-1] // 3, sizes[-1] - 1, sizes[-1] + 1)
    done = subprocess.run(
        [sys.executable, "-c", KILLED.format(tests=str(Path(__file__).parent)), tmp_path, *map(str, bytes_written)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    for byte, status in zip(bytes_written, map(int, done.stdout.split()), strict=True):
        model, optimizer = trained(0)
        step = Checkpoints(tmp_path / str(byte)).restore(model, optimizer)
        assert step in (1, 2), done.stderr
        assert (status == -signal.SIGXFSZ) == (step == 1), done.stderr
        assert same((model, optimizer), trained(step))
        died += step == 1
    assert died == 4


def test_a_full_disk_is_one_error_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path)
    saved.save(1, *trained(1))
    saved.wait()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then a write beyond the limit fails as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        saved.save(2, *trained(2))
        with pytest.raises(
            CheckpointError, match=r"could not be written \(File too large\); the last complete one is 1"
        ):
            saved.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert not list(tmp_path.glob("*.partial"))
    saved.save(3, *trained(3))
    model, optimizer = trained(0)
    assert saved.restore(model, optimizer) == 3
    assert same((model, optimizer), trained(3))


def test_where_rank_0_cannot_write_no_other_rank_waits_for_it(tmp_path: Path) -> None:
    """Two ranks of a group in threads: without word of the failure the other waits for the group's timeout."""
    (tmp_path / "file").write_text("where the folder should be")
    store, groups = torch.distributed.HashStore(), {}

    def save(rank: int) -> str:
        limit = timedelta(seconds=60)
        groups[rank] = torch.distributed.ProcessGroupGloo(store, rank, 2, limit)  # kept: its end would be word as well
        saved = Checkpoints(tmp_path / "file", group=groups[rank])
        saved._write(1, {"weight": torch.ones(3)})
        with pytest.raises(CheckpointError) as raised:
            saved.wait()
        return str(raised.value)

    with ThreadPoolExecutor(2) as ranks:
        first, second = ranks.map(save, range(2), timeout=30)
    assert "Not a directory" in first
    assert "rank 0 failed" in second


def test_damage_is_one_clear_error(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path, keep=3)
    for step in (1, 2, 3):
        saved.save(step, *trained(step))
    saved.wait()
    data = next((tmp_path / "step-000000003").glob("*.distcp"))
    whole = data.read_bytes()
    data.write_bytes(whole[:-7])
    with pytest.raises(InputFileError, match="bytes instead of"):
        saved.restore(*trained(0))
    data.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(InputFileError, match="checksum"):
        saved.restore(*trained(0))
    data.unlink()
    with pytest.raises(InputFileError, match="missing"):
        saved.restore(*trained(0))
    assert saved.restore(*trained(0), step=2) == 2
    with pytest.raises(InputFileError, match="complete ones: 1, 2, 3"):
        saved.restore(*trained(0), step=9)
    other = torch.nn.Linear(3, 3)
    with pytest.raises(InputFileError, match="does not fit"):
        saved.restore(other, torch.optim.Adam(other.parameters()), step=2)


def test_old_checkpoints_go_and_none_is_no_error(tmp_path: Path) -> None:
    saved = Checkpoints(tmp_path / "deep", keep=2)
    assert saved.restore(*trained(0)) is None
    for step in (5, 6, 7):
        saved.save(step, *trained(1), {"seen": torch.tensor([step])})
    saved.wait()
    assert saved._steps() == [6, 7]
    others = {"seen": torch.tensor([0])}
    assert saved.restore(*trained(0), others) == 7
    assert int(others["seen"]) == 7


# Jobs one after the other, each with all its ranks at once: forks of one process that has PyTorch loaded.
JOBS = """
import os, socket, sys
from datetime import timedelta
from pathlib import Path
import torch, torch._dynamo, torch.distributed as dist, torch.distributed.checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from windtunnel.real.survive.checkpoint import Checkpoints
torch.set_num_threads(1)

def play(what, folder):
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(40, 52), torch.nn.Linear(52, 12))
    if what != "save":
        for one in model.parameters(): torch.nn.init.zeros_(one)
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    saved = Checkpoints(Path(folder), group=dist.new_group(backend="gloo"))
    if what == "save":
        optimizer.zero_grad(); model(torch.ones(2, 40)).square().sum().backward(); optimizer.step()
        saved.save(1, model, optimizer); saved.wait()
    else:
        try:
            saved.restore(model, optimizer, reshard=what == "reshard")
        except Exception as error:
            if dist.get_rank() == 0: print("REFUSED", error, flush=True)
            return
    total = sum(one.full_tensor().double().sum() for one in model.parameters())
    moment = sum(state["exp_avg_sq"].full_tensor().double().sum() for state in optimizer.state.values())
    if dist.get_rank() == 0: print("SUM", float(total).hex(), float(moment).hex(), flush=True)
    dist.barrier()
    dist.destroy_process_group()

for job in sys.argv[2:]:
    what, world = job.split(":")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": world}
    ranks = []
    for rank in range(int(world)):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            play(what, sys.argv[1])
            os._exit(0)
    assert [os.waitpid(pid, 0)[1] for pid in ranks] == [0] * len(ranks), job
"""


def test_resharding_restores_equal_weights_and_is_asked_for(tmp_path: Path) -> None:
    from forked import windtunnel  # not above: a process that knows no path to it imports this file

    script = tmp_path / "jobs.py"
    script.write_text(JOBS)
    words = (str(tmp_path / "saved"), "save:2", "reshard:3", "restore:3")
    done = windtunnel(*words, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240, module=str(script))
    assert done.returncode == 0, done.stderr[-3000:]
    saved, restored, refused = (line for line in done.stdout.splitlines() if line.startswith(("SUM", "REFUSED")))
    # Sums over shards of other sizes have another order; in double precision they agree closely.
    numbers = [[float.fromhex(word) for word in line.split()[1:]] for line in (saved, restored)]
    assert numbers[0] == pytest.approx(numbers[1], rel=1e-12)
    assert "was written by 2 ranks, and this job has 3" in refused
