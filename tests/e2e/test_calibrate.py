"""`windtunnel calibrate` as a person types it, with PyTorch on the CPU."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest
from calibrated_cpu import calibrated_cpu
from forked import windtunnel
from in_this_process import command_line

from windtunnel.physics.hardware import parse_cluster
from windtunnel.real.calibrate.collectives import KINDS
from windtunnel.real.calibrate.document import to_yaml

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
FEW = ("--only", "gemm", "--only", "add", "--only", "adamw", "--only", "copy")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "windtunnel.faces.cli", "calibrate", *words]


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As a fork of a process that has PyTorch loaded."""
    return windtunnel("calibrate", *words, cwd=cwd, env={**os.environ})


def run_anew(*words: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """In a new interpreter, as a person starts it."""
    return subprocess.run(
        command(*words),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environment},
        check=False,
    )


def refused(*words: str, cwd: Path, **environment: str) -> str:
    """Its one line. In this process, but for what the environment decides."""
    done = run_anew(*words, cwd=cwd, **environment) if environment else command_line("calibrate", *words, cwd=cwd)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("windtunnel: error: ")
    return line


def fake_torch(folder: Path, text: str) -> dict[str, str]:
    (folder / "fake").mkdir()
    (folder / "fake" / "torch.py").write_text(text)
    return {"PYTHONPATH": str(folder / "fake")}


def test_no_torch_and_old_torch_say_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    missing = fake_torch(tmp_path / "a", "raise ImportError('no')")
    assert "pip install 'windtunnel[torch]'" in refused(cwd=tmp_path, **missing)
    old = fake_torch(tmp_path / "b", "__version__ = '2.3.1+cu118'")
    assert "2.3.1+cu118 is too old" in refused(cwd=tmp_path, **old)


def test_contradictions_are_refused(tmp_path: Path) -> None:
    assert "--quick or --full" in refused("--quick", "--full", cwd=tmp_path)
    assert "is not there" in refused("--show", "none.yaml", cwd=tmp_path)
    assert "--report" in refused("--report", "x.html", cwd=tmp_path)
    assert "--pinned: it belongs to `windtunnel calibrate collectives`" in refused("--pinned", cwd=tmp_path)
    assert "belongs to `windtunnel calibrate device`" in refused("--collectives", "--device", "cpu", cwd=tmp_path)
    assert "known: all_reduce," in refused("--collectives", "--only", "all_reduse", cwd=tmp_path)
    assert "is not there yet" in refused("--collectives", "--quick", cwd=tmp_path)  # a budget here too
    (tmp_path / "cut.yaml").write_text("gpus: 8\ncalibration: [1,\n")
    assert "cut.yaml: line 3: " in refused("--show", "cut.yaml", cwd=tmp_path)
    assert "cannot be read (Is a directory)" in refused("--show", ".", cwd=tmp_path)
    (tmp_path / "mine.yaml").write_text("gpus: 8\n")
    assert "holds no calibration" in refused("--out", "mine.yaml", cwd=tmp_path)
    assert (tmp_path / "mine.yaml").read_text() == "gpus: 8\n"


@needs_torch
def test_devices_that_are_not_there(tmp_path: Path) -> None:
    import torch

    assert "give cpu or cuda:0" in refused("--device", "tpu", cwd=tmp_path)
    assert "unknown op" in refused("--only", "gem", cwd=tmp_path)
    assert "run `windtunnel calibrate` first" in refused("--collectives", cwd=tmp_path)
    assert "give 2 or more" in refused("--collectives", "--world-size", "1", cwd=tmp_path)
    if not torch.cuda.is_available():
        assert "sees no CUDA GPU" in refused("--device", "cuda:0", cwd=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def calibrated() -> bytes:
    """A file as `calibrate` writes it; what it measures itself is tested below."""
    document = calibrated_cpu()
    document["scale_out"] = {"bandwidth": "1.25 GB/s", "latency": "50 us", "protocol": "ethernet"}
    return to_yaml(document).encode()


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.long), signal.SIGKILL])
def test_ranks_of_a_killed_measurement_are_gone_and_the_file_is_as_it_was(
    tmp_path: Path, calibrated: bytes, number: int
) -> None:
    out = tmp_path / "my.yaml"
    out.write_bytes(calibrated)
    words = command("--collectives", "--world-size", "2", "--budget", "600", "--out", "my.yaml")
    begun = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_until(lambda: sum(b"spawn_main" in line for line in session_of(begun.pid)) == 2)
    begun.send_signal(number)
    begun.wait()
    wait_until(lambda: not any(b"spawn_main" in line for line in session_of(begun.pid)))
    assert out.read_bytes() == calibrated


