from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from windtunnel.process import processes
from windtunnel.real.capture.processes import rank_server, scheduler
from windtunnel.real.capture.processes.leftovers import CAPTURE_PREFIX, FOLDER_VARIABLE, end_all, sweep
from windtunnel.real.capture.processes.rank_server import ScriptError
from windtunnel.real.capture.processes.scheduler import Workers

HERE = Path(__file__).parent
SETTINGS = {"load": ["json"], "player": "rank_players:play"}


@pytest.fixture(autouse=True)
def players(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Players can be imported, and temporary folders lie in one place, in which nothing may be left."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = children()  # of other tests of this process, such as the resource tracker of a pool
    yield tmp_path
    assert not list(tmp_path.glob(f"{CAPTURE_PREFIX}*"))
    assert children() <= before


def children() -> set[int]:
    return {pid for pid, parent, _ in processes() if parent == os.getpid()}


def run(does: dict[str, str], ranks: list[int], **options: float) -> dict[int, dict[str, object]]:
    with Workers(SETTINGS, **options) as workers:  # type: ignore[arg-type]
        workers.run(ranks, {"does": does})
        return {rank: dict(outcome) for rank, outcome in workers.outcomes.items()}


def test_ranks_are_played_and_tell_what_they_found() -> None:
    assert sorted(run({}, [3, 1, 2, 1])) == [1, 2, 3]


def test_whoever_is_waited_for_is_played_too_even_one_at_a_time() -> None:
    """A pipeline of 6 assembles itself from its last stage, with room for one busy rank."""
    does = {str(stage): f"{f'wait:{stage - 1}' if stage else ''} send:{stage + 1}" for stage in range(6)}
    outcomes = run(does, [5], cores=1)
    assert sorted(outcomes) == list(range(6))
    assert outcomes[5]["heard"] == "4"


def test_what_a_thread_beside_the_main_one_has_to_answer_is_answered_before_its_rank_ends() -> None:
    outcomes = run({"0": "aside:1 over", "1": "begun:0 sleep:0.3 send:0 wait:0"}, [0, 1], cores=2)
    assert (outcomes[0]["rested"], outcomes[1]["heard"]) == (True, "0")


def test_a_thread_that_waits_for_a_rank_that_has_ended_keeps_no_rank_from_its_end() -> None:
    assert run({"0": "aside:1 over", "1": ""}, [0, 1])[0]["rested"] is False
    outcomes = run({"0": "aside:1 over", "1": "aside:0 over"}, [0, 1])  # each for the other
    assert [outcomes[rank]["rested"] for rank in (0, 1)] == [False, False]


def test_who_waits_behind_the_last_step_for_a_rank_that_was_cut_short_ends() -> None:
    """Rank 0's evaluation took long and was left; the others wait for what it would have told them."""
    assert run({"0": "cut", "1": "behind:0", "2": "behind:1"}, [0, 1, 2])[2]["is_cut"]
    for does in ("cut", ""):
        with pytest.raises(ScriptError, match="that rank 0 ended without sending"):
            run({"0": does, "1": "whole wait:0"}, [0, 1])


def test_a_rank_computes_on_while_a_thread_of_it_waits_for_one_that_has_ended() -> None:
    assert run({"0": "aside:1 compute:0.5 over", "1": ""}, [0, 1])[0]["rested"] is False


def test_a_rank_whose_thread_is_never_answered_and_that_does_not_end_is_named() -> None:
    with pytest.raises(ScriptError, match="rank 0 waits for a message that rank 1 ended without sending"):
        run({"0": "aside:1 sleep:60 over", "1": ""}, [0, 1])


def test_messages_both_ways_between_ranks_do_not_lock(players: Path) -> None:
    does = {"0": "send:1 wait:1", "1": "wait:0 send:0"}
    assert sorted(run(does, [0, 1], cores=1)) == [0, 1]


def test_who_waits_at_a_barrier_that_nobody_else_comes_to_goes_on() -> None:
    """What it calls is compared with what others call, once all have ended."""
    assert sorted(run({"0": "wait:1", "1": "barrier:0 send:0", "2": "barrier:3", "3": "sleep:0.1"}, [0, 1, 2])) == [
        0,
        1,
        2,
        3,
    ]


def test_helpers_end_with_those_they_help(players: Path) -> None:
    """Rank 1 is played for its message only; what it would do after that is not waited for."""
    with Workers(SETTINGS) as workers:
        workers.run([0], {"does": {"0": "wait:1", "1": "send:0 sleep:60"}}, helpers_end=True)
        assert sorted(workers.outcomes) == [0]
        workers.run([2], {"does": {}})
        assert sorted(workers.outcomes) == [0, 2]


def test_a_helper_that_is_asked_for_later_goes_on_where_it_stands(players: Path) -> None:
    does = {"does": {"0": "wait:1 stands:1", "1": "tick:5 send:0 tick:5"}}
    with Workers(SETTINGS, cores=2) as workers:
        workers.run([0], does, helpers_end=True)
        if 1 not in workers.outcomes:  # it may be at its end already
            before = (workers.folder / "pid_1").read_text()
            workers.run([1], does, helpers_end=True)
            assert (workers.folder / "pid_1").read_text() == before
        assert ticks(workers, 1) == 10
        assert workers.outcomes[1]["status"] == "ok"
        workers.run([0, 2], {"does": {"2": "wait:3", "3": "send:2 sleep:60"}}, helpers_end=True)
        workers.run([3], {"does": {"3": "tick:2"}})  # another task: it begins anew
        assert ticks(workers, 3) == 2


def ticks(workers: Workers, rank: int) -> int:
    path = workers.folder / f"ticks_{rank}"
    return len(path.read_text()) if path.exists() else 0


def test_a_helper_stands_still_when_nobody_waits_for_it() -> None:
    with Workers(SETTINGS, cores=2) as workers:
        workers.run([0], {"does": {"0": "wait:1 stands:1", "1": "send:0 sleep:100"}}, helpers_end=True)
        assert sorted(workers.outcomes) == [0]


def test_a_helper_that_was_begun_ahead_stands_still_when_nobody_waits() -> None:
    """Rank 4 has sent what rank 2 needs before rank 2 asks; while rank 0 goes on, it does not."""
    does = {"0": "wait:2 stands:4", "2": "begun:4 wait:4 send:0", "4": "send:2 sleep:100"}
    with Workers(SETTINGS, cores=2) as workers:
        workers.run([0], {"does": does, "launch": {"world_size": 6}}, helpers_end=True)
        assert sorted(workers.outcomes) in ([0], [0, 2])


def test_no_more_ranks_go_on_than_there_are_cores() -> None:
    """All wait for rank 0; once it has spoken all could go on, and the first of them does."""
    does = {"0": "sleep:0.5 send:1 send:2 send:3 tick:30", "*": "wait:0 tick:30"}
    with Workers(SETTINGS, cores=1) as workers:
        begun = time.monotonic()
        workers.run([1, 2, 3, 0], {"does": does})
        assert time.monotonic() - begun > 4 * 30 * 0.01
        assert [ticks(workers, rank) for rank in range(4)] == [30] * 4


def test_the_next_in_line_is_started_ahead_and_ended_with_the_others() -> None:
    """Each waits for the one two further, as stages do: the fourth is there before the third asks for it."""
    does = {"0": "wait:2 sleep:0.2", "2": "sleep:0.4 wait:4 send:0", "4": "send:2 wait:6", "*": "tick:1000"}
    with Workers(SETTINGS, cores=2) as workers:
        workers.run([0], {"does": does, "launch": {"world_size": 12}}, helpers_end=True)
        assert sorted(workers.outcomes) in ([0], [0, 2])
        assert ticks(workers, 8) + ticks(workers, 10) < 150  # not all that could be waited for are started


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ({"0": "fail:bad"}, "rank 0: train.py:3: ValueError: bad"),
        ({"0": "die"}, "SIGKILL"),
        ({"0": "vanish"}, "status 3"),
        ({"0": "wait:1"}, "rank 1 ended without sending, at train.py:7"),
        ({"0": "wait:1", "1": "wait:0"}, "while rank 1 waits too"),
        ({"0": "sleep:30"}, "has not come to the end of the step within 1 s, at train.py:7"),
    ],
)
def test_what_goes_wrong_is_said_once_with_the_line(does: dict[str, str], said: str) -> None:
    with pytest.raises(ScriptError) as error:
        run(does, [0], timeout_s=1.0 if "sleep" in does["0"] else 60.0)
    assert said in str(error.value)


