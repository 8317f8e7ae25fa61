"""`windtunnel capture` on whole scripts: what comes out, what it says where it cannot, and that it leaves nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")

from forked import windtunnel

from windtunnel.process import processes
from windtunnel.real.capture.processes.leftovers import CAPTURE_PREFIX
from windtunnel.studies.programs.folder import CapturedFolder, load_job
from windtunnel.studies.programs.program_file import read_program
from windtunnel.studies.programs.rank_classes.equality import digest

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT.lstrip())
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
    done = capture_anew(folder, "--world-size", "16", "--steps=3", "saving.py")
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


def test_a_script_is_captured_at_full_scale_and_says_so_in_short(folder: Path) -> None:
    done = capture_anew(folder, "--cluster", "h100-sxm:8192", "--steps=3", "train.py", "read")
    assert done.returncode == 0, done.stderr
    for text in (
        "8,192 ranks",
        "1 class of ranks",
        "all_reduce",
        f"{line('item() < 0')}: 2.0",
        "8,191 peers",
        "windtunnel predict",
    ):
        assert text in done.stdout
    job = load_job(folder / "captured")
    assert job.world_size == 8192
    assert set(job.runs.tolist()) == {0}
    assert [len(family.groups) for family in job.families] == [1]
    program = job.programs[0]
    assert [op.communication.kind for op in program.ops if op.communication] == ["all_reduce"] * 2
    assert program.facts["step"] == 3
    assert not left_over(folder)


def test_what_follows_the_script_is_the_scripts(folder: Path) -> None:
    (folder / "words.py").write_text("import sys\nraise ValueError(' '.join(sys.argv))\n")
    done = capture(folder, "--world-size", "4", "words.py", "--world-size", "9", "--help", "--out", "x", "--seed=1.5")
    assert done.returncode == 2
    assert "words.py --world-size 9 --help --out x --seed=1.5" in done.stderr


def test_a_module_is_run_as_torchrun_runs_it(folder: Path) -> None:
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "part.py").write_text("from package import __name__ as name\n" + SCRIPT)
    done = capture(folder, "--nnodes=2", "--nproc_per_node", "8", "--ranks", "15", "--json", "-m", "package.part")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["world_size"] == 16
    assert [entry["rank"] for entry in document["classes"]] == [15]
    assert read_program(folder / "captured" / "rank_15.jsonl.gz").rank == 15


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train.py", "raise"], f"rank 0: {line('no such thing')}: ValueError: no such thing"),
        (["train.py", "idle"], "ended after 0 steps"),
        (["--steps", "9", "train.py", "exit"], "ended after 4 steps, and step 9"),
        (["train.py", "wait"], f"ended without sending, at {line('src=1)')}"),
        (["train.py", "circle"], f"waits too, at {line('src=1 - rank')}"),
        (["--timeout", "3", "train.py", "sleep"], f"within 3 s, at {line('sleep(60)')}"),
        (["train.py", "unsupported"], f"{line('shrink_group')}: shrink_group"),
        (["--answer", f"{line('item() < 0')}=-1", "train.py", "read"], "ended itself (exit status diverged)"),
        (["--answer", "colour=1", "train.py"], "is no answer"),
        (["--answer", "flag=1", "train.py"], "give true or false"),
        (["--ranks", "8", "train.py"], "ranks are 0 to 7"),
        (["--out", "tmp/..", "train.py"], "other things in it"),
    ],
)
def test_what_cannot_be_captured_is_said_in_one_line_with_its_place(words: list[str], said: str, folder: Path) -> None:
    done = capture(folder, "--device", "cpu", "--world-size", "8", *words)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == (4 if words[-1] in ("wait", "circle") else 2)  # 4: it would hang on a cluster too
    assert last.startswith("windtunnel: error: ")
    assert said in last, done.stderr
    assert "windtunnel/" not in done.stderr.replace(str(folder), "")
    assert not (folder / "captured").exists()
    assert not left_over(folder)


def test_a_script_that_refuses_its_words_is_heard(folder: Path) -> None:
    (folder / "strict.py").write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    done = capture(folder, "--world-size", "8", "strict.py", "--hiden", "5")
    assert done.returncode == 2
    assert "error: unrecognized arguments: --hiden 5" in done.stderr
    assert "Traceback" not in done.stderr


ENDING = """
import os, tempfile, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
dist.init_process_group("gloo")
model = torch.nn.Linear(8, 8)
opt = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
rank = dist.get_rank()
for step in range(2):
    for _ in range(2 if EARLY and rank else 1):
        model(torch.ones(2, 8)).sum().backward()
        dist.all_reduce(model.weight.grad)
        opt.step()
