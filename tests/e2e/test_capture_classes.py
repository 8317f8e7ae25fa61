"""Which ranks `windtunnel capture` runs, which stand for which, and what it says where none can."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from capture_verb import SCRIPT, capture, left_over

from windtunnel.studies.programs.folder import CapturedFolder
from windtunnel.studies.programs.rank_classes.equality import digest

EXAMPLES = Path(__file__).parents[2] / "examples" / "distributed"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT.lstrip())
    return tmp_path


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