def session_of(leader: int) -> list[bytes]:
    """Command lines of the processes that are left of a session."""
    from windtunnel.process import processes

    found = []
    for pid, _, session in processes():
        if session == leader:
            with suppress(OSError):  # gone meanwhile
                found.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@needs_torch
@pytest.mark.slow
def test_measured_killed_gone_on_shown(tmp_path: Path) -> None:
    out, journal = tmp_path / "my.yaml", tmp_path / "my.yaml.journal"
    words = ("--device", "cpu", "--budget", "8", "--out", "my.yaml", *FEW)
    begun = subprocess.Popen(command(*words), cwd=tmp_path, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not journal.exists() or journal.read_bytes().count(b'"kind"') < 3:
        assert time.monotonic() < deadline
        assert begun.poll() is None
        time.sleep(0.05)
    begun.send_signal(signal.SIGKILL)
    begun.wait()
    assert not out.exists()
    kept = journal.read_bytes()
    journal.write_bytes(kept[:-1] + b'\n{"kind": "ge')  # cut off in the middle of a line, as by a full disk

    done = run(*words, cwd=tmp_path)
    assert "went on with" in done.stderr, done.stderr
    assert "1 damaged line left out" in done.stderr
    for _ in range(5):  # on a busy machine the budget ends before the last kind is measured
        if "run again to go on" in done.stderr:
            done = run(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "points of" in done.stdout
    assert not journal.exists()
    calibration = parse_cluster(f"{out}:1").calibration
    assert calibration is not None
    # On a busy machine the budget ends after the least that a calibration needs, and the file says what is lacking.
    measured = {op.split()[0] for op, _ in calibration.points}
    assert {"gemm", "copy"} <= measured
    late = [kind for kind in ("add", "adamw") if kind not in measured]
    assert measured | set(late) == {"gemm", "add", "adamw", "copy"}
    match = re.search(r"no time was left to measure (.*): give more --budget", " ".join(out.read_text().split()))
    assert set(match[1].split(", ") if match else []) == set(late)
    assert calibration.points["gemm forward", "fp32"].seconds.min() > 0
    assert sum(len(points.seconds) for points in calibration.points.values()) >= 3  # what the killed run had is there

    shown = run("--show", "my.yaml", "--report", "page.html", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "gemm forward" in shown.stdout
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "gemm forward" in page
    assert ("gemm dgrad" in page) == (("gemm dgrad", "fp32") in calibration.points)
    assert "http" not in page.replace("http-equiv", "")


@needs_torch
@pytest.mark.slow
def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    begun = subprocess.Popen(
        command("--device", "cpu", "--budget", "60", "--out", "my.yaml", *FEW),
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    journal = tmp_path / "my.yaml.journal"
    deadline = time.monotonic() + 300
    while not journal.exists() or b'"kind"' not in journal.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    begun.send_signal(signal.SIGINT)
    _, said = begun.communicate(timeout=60)
    # An interrupt that lands inside `exec` of a string (a dataclass made by a late import) is handled as any other, but
    # CPython remembers it and ends by the signal itself: a shell shows 130 for both.
    assert begun.returncode in (130, -signal.SIGINT)
    assert "run the same again to go on" in said
    assert "Traceback" not in said
    assert b'"kind"' in journal.read_bytes()


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("all_reduce", "barrier"), pytest.param((), marks=pytest.mark.long)])
def test_collectives_are_added_to_the_file(tmp_path: Path, calibrated: bytes, kinds: tuple[str, ...]) -> None:
    (tmp_path / "my.yaml").write_bytes(calibrated)
    pinned = ("--pinned",) if len(os.sched_getaffinity(0)) >= 2 else ()
    done = run("--collectives", *pinned, "--world-size", "2", "--budget", "5", "--out", "my.yaml",
               *(f"--only={kind}" for kind in kinds), cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    calibration = parse_cluster(f"{tmp_path / 'my.yaml'}:1").calibration
    assert calibration is not None
    assert ("gemm forward", "fp32") in calibration.points
    measured = calibration.collectives["all_reduce", "gloo", 2]
    assert measured.shapes[:, 0].tolist() == [1 << exponent for exponent in range(12, 27)]
    assert measured.seconds[-1] > 3 * measured.seconds[0] > 0
    assert measured.waited is not None
    assert measured.beside is not None
    assert measured.queued is not None
    assert measured.waited[-1] > 3 * measured.seconds[0]
    assert measured.queued[-1] > measured.seconds[0]
    assert ("each process kept to its own share of the cores" in (tmp_path / "my.yaml").read_text()) == bool(pinned)
    assert {kind for kind, _, _ in calibration.collectives} == set(kinds or KINDS)
