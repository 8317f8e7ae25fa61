"""A second process that measures and replays plans ahead of the search, so that a search keeps two cores busy.

Whoever searches says which plans may come up, and at which bound; the second process takes the one with the least
bound first. What it finds is what the searching process would find, so an answer is the same however the two are
scheduled; only replays that nobody came to ask for were in vain. It also loads the compiled code, while the searching
process lists structures. Where it is gone, or something went wrong in it, the searching process does the work itself,
and meets the error itself.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from heapq import heappop, heappush
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from windtunnel.physics.step.result import Result
from windtunnel.process import die_with_parent, signals_after_a_fork
from windtunnel.studies.planning.oracle import Layout, laid_out, memory_bytes, predict, step_ns

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from windtunnel.physics.hardware import Cluster
    from windtunnel.physics.model import Model
    from windtunnel.studies.training.plan import Plan

MEMORY, STEP, RESULT = range(3)  # what is asked of a plan
AT_ONCE = float("-inf")


def predicted(layout: Layout) -> Result:
    """What `predict` says of a plan, without the excerpt of its timeline."""
    return replace(predict(layout.model, layout.cluster, layout.user_plan), excerpt=())


ASKED: tuple[Callable[[Layout], object], ...] = (memory_bytes, step_ns, predicted)


class Exact:
    """What a search asks of single plans, found in this process when it is asked."""

    def soon(self, what: int, bound: float, layout: Layout) -> None:
        """This may be asked of the plan; what has the least bound comes first."""

    def _of(self, what: int, layout: Layout) -> Any:
        return ASKED[what](layout)

    def memory_bytes(self, layout: Layout) -> int:
        """What the fullest rank needs on its device."""
        return int(self._of(MEMORY, layout))

    def step_ns(self, layout: Layout) -> int:
        """Step time, replayed."""
        return int(self._of(STEP, layout))

    def predicted(self, layout: Layout) -> Result:
        """The whole prediction, without the excerpt of its timeline."""
        result: Result = self._of(RESULT, layout)
        return result


class Ahead(Exact):
    """The same, found in a second process at the other end of a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection
        self._numbers: dict[tuple[int, int], tuple[int, Layout]] = {}  # the layout is kept, and so its identity
        self._jobs: dict[tuple[int, int], tuple[Cluster, Model]] = {}
        self._answers: dict[int, object] = {}

    def soon(self, what: int, bound: float, layout: Layout) -> None:
        """Ask the second process for it, unless that was done before."""
        if (what, id(layout)) not in self._numbers:
            number = len(self._numbers)
            self._numbers[what, id(layout)] = (number, layout)
            self._send(bound, number, what, layout)

    def _of(self, what: int, layout: Layout) -> object:
        entry = self._numbers.get((what, id(layout)))
        self._receive(wait=False)
        if entry is None:
            self.soon(what, AT_ONCE, layout)
        elif entry[0] not in self._answers:
            self._send(AT_ONCE, entry[0], what, layout)
        number, _ = self._numbers[what, id(layout)]
        while self._connection is not None and number not in self._answers:
            self._receive(wait=True)
        answer = self._answers.get(number)
        return ASKED[what](layout) if answer is None else answer

    def _send(self, bound: float, number: int, what: int, layout: Layout) -> None:
        if self._connection is None:
            return
        job = (id(layout.cluster), id(layout.model))
        try:
            if job not in self._jobs:
                self._jobs[job] = (layout.cluster, layout.model)
                self._connection.send((job, self._jobs[job]))
            self._connection.send((bound, number, what, job, layout.user_plan))
        except OSError:  # it is gone
            self._connection = None

    def _receive(self, *, wait: bool) -> None:
        """Take all that was found so far; `wait`: at least one."""
        try:
            while self._connection is not None and (wait or self._connection.poll()):
                number, answer = self._connection.recv()
                self._answers[number] = answer
                wait = False
        except (OSError, EOFError):  # it is gone
            self._connection = None


@contextmanager
def working_ahead() -> Iterator[Exact]:
    """A second process for as long as this lasts; this one where there is no second core, or where it cannot fork."""
    forks = sys.platform == "linux" and threading.active_count() == 1
    if not forks or len(os.sched_getaffinity(0)) < 2:
        yield Exact()
        return
    from multiprocessing import Pipe

    ours, theirs = Pipe()
    parent = os.getpid()
    with signals_after_a_fork():
        child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the searching process ends both
            die_with_parent(parent)
            ours.close()
            _work(theirs)
        finally:
            os._exit(0)
    theirs.close()
    try:
        yield Ahead(ours)
    finally:
        ours.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _work(connection: Connection) -> None:
    """Do what is asked until the searching process is through.

    A thread takes it in also while an answer is sent: else each process may wait for the other to make room.
    """
    messages: SimpleQueue[object] = SimpleQueue()
    threading.Thread(target=_take_in, args=(connection, messages), daemon=True).start()
    from windtunnel.physics.engine.compiled import kernels  # noqa: F401

    _do(messages, connection)


def _take_in(connection: Connection, messages: SimpleQueue[object]) -> None:
    """All that comes, and None at its end."""
    with suppress(EOFError, OSError):
        while True:
            messages.put(connection.recv())
    messages.put(None)


def _do(messages: SimpleQueue[Any], connection: Connection) -> None:
    """What has the least bound comes first."""
    jobs: dict[object, tuple[Cluster, Model]] = {}
    waiting: list[tuple[float, int, int, object, Plan]] = []
    done: set[int] = set()
    while True:
        while not waiting or not messages.empty():
            message = messages.get()
            if message is None:
                return
            if len(message) == 2:
                jobs[message[0]] = message[1]
            else:
                heappush(waiting, message)
        _, number, what, job, plan = heappop(waiting)
        if number in done:
            continue
        done.add(number)
        cluster, model = jobs[job]
        try:
            answer = ASKED[what](laid_out(model, cluster, plan))
        except Exception:  # the searching process does it again and meets the same error
            answer = None
        connection.send((number, answer))
