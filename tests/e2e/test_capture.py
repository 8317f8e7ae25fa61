"""`windtunnel capture` on whole scripts: what comes out, and what it says where it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from capture_verb import SCRIPT, capture, capture_anew, left_over, line

from windtunnel.studies.programs.folder import load_job
from windtunnel.studies.programs.program_file import read_program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT.lstrip())
    return tmp_path


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


def test_an_earlier_capture_is_replaced_whole(folder: Path) -> None:
    assert capture(folder, "--world-size", "4", "--ranks", "0-3", "train.py").returncode == 0
    assert capture(folder, "--world-size", "4", "--ranks", "1", "train.py").returncode == 0
    assert sorted(path.name for path in (folder / "captured").iterdir()) == ["captured.yaml", "rank_1.jsonl.gz"]
