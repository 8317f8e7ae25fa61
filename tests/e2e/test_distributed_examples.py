"""Every script of examples/distributed trains on real gloo processes, and all layouts train the same model.

Data and first weights do not depend on the layout. So in fp32 the losses and gradient norms of all scripts must agree:
what differs is only the order of sums. Run as a program, this file launches the ranks: PyTorch is imported once, and
each rank is a fork of that process, with the environment that torchrun would give it.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]

FOLDER = Path(__file__).parents[2] / "examples" / "distributed"
ALIKE = ("--precision", "fp32", "--batch", "8", "--seq", "32", "--steps", "2")
DENSE = {  # name -> ranks, script, and what else it is told
    "ddp": (2, "train_ddp", "--micro-batches", "2"),
    "ddp-workers": (2, "train_ddp", "--workers", "1"),
    "fsdp2": (2, "train_fsdp2", "--micro-batches", "2"),
    "hsdp-ac": (4, "train_fsdp2", "--replicas", "2", "--ac"),
    "tp": (2, "train_tp", "--tp", "2"),
    "tp-loss-parallel": (2, "train_tp", "--tp", "2", "--loss-parallel", "--micro-batches", "2"),
    "gpipe": (2, "train_3d", "--pp", "2", "--schedule", "gpipe", "--micro-batches", "4"),
    "1f1b-3d": (4, "train_3d", "--pp", "2", "--tp", "2", "--micro-batches", "4", "--ac"),
    "interleaved": (2, "train_3d", "--pp", "2", "--schedule", "interleaved", "--micro-batches", "4", "--ac"),
    "zbv": (2, "train_3d", "--pp", "2", "--schedule", "zbv", "--micro-batches", "4"),
    "cp-dp": (4, "train_cp", "--cp", "2", "--micro-batches", "2"),
}
EXPERTS = {
    "ep-1": (2, "train_ep", "--ep", "1"),
    "ep-2": (2, "train_ep", "--ep", "2", "--micro-batches", "2"),
    "ep-2-dp-2": (4, "train_ep", "--ep", "2"),
}
OTHERS = {
    "bf16": (2, "train_fsdp2", "--precision", "bf16"),
    "saved": (2, "train_fsdp2", "--checkpoint", "{folder}", "--steps", "1"),
    "resumed": (2, "train_fsdp2", "--checkpoint", "{folder}", "--steps", "2"),
    "ring": (2, "train_cp", "--attention", "ring"),
    "odd-batch": (2, "train_ddp", "--batch", "3"),
}
# Variants of others, which are run by -m long.
VARIANTS = ("ddp-workers", "hsdp-ac", "tp-loss-parallel", "gpipe", "interleaved", "zbv", "ep-2-dp-2")
COMPARED = ("ddp", "fsdp2", "ep-1", *OTHERS)  # that other tests read
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
LINE = re.compile(r"step (\d+)  loss (\d+\.\d+)  gradient norm (\d+\.\d+)  (\d+\.\d+) s")


def names(runs: Iterable[str]) -> list[object]:
    """Names of runs as parameters."""
    return [pytest.param(name, marks=pytest.mark.long) if name in VARIANTS else name for name in runs]


Steps = dict[int, tuple[float, float]]  # step -> loss, gradient norm


@pytest.fixture(scope="module")
def outputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what each rank of each run that is asked for wrote: NAME.RANK, and NAME.codes with statuses."""
    folder = tmp_path_factory.mktemp("ranks")
    asked = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    runs = {
        name: (ranks, script, *ALIKE, "--all-ranks", *(word.format(folder=folder / "checkpoint") for word in words))
        for name, (ranks, script, *words) in {**DENSE, **EXPERTS, **OTHERS}.items()
        if name in asked or name in COMPARED
    }
    launcher = subprocess.Popen(
        [sys.executable, __file__, str(folder)],
        stdin=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        start_new_session=True,
    )
    try:
        launcher.communicate(json.dumps(runs), timeout=600)
    finally:
        with suppress(ProcessLookupError):  # ranks that still wait for each other, if there are any
            os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()
    assert launcher.returncode == 0
    return folder