def test_what_a_rank_printed_last_is_kept_for_the_error() -> None:
    with pytest.raises(ScriptError) as error:
        run({"0": "say:hello vanish"}, [0])
    assert "hello" in error.value.details


def test_processes_that_a_rank_leaves_behind_are_killed() -> None:
    before = {pid for pid, _, _ in processes()}
    run({"*": "workers"}, [0, 1, 2])
    time.sleep(0.05)
    left = {pid for pid, _, _ in processes()} - before
    assert not [pid for pid in left if "time.sleep(60)" in command_of(pid)]


def test_a_module_that_cannot_be_imported_is_a_users_error() -> None:
    with (
        pytest.raises(ScriptError, match="importing no_such_module fails"),
        Workers({"load": ["no_such_module"], "player": "rank_players:play"}),
    ):
        pass


def test_a_lost_fork_server_is_an_error_and_leaves_nothing() -> None:
    with Workers(SETTINGS) as workers:
        assert workers._server is not None
        folder = workers.folder
        os.kill(workers._server.pid, signal.SIGKILL)
        with pytest.raises(ScriptError, match="ended"):
            workers.run([0], {"does": {"0": "sleep:5"}})
    assert not folder.exists()


SCRIPT = """
import sys
from windtunnel.real.capture.processes.rank_server import ScriptError
from windtunnel.real.capture.processes.scheduler import Workers
with Workers({"load": ["json"], "player": "rank_players:play"}) as workers:
    workers.run(range(6), {"does": {"*": "workers sleep:0.05", "0": "wait:5", "5": "workers send:0"}})
"""


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_at_any_time_it_leaves_nothing(kind: signal.Signals, players: Path) -> None:
    """Also where the launcher itself has no chance to clean up: the fork server sees that it is gone."""
    order = random.Random(int(kind))
    for _ in range(7):
        process = subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=subprocess.DEVNULL, start_new_session=True)
        time.sleep(order.uniform(0.0, 0.7))
        process.send_signal(kind)
        process.wait(20)
        until = time.monotonic() + (10 if kind != signal.SIGINT else 0.5)
        while (left := left_over(players)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not left


def left_over(temporary: Path) -> list[str]:
    found = [str(path) for path in temporary.glob(f"{CAPTURE_PREFIX}*")]
    for pid, _, _ in processes():
        text = command_of(pid)
        if "capture.processes.fork_server" in text or "time.sleep(60)" in text:
            environment = environment_of(pid)
            if f"TMPDIR={temporary}" in environment:
                found.append(f"{pid} {text}")
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def environment_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text(errors="replace")
    except OSError:
        return ""


def test_what_a_killed_fork_server_leaves_goes_with_the_next_start(players: Path) -> None:
    """Launcher and fork server are killed at once, as a scheduler kills a whole job; neither can clean."""
    process = subprocess.Popen([sys.executable, "-c", LONG], stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 20
    while not (servers := [pid for pid, _, _ in processes() if _is_a_fork_server_of(pid, players)]):
        assert time.monotonic() < until
        time.sleep(0.02)
    while not any("time.sleep(60)" in text for text in left_over(players)):
        assert time.monotonic() < until
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    process.wait(20)
    assert left_over(players)
    sweep()
    assert not left_over(players)


LONG = SCRIPT.replace("workers sleep:0.05", "workers sleep:50")


def _is_a_fork_server_of(pid: int, temporary: Path) -> bool:
    is_one = "capture.processes.fork_server" in command_of(pid)
    return is_one and f"TMPDIR={temporary}" in environment_of(pid)


def test_what_a_fork_server_died_of_is_said(monkeypatch: pytest.MonkeyPatch, players: Path) -> None:
    monkeypatch.setattr(rank_server, "folder_of_this_process", lambda prefix: players / "none" / "x")
    with pytest.raises(ScriptError, match=r"FileNotFoundError: .*none/x"), Workers(SETTINGS):
        pass


STARVED = """
import os, signal, time
starved = os.getpid()
if (other := os.fork()) == 0:
    time.sleep(2.5)
    os.kill(starved, signal.SIGCONT)
    os._exit(0)
os.kill(starved, signal.SIGSTOP)  # as one that waits for a core, it has no time on one
os.waitpid(other, 0)
"""


def test_a_fork_server_that_waits_for_a_core_is_waited_for(monkeypatch: pytest.MonkeyPatch, players: Path) -> None:
    (players / "starved.py").write_text(STARVED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(players), os.environ["PYTHONPATH"]]))
    monkeypatch.setattr(scheduler, "START_S", 1.0)
    with Workers({**SETTINGS, "load": ["starved"]}) as workers:
        workers.run([0], {"does": {}})