if rank == 0 or ALL:
    dcp.save({"model": model.state_dict()}, checkpoint_id=tempfile.mkdtemp())  # saved
"""


@pytest.mark.parametrize(
    ("settings", "status", "said"),
    [
        ("EARLY, ALL = False, True", 2, "ended after 2 steps, and step 3"),
        (
            "EARLY, ALL = False, False",
            4,
            "rank 0 calls checkpoint.save at ending.py:13 where ranks 1, 2, 3 call nothing",
        ),
        (
            "EARLY, ALL = True, True",
            4,
            "rank 0 calls checkpoint.save at ending.py:13 where ranks 1, 2, 3 call all_reduce",
        ),
    ],
)
def test_what_a_script_calls_after_its_last_step_is_compared(
    settings: str, status: int, said: str, folder: Path
) -> None:
    """A script that is over before the step that was asked for: its ranks are run to the end and compared."""
    (folder / "ending.py").write_text(f"{settings}\n{ENDING.lstrip()}")
    done = capture(folder, "--device", "cpu", "--world-size", "4", "--steps", "3", "ending.py")
    assert (done.returncode, said in done.stderr.strip().splitlines()[-1]) == (status, True), done.stderr
    assert not left_over(folder)


def test_ranks_that_were_named_are_run_to_the_end(folder: Path) -> None:
    """Rank 0, which saves alone, is heard where it is among them, though another one ends the capture before it."""
    (folder / "ending.py").write_text(f"EARLY, ALL = False, False\n{ENDING.lstrip()}")
    done = capture(folder, "--device", "cpu", "--world-size", "4", "--ranks", "1-3,0", "--steps", "3", "ending.py")
    assert (done.returncode, "checkpoint.save" in done.stderr) == (4, True), done.stderr
    assert "ended after 2 steps, and step 3" in done.stderr


@pytest.mark.long
def test_ranks_that_no_few_stand_for_are_not_folded(folder: Path) -> None:
    """Each rank has rows of its own."""
    done = capture(folder, "--device", "cpu", "--world-size", "128", "train.py", "alone")
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert "no few ranks stand for all 128" in last
    assert "op 1 (aten.addmm, Linear, forward): inputs: float32[4] float32[8, 8]" in last
    assert "If what differs is data, make it equal" in last
    assert not (folder / "captured").exists()
    assert not left_over(folder)


@pytest.mark.long
def test_ranks_that_nothing_explains_are_drawn_until_all_have_run(folder: Path) -> None:
    """Three of ten ranks have more rows: no interval explains it, and no test that is understood."""
    done = capture(folder, "--device", "cpu", "--world-size", "128", "--json", "train.py", "digits")
    document = json.loads(done.stdout)
    assert [kind["ranks"] for kind in document["classes"]] == [89, 39]
    assert document["verification"]["played"] == 128


@pytest.mark.long
def test_ranks_that_a_test_of_the_source_tells_apart_are_classes(folder: Path) -> None:
    """Every third rank has more rows."""
    done = capture(folder, "--device", "cpu", "--world-size", "72", "train.py", "thirds")
    assert done.returncode == 0, done.stderr
    found = CapturedFolder(folder / "captured")
    assert [found.class_of(rank) for rank in range(72)] == [int(rank % 3 == 1) for rank in range(72)]


@pytest.mark.parametrize("how", [["--representatives", "all"], ["--verify", "8"]])
def test_an_odd_rank_that_is_seen_becomes_a_class(how: list[str], folder: Path) -> None:
    done = capture(folder, "--device", "cpu", "--world-size", "8", *how, "train.py", "odd")
    assert done.returncode == 0, done.stderr
    found = CapturedFolder(folder / "captured")
    assert [found.class_of(rank) for rank in range(8)] == [0, 0, 0, 0, 0, 5, 0, 0]


def test_data_loader_workers_work_and_die_with_their_rank(folder: Path) -> None:
    done = capture(folder, "--device", "cpu", "--world-size", "2", "loading.py")
    assert done.returncode == 0, done.stderr
    assert not left_over(folder)


CHECKING = """
import torch, torch.distributed as dist
from concurrent.futures import ThreadPoolExecutor

