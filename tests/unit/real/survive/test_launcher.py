"""How a job ends after its last step, and what the command line refuses, without one process of PyTorch."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")
from torch.distributed import TCPStore

from windtunnel.real.survive.__main__ import main
from windtunnel.real.survive.live.group import Spare
from windtunnel.real.survive.live.launcher import _listening, _Process, _Run
from windtunnel.real.survive.live.place import Place
from windtunnel.studies.resilience.membership import Membership

pytestmark = pytest.mark.extras


@pytest.mark.parametrize(
    ("script", "status", "said"),
    [
        ("exit 0", 0, ""),
        ("exit 3", 3, "p0 ended with exit status 3 after the last step"),
        ("kill -9 $$", 137, "p0 ended by signal 9 after the last step"),
        ("sleep 900", 1, "--end-timeout"),
    ],
)
def test_what_a_script_does_after_its_last_step_counts(script: str, status: int, said: str, tmp_path: Path) -> None:
    run = _Run([], Membership(1, 0), tmp_path, 10.0, 300.0, 60.0 if status != 1 else 0.1, {})
    with subprocess.Popen(["sh", "-c", f"exec 2>&-; {script}"]) as script_process:
        run.processes["p0"] = _Process(script_process, tmp_path / "p0.log")
        run.let_end()
        script_process.kill()
    assert run.outcome.status == status
    assert said in run.outcome.reason


def test_a_script_that_never_asks_for_its_rank_is_one_error_and_not_begun_again(tmp_path: Path) -> None:
    run = _Run([], Membership(1, 0), tmp_path, 10.0, 300.0, 60.0, {}, store=SimpleNamespace(check=lambda keys: False))
    assert len(run.membership.start()) == 1
    with subprocess.Popen(["true"]) as script_process:
        script_process.wait()
        run.processes["p0"] = _Process(script_process, tmp_path / "p0.log")
        run._look_for_dead()
    assert run.over
    assert run.outcome.status == 1
    assert "never asked for its rank" in run.outcome.reason


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nproc-per-node", "0"], "--nproc-per-node = 0"),
        (["--nproc-per-node", "2", "--standby", "-1"], "--standby = -1"),
        (["--nproc-per-node", "2", "--patience", "nan"], "--patience"),
        (["--nproc-per-node", "2", "--timeout", "0"], "--timeout"),
        (["--nproc-per-node", "2", "--replace", "2@5"], "a rank from 0 to 1"),
        (["--nproc-per-node", "2", "--replace", "1"], "RANK@STEP"),
        (["--nproc-per-node", "1", "--replace", "0@5"], "two ranks"),
        (["--nproc-per-node", "2", "--report-json", "/nowhere/x.json"], "--report-json /nowhere/x.json"),
        (["--replace", "0@5"], "two ranks"),  # one rank, as torchrun takes it
        (["--nproc-per-node", "2", "--afresh", "--preload", "json"], "--preload"),
        (["--nproc-per-node", "2", "--address", "192.0.2.1"], "--address = '192.0.2.1'"),
    ],
)
def test_a_mistake_is_one_message(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.touch()
    with pytest.raises(SystemExit) as ended:
        main([*words, str(script)])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "error: " in last
    assert said in last


def test_the_store_of_a_job_on_one_machine_is_reached_from_there_alone_and_by_clients_made_beforehand(
    tmp_path: Path,
) -> None:
    port, descriptor = _listening("127.0.0.1", for_hosts=False)
    with socket.socket(fileno=socket.dup(descriptor)) as bound:
        assert bound.family == socket.AF_INET  # else each client's name is looked up
        assert bound.getsockname() == ("127.0.0.1", port)
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    store.set("key", "value")
    spare = Spare(Place("127.0.0.1", port, "p0", 1, tmp_path, 10.0))
    first, second = spare.take(), spare.take()
    assert first is not second
    assert first.get("key") == second.get("key") == b"value"
    spare.close()
