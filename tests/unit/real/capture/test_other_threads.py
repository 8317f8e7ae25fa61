"""Threads of a script that still work when its last step has ended."""

import hashlib
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from windtunnel.real.capture.processes.file_mailbox import FileMailbox
from windtunnel.real.capture.processes.other_threads import come_to_rest


@pytest.fixture(autouse=True)
def _only_threads_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process leave some, and a script's process has none of theirs."""
    every = sys._current_frames
    before = set(every()) - {threading.get_ident()}
    monkeypatch.setattr(sys, "_current_frames", lambda: {k: one for k, one in every().items() if k not in before})


def test_what_a_pool_has_begun_is_waited_for() -> None:
    done: list[int] = []
    with ThreadPoolExecutor(1) as pool:
        for number in range(3):  # two of them are queued
            pool.submit(lambda number=number: (time.sleep(0.1), done.append(number)))  # type: ignore[misc]
        assert come_to_rest()
        assert done == [0, 1, 2]
        begun = time.monotonic()
        assert come_to_rest()  # its worker is there, and has nothing to do
        assert time.monotonic() - begun < 1.0


def test_work_that_stands_in_no_python_line_is_waited_for() -> None:
    """As of a worker that was given work and gets no core: its frame is where it rested."""
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(hashlib.pbkdf2_hmac, "sha256", b"a", b"b", 500_000)  # it lets other threads run
        assert come_to_rest()
        assert work.done()


def test_who_waits_for_another_rank_is_waited_for_until_let_go(tmp_path: Path) -> None:
    box = FileMailbox(tmp_path, 0)
    asked: list[float] = []

    def is_let_go() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 20

    def ask() -> None:
        with suppress(TimeoutError):
            box.get("group/1>0/tag 0/0", 3.0)

    thread = threading.Thread(target=ask)
    thread.start()
    assert not come_to_rest(0.05, is_let_go)  # it does not work: that is no matter of patience
    assert len(asked) > 20
    box.post("group/1>0/tag 0/0", b"")
    assert come_to_rest(2.0, lambda: False)
    thread.join()


def test_who_watches_the_store_is_not_waited_for(tmp_path: Path) -> None:
    box = FileMailbox(tmp_path, 0)
    thread = threading.Thread(target=box.get, args=("store/default/abort", 60.0), daemon=True)
    thread.start()
    assert come_to_rest(2.0, lambda: False)
    box.post("store/default/abort", b"")
    thread.join()


def test_who_may_be_let_go_is_not_waited_for(tmp_path: Path) -> None:
    box = FileMailbox(tmp_path, 0)

    def ask() -> None:
        with suppress(TimeoutError):
            box.get("group/1>0/tag 0/0", 3.0)

    thread = threading.Thread(target=ask)
    thread.start()
    assert not come_to_rest(2.0)
    assert thread.is_alive()
    box.post("group/1>0/tag 0/0", b"")
    thread.join()


def test_a_thread_that_never_rests_takes_the_patience_and_no_more() -> None:
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            time.sleep(0.001)

    thread = threading.Thread(target=work)
    thread.start()
    assert not come_to_rest(0.2)
    over.set()
    thread.join()
