"""Plans replayed in a second process: the answer is the same, whatever becomes of that process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import Pipe
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import pytest

import windtunnel
from windtunnel.errors import LayoutError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.planning.oracle import Layout, checked, laid_out, step_ns
from windtunnel.studies.planning.search import ahead
from windtunnel.studies.planning.search.ahead import STEP, Ahead, Exact, working_ahead

FIELDS = {"global_batch": 16, "seq_len": 2048, "tp": 2, "cp": 1, "zero_stage": 1}


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A machine that has them, and no other threads; the processes that were started."""
    if sys.platform != "linux":
        pytest.skip("starts no second process here")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(ahead.threading, "active_count", lambda: 1)
    started: list[int] = []
    fork = os.fork

    def noted() -> int:
        started.append(fork())
        return started[-1]

    monkeypatch.setattr(os, "fork", noted)
    return started


def found_by(exact: Exact | None) -> dict[str, Any]:
    model = load_model("llama-3-8b").with_changes(layers=4)
    answer = windtunnel.plan(model, parse_cluster("h100-sxm:8"), within_s=None, exact=exact, **FIELDS).to_dict()
    assert answer.pop("seconds") > 0.0
    return answer


def layouts(*micro_batches: int) -> list[Layout]:
    model, cluster = load_model("llama-3-8b").with_changes(layers=2), parse_cluster("h100-sxm:8")
    plain = {"global_batch": 32, "seq_len": 2048}
    return [laid_out(model, cluster, checked({**plain, "micro_batch": micro_batch})) for micro_batch in micro_batches]


@contextmanager
def in_a_thread() -> Iterator[Ahead]:
    """The second process's work, in a thread of this one."""
    ours, theirs = Pipe()
    worker = Thread(target=ahead._work, args=(theirs,))
    worker.start()
    try:
        yield Ahead(ours)
    finally:
        ours.close()
        worker.join()


def test_an_answer_is_the_same_with_a_second_process(two_cores: list[int]) -> None:
    alone = found_by(None)
    with working_ahead() as exact:
        assert isinstance(exact, Ahead)
        assert found_by(exact) == alone
        assert len(exact._answers) >= alone["space"]["replayed"] > 0  # and it did the work
    with pytest.raises(ChildProcessError):  # it is gone, and was waited for
        os.waitpid(two_cores[0], os.WNOHANG)


def test_an_answer_is_the_same_when_the_second_process_is_killed(two_cores: list[int]) -> None:
    with working_ahead() as exact:
        os.kill(two_cores[0], signal.SIGKILL)
        assert found_by(exact) == found_by(None)


def test_there_is_no_second_process_on_one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0}, raising=False)
    with working_ahead() as exact:
        assert type(exact) is Exact


def test_what_goes_wrong_in_the_second_process_goes_wrong_in_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(layout: Layout) -> int:
        raise LayoutError("no", "remedy")

    monkeypatch.setattr(ahead, "ASKED", (refused, refused, refused))
    with in_a_thread() as exact, pytest.raises(LayoutError):
        exact.step_ns(layouts(1)[0])


def test_the_least_bound_is_replayed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def noted(layout: Layout) -> int:
        done.append(layout.plan.micro_batch)
        return step_ns(layout)

    monkeypatch.setattr(ahead, "ASKED", (noted, noted, noted))
    one, two, four = layouts(1, 2, 4)
    ours, theirs = Pipe()
    exact = Ahead(ours)
    for bound, layout in ((3.0, four), (1.0, one), (2.0, two), (0.5, four)):  # the last one is known
        exact.soon(STEP, bound, layout)
    asked: SimpleQueue[Any] = SimpleQueue()
    while theirs.poll():
        asked.put(theirs.recv())
    worker = Thread(target=ahead._do, args=(asked, theirs))
    worker.start()
    while len(done) < 3:
        exact._receive(wait=True)
    assert exact.step_ns(four) == step_ns(four)
    asked.put(None)
    worker.join()
    assert done == [1, 2, 4]


def test_neither_process_waits_for_the_other_to_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_all, found = Event(), list[bytes]()

    def large(layout: Layout) -> bytes:
        asked_all.wait(2.0)  # or until a pipe that nobody empties is full
        return bytes(2**20)

    monkeypatch.setattr(ahead, "ASKED", (large, large, large))
    (layout,) = layouts(1)
    ours, theirs = Pipe()
    exact = Ahead(ours)

    def ask() -> None:
        exact.soon(STEP, 0.0, layout)
        for bound in range(2000):  # more than a pipe holds
            exact._send(float(bound), 0, STEP, layout)
        asked_all.set()
        found.append(exact._of(STEP, layout))

    Thread(target=ahead._work, args=(theirs,), daemon=True).start()
    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(20.0)
    assert list(map(len, found)) == [2**20]
    ours.close()