dist.init_process_group("cpu:gloo,cuda:nccl")
aside, pool = dist.new_group(), ThreadPoolExecutor(1)

device = "cuda" if torch.cuda.is_available() else "cpu"

def is_to_end():
    ends = torch.tensor([-1, -1]).max()
    dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=aside)
    return ends.item() >= 0

model = torch.nn.Linear(8, 4).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    model(torch.randn(8, 8, device=device)).square().mean().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()
    optimizer.zero_grad()
    checks = pool.submit(is_to_end)
pool.shutdown()
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_thread_that_asks_all_ranks_whether_to_end_is_no_hang(device: str, folder: Path) -> None:
    """The first ranks are at their last step while their threads still wait for what the last rank says first."""
    (folder / "checking.py").write_text(CHECKING)
    ran = capture(folder, "--world-size", "8", "--device", device, "--out", "job", "--json", "checking.py")
    assert ran.returncode == 0, ran.stderr
    if device == "cuda":  # on a CPU what the thread makes is in the step's memory
        assert len(json.loads(ran.stdout)["classes"]) == 1
    assert not left_over(folder)


def test_an_earlier_capture_is_replaced_whole(folder: Path) -> None:
    assert capture(folder, "--world-size", "4", "--ranks", "0-3", "train.py").returncode == 0
    assert capture(folder, "--world-size", "4", "--ranks", "1", "train.py").returncode == 0
    assert sorted(path.name for path in (folder / "captured").iterdir()) == ["captured.yaml", "rank_1.jsonl.gz"]


def test_experts_get_an_even_share_of_the_tokens_without_being_told(folder: Path) -> None:
    """64 tokens, two experts each, eight experts on four ranks: 16 an expert, 32 rows to and from each rank."""
    done = capture(folder, "--world-size", "8", "--verify", "1", str(EXAMPLES / "train_ep.py"), "--ep", "4")
    assert done.returncode == 0, done.stderr
    found = CapturedFolder(folder / "captured")
    assert found.captured == (0,)  # which experts a rank holds makes no class
    program = found.program(0)
    assert {answer.told for answer in program.answers if "train_ep.py" in answer.where} == {"16", "128 entries"}
    moved = [op for op in program.ops if op.communication and op.communication.kind == "all_to_all"]
    rows = [op for op in moved if op.inputs[0].shape == (128, 256)]
    assert len(rows) == 8 * 4  # each layer: there and back, forward and backward
    assert all(op.outputs[0].shape == (128, 256) for op in rows)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("schedule", "stages"), [("1f1b", 2), ("1f1b", 4), ("interleaved", 4), ("zbv", 4)])
def test_representatives_equal_all_ranks_of_every_schedule(schedule: str, stages: int, tmp_path: Path) -> None:
    """Stages x dp 2 x tp 2: the capture from representatives equals that of all ranks, rank by rank."""
    ranks = 4 * stages
    script = [str(EXAMPLES / "train_3d.py"), "--pp", str(stages), "--tp", "2", "--schedule", schedule]
    for name, how in (("few", ["--verify", "0"]), ("all", ["--representatives", "all"])):
        words = ("--world-size", str(ranks), "--out", name, *how)
        done = capture(tmp_path, *words, *script, timeout=900)
        assert done.returncode == 0, done.stderr
    few, every = CapturedFolder(tmp_path / "few"), CapturedFolder(tmp_path / "all")
    digests = {path: {rank: digest(path.program(rank)) for rank in path.captured} for path in (few, every)}
    for rank in range(ranks):
        assert digests[few][few.class_of(rank)] == digests[every][every.class_of(rank)]
    assert len(few.captured) == len(every.captured) == stages


@pytest.mark.slow
@pytest.mark.parametrize("moments", [4, pytest.param(100, marks=pytest.mark.long)])
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