def steps_of(outputs: Path, name: str, ranks: int) -> Steps:
    """What all ranks of a run printed; they must have printed the same."""
    written = [(outputs / f"{name}.{rank}").read_text() for rank in range(ranks)]
    assert json.loads((outputs / f"{name}.codes").read_text()) == [0] * ranks, "\n".join(written)
    said = [[match[:3] for match in LINE.findall(text)] for text in written]
    assert said[0]
    assert said == [said[0]] * ranks
    return {int(step): (float(loss), float(norm)) for step, loss, norm in said[0]}


@pytest.mark.parametrize("name", names(DENSE))
def test_every_layout_trains_the_same_model(outputs: Path, name: str) -> None:
    steps = steps_of(outputs, name, DENSE[name][0])
    assert steps[2][0] < steps[1][0] < 7
    for step, told in steps_of(outputs, "ddp", 2).items():
        assert steps[step] == pytest.approx(told, rel=1e-4)


@pytest.mark.parametrize("name", names(EXPERTS))
def test_experts_may_live_anywhere(outputs: Path, name: str) -> None:
    steps = steps_of(outputs, name, EXPERTS[name][0])
    assert steps[2][0] < steps[1][0] < 7
    for step, told in steps_of(outputs, "ep-1", 2).items():
        assert steps[step] == pytest.approx(told, rel=1e-4)


def test_bf16_is_near_fp32_and_not_the_same(outputs: Path) -> None:
    exact, rounded = steps_of(outputs, "fsdp2", 2), steps_of(outputs, "bf16", 2)
    assert rounded != exact
    for step, told in exact.items():
        assert rounded[step] == pytest.approx(told, rel=2e-2)


def test_a_saved_run_goes_on_where_it_was(outputs: Path) -> None:
    steps = steps_of(outputs, "saved", 2) | (resumed := steps_of(outputs, "resumed", 2))
    assert list(resumed) == [2]
    for step, told in steps_of(outputs, "fsdp2", 2).items():
        assert steps[step] == pytest.approx(told, rel=1e-4)
    assert sorted(path.name for path in (outputs / "checkpoint").iterdir()) == ["step-1", "step-2"]


def test_what_cannot_be_says_so(outputs: Path) -> None:
    for name, said in (("ring", "--attention gather runs anywhere"), ("odd-batch", "--batch 3: must be a multiple of")):
        assert json.loads((outputs / f"{name}.codes").read_text()) == [1, 1]
        for rank in range(2):
            assert said in (outputs / f"{name}.{rank}").read_text()


def test_the_documented_launch_line(tmp_path: Path) -> None:
    script = FOLDER / "train_ddp.py"
    assert "torchrun --nproc-per-node 2 examples/distributed/train_ddp.py --steps 3" in script.read_text()
    done = subprocess.run(
        [*TORCHRUN, "--nproc-per-node", "2", script, "--steps", "3"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for _, loss, _, _ in LINE.findall(done.stdout)]
    assert len(losses) == 3  # rank 0 alone says them
    assert losses == sorted(losses, reverse=True)
    assert list(tmp_path.iterdir()) == []


def test_none_of_them_knows_windtunnel() -> None:
    scripts = sorted(FOLDER.glob("*.py"))
    assert {path.stem for path in scripts} >= {script for _, script, *_ in {**DENSE, **EXPERTS}.values()}
    for path in scripts:
        assert "windtunnel" not in path.read_text(encoding="utf-8")


def rank_of_a_job(rank: int, ranks: int, port: int, script: str, words: list[str], output: Path) -> int:
    """Run one rank in this process, which was forked for it; gives its exit status."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = [str(FOLDER / f"{script}.py"), *words]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except Exception:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def launch(folder: Path, runs: dict[str, list[str]]) -> None:
    """One run after the other, each with all its ranks at once."""
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.experimental
    import torch.distributed.tensor.parallel

    torch.set_num_threads(1)
    sys.path.insert(0, str(FOLDER))
    model = import_module("model")  # once for all ranks, and half its layers show the same
    model.CONFIGS["debug"] = replace(model.CONFIGS["debug"], layers=4)
    for name, (ranks, script, *words) in runs.items():
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        pids = []
        for rank in range(int(ranks)):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    code = rank_of_a_job(rank, int(ranks), port, script, words, folder / f"{name}.{rank}")
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            pids.append(pid)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        (folder / f"{name}.codes").write_text(json.dumps(codes))


if __name__ == "__main__":
    launch(Path(sys.argv[1]), json.load(sys.stdin))
