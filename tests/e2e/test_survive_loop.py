"""A stranger's loop (FSDP2, whose shards nobody else has) with a rank that is killed: the same bits as without."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
from windtunnel.real.survive import launch

pytestmark = [pytest.mark.extras, pytest.mark.long]
LOOPS = Path(__file__).parents[2] / "validation" / "resilience" / "loops"
SCRIPT = LOOPS / "fsdp2.py"


def results(folder: Path, pause: float, killed: bool, hosts: int = 0) -> list[str]:
    folder.mkdir()
    began: list[float] = []

    def kill(pids: dict[str, int], members: tuple[str, ...], warm: tuple[str, ...]) -> None:
        if killed and warm and members and all(name in pids for name in members) and len(began) < 2:
            if not began:
                began.append(time.time())
            elif time.time() > began[0] + 3.0:
                began.append(time.time())
                os.kill(pids["host 1"] if hosts else pids[members[0]], signal.SIGKILL)

    words = [sys.executable, str(SCRIPT), "--out", str(folder), "--steps", "40", "--pause", str(pause)]
    told = launch(words, 2, 1, watching=kill, hosts=[""] * hosts)
    assert told.status == 0, told.reason
    assert len(told.replacements) == int(killed)
    return [(folder / f"{rank}.json").read_text() for rank in range(2)]


def test_a_rank_and_a_host_that_are_killed_change_no_bit(tmp_path: Path) -> None:
    expected = results(tmp_path / "calm", 0.0, killed=False)
    assert results(tmp_path / "killed", 0.15, killed=True) == expected
    assert results(tmp_path / "host", 0.15, killed=True, hosts=2) == expected


def test_ranks_that_die_while_others_gather_between_calls_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 before the gather in which rank 0 waits; rank 0 when rank 1 is past it; rank 1 before a sum."""
    losses = []
    for strikes, dead in (("", 0), ("5:1:before 6:0:after 7:1:evaluated", 3)):
        folder = tmp_path / f"{dead}"
        folder.mkdir()
        monkeypatch.setenv("STRIKE", strikes)
        words = [sys.executable, str(LOOPS / "between.py"), "--out", str(folder), "--steps", "10", "--pause", "0.05"]
        told = launch(words, 2, 1, give_up_s=30.0)
        assert told.status == 0, told.reason
        assert sum(len(replacement.dead) for replacement in told.replacements) == dead
        losses.append([(folder / f"{rank}.json").read_text() for rank in range(2)])
    assert losses[0] == losses[1]


@pytest.mark.parametrize("name", ["fsdp2", "pp"])
def test_ranks_that_die_at_each_communication_of_a_call_change_no_bit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In forward, in backward with gradients half reduced, in clipping, and while ranks agree on the call."""
    ranks = {"pp": 4}.get(name, 2)
    losses = []
    strikes = [f"{3 + 2 * at}:{at % ranks}:{at + 1}" for at in range(16)]
    for killed in (False, True):
        folder = tmp_path / f"{killed}"
        folder.mkdir()
        monkeypatch.setenv("STRIKE", " ".join(strikes) if killed else "")
        words = [sys.executable, str(LOOPS / f"{name}.py"), "--out", str(folder), "--steps", "40"]
        told = launch(words, ranks, 1)
        assert told.status == 0, told.reason
        assert len([one for one in strikes if (folder / one).exists()]) > 8 * killed - 1
        losses.append([(folder / f"{rank}.json").read_text() for rank in range(ranks)])
    assert losses[0] == losses[1]


def test_a_rank_and_then_the_neighbour_that_holds_its_shards_die_within_one_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What replaced the first holds the second's shards by then, which are too large for the launcher's store."""
    monkeypatch.setenv("LAYERS", "8")
    losses = []
    for strikes in ("", "6:1:3 6:0:9"):  # rank 0 comes to its ninth communication once rank 1 is replaced
        folder = tmp_path / f"{len(strikes)}"
        folder.mkdir()
        monkeypatch.setenv("STRIKE", strikes)
        told = launch([sys.executable, str(SCRIPT), "--out", str(folder), "--steps", "10"], 2, 1)
        assert told.status == 0, told.reason
        assert {path.name for path in folder.iterdir()} == {"0.json", "1.json", *strikes.split()}
        losses.append([(folder / f"{rank}.json").read_text() for rank in range(2)])
    assert losses[0] == losses[1]
    assert "begin again" not in capfd.readouterr().err


def test_a_death_in_a_script_without_standby_is_said_and_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "plain.py"
    script.write_text(
        "import os, pathlib, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        f"killed = pathlib.Path({str(tmp_path / 'killed')!r})\n"
        "if dist.get_rank() == 1 and not killed.exists():\n"
        "    killed.touch()\n"
        "    os.kill(os.getpid(), 9)\n"
        "dist.barrier()\n"
    )
    told = launch([sys.executable, str(script)], 2, 1)
    assert (told.status, told.begun_again, told.replacements) == (0, 1, [])
    assert "died before three steps of `windtunnel.survive.standby`" in capfd.readouterr().err