def test_what_carries_a_folder_is_ended_whatever_session_it_is_in(players: Path) -> None:
    environment = {**os.environ, FOLDER_VARIABLE: str(players)}
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    leader = subprocess.Popen([*words[:2], "import os, time; os.fork(); time.sleep(60)"], start_new_session=True)
    carries, other = (subprocess.Popen(words, env=one, start_new_session=True) for one in (environment, os.environ))
    end_all(players, [leader.pid])
    assert (leader.wait(), carries.wait(), other.poll()) == (-signal.SIGKILL, -signal.SIGKILL, None)
    assert not [pid for pid, _, session in processes() if session == leader.pid]
    other.kill()
    other.wait()


def test_what_belongs_to_a_command_that_lives_is_not_swept(players: Path) -> None:
    with Workers(SETTINGS) as workers:
        sweep()
        workers.run([0], {"does": {}})


def test_what_goes_on_is_said_before_anything_is_loaded() -> None:
    said: list[tuple[int, int, str]] = []
    run({}, [0, 1], report=lambda *words: said.append(words))  # type: ignore[arg-type]
    assert said[0] == (0, 1, "loading PyTorch")
    assert said[-1][:2] in ((0, 2), (1, 2), (2, 2))


def test_a_rank_is_run_again_under_another_task_and_what_it_was_stays_known() -> None:
    with Workers(SETTINGS) as workers:
        workers.run([0, 1], {"does": {"0": "send:1", "1": "wait:0"}})
        after = workers.again(1, {"does": {"1": "fail:no"}})
        assert after["status"] == "error"
        assert workers.outcomes[1]["heard"] == "0"
        assert workers.again(1, {"does": {"1": "die"}})["status"] == "died"  # not what it left under the task before
        assert workers.again(0, {"does": {}})["status"] == "ok"
        hung = workers.again(1, {"does": {"1": "wait:2"}})
        assert (hung["status"], "rank 2 ended without sending" in hung["message"]) == ("hangs", True)


def test_a_rank_that_alone_raises_is_a_finding() -> None:
    with Workers(SETTINGS, cores=1) as workers:
        workers.run([0], {"does": {}})
        with pytest.raises(ScriptError) as raised:
            workers.run([3], {"does": {"3": "fail:here"}})
    finding = raised.value.finding
    assert finding is not None
    assert (finding.kind, finding.ranks, finding.is_fatal) == ("exception", (3,), True)
    assert "rank 0 runs through it" in finding.text
    with pytest.raises(ScriptError) as raised:
        run({"*": "fail:everywhere"}, [0])
    assert raised.value.finding is None  # it may be that it does not run under torchrun either
