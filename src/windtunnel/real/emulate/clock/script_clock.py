"""The joint between a running script and the conductor: what the virtual world asks at each communication.

`begin` answers with an `Awaited`: a time on `time.perf_counter`'s clock that may not be known yet. Whoever waits asks
how long there is left, which also tells when the host began to wait: the first time that the script's own thread asks.
Steps end with the first optimizer that the script was seen to step, by PyTorch's public hooks on all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from windtunnel.errors import UserError
from windtunnel.real.emulate.clock.compute_time import ComputeTime
from windtunnel.real.emulate.conductor import Conductor, Ticket
from windtunnel.real.emulate.observe import Came, ObservedStep, identity
from windtunnel.real.emulate.several.company import Company
from windtunnel.studies.programs.communication import Communication

if TYPE_CHECKING:
    import torch

    from windtunnel.real.operator_call import Arguments, Keywords

_ASK_AGAIN_S = 1e-3
PATIENCE_S = 5.0  # for other threads of the script to begin what this wait hangs on


class HangError(UserError):
    """The real rank waits for what no peer will ever begin."""


class Awaited:
    """When a communication of the script is done, as far as it is known. Satisfies `Completion`.

    `asks`: the thread `thread`, the script's, begins to wait for it, and when that is by the rank's time.
    """

    __slots__ = ("asked_at", "asks", "call", "company", "lock", "since", "thread", "ticket")

    def __init__(
        self,
        ticket: Ticket,
        call: Communication,
        thread: int,
        asks: Callable[[Ticket], float],
        lock: AbstractContextManager[object] | None = None,
        company: Company | None = None,
    ) -> None:
        self.ticket, self.call, self.thread, self.asks, self.company = ticket, call, thread, asks, company
        self.lock = lock if lock is not None else nullcontext()  # of the conductor: other threads ask too
        self.asked_at: float | None = None  # when the script's thread first asked how long there is left
        self.since: float | None = None  # since when it asks without an answer

    def end_s(self) -> float | None:
        """The time, or None."""
        with self.lock:
            return self.ticket.due()

    def seconds_left(self) -> float:
        """Seconds until then. Raises HangError where the script's own thread would wait for ever."""
        mine = threading.get_ident() == self.thread
        if mine and self.asked_at is None:
            self.asked_at = self.asks(self.ticket)
        now = time.perf_counter()
        due = self.end_s()
        if due is not None:
            if mine and self.since is not None and self.company is not None:
                self.since = None
                self.company.waits(False)
            return due - now
        if mine:
            if self.since is None:
                self.since = now
                if self.company is not None:
                    self.company.waits(True)
            stuck = self.company.is_stuck() if self.company is not None else now - self.since > PATIENCE_S
            if stuck:
                raise HangError(_hang(self.call))
        return _ASK_AGAIN_S


class ScriptClock:
    """A listener of a virtual world. One thread runs the script; others may ask."""

    def __init__(
        self,
        conductor: Conductor,
        *,
        on_step: Callable[[int, ObservedStep | None], bool] | None = None,
        learns: Callable[[], bool] = lambda: True,
        started: Callable[[Communication, Ticket | None], None] | None = None,
        own: ComputeTime | None = None,
    ) -> None:
        """`on_step(number, seen)` says whether it took time that is not the job's: the next step then begins after it.

        `learns` says whether the step that ends was an ordinary one. `started` is told of every communication that was
        begun, with its ticket (None: a control message). `own` is the clock of the script's thread, kept still inside
        of calls by who made it.
        """
        self.conductor, self._on_step, self._learns, self._started = conductor, on_step, learns, started
        self.own = own or ComputeTime()
        self._lock = threading.RLock()
        self._thread = threading.get_ident()
        self._open: dict[tuple[object, ...], Awaited] = {}  # what was not waited for
        self._begun: list[Awaited] = []  # in this step
        self.steps = 0

    def begin(self, call: Communication) -> Awaited | None:
        """The script arrives at a communication. When it is done."""
        if call.is_control:
            if self._started is not None:
                self._started(call, None)
            return None
        own = self.own
        with self._lock:
            came = Came(own.rank_time_s(), own.cpu())
            own.reach(came.at + self.conductor.share(came.at))
            ticket = self.conductor.begin(call, own.rank_time_s(), own.cpu(), came)
            due = Awaited(ticket, call, self._thread, self._asks, self._lock, self.conductor.company)
            self._open[identity(call)] = due
            self._begun.append(due)
            if len(self._open) > 4096:
                self._open.pop(next(iter(self._open)))
        if self._started is not None:
            self._started(call, ticket)
        return due

    def _asks(self, ticket: Ticket) -> float:
        """The script begins to wait: first what else its processor still has to do."""
        now = self.own.rank_time_s()
        self.own.reach(now + self.conductor.share(now, ticket))
        return self.own.rank_time_s()

    def on_wait(self, call: Communication) -> None:
        """The script has waited for it."""
        due = self._open.pop(identity(call), None)
        if due is None or threading.get_ident() != self._thread:
            return
        with self._lock:
            entered = due.asked_at if due.asked_at is not None else self.own.rank_time_s()
            until = due.end_s()
            left = entered if until is None else max(entered, until)
            self.own.be_at(left)
            self.conductor.on_wait(call, entered, left, self.own.cpu())

    def optimizer(self) -> None:
        """The step's optimizer begins: what nobody was seen to wait for was waited for."""
        with self._lock, self.own.standing():
            wall = time.perf_counter()
            for begin in self._begun:
                due = begin.end_s() if self._open.get(identity(begin.call)) is begin else None
                if due is not None and due <= wall:
                    self.own.reach(due)
            self.conductor.optimizer(self.own.rank_time_s(), self.own.cpu())

    def end_step(self) -> None:
        """The step's optimizer is done."""
        with self._lock, self.own.standing():
            observed_step = self.conductor.end_step(self.own.rank_time_s(), self.own.cpu(), learns=self._learns())
            self.steps += 1
            self._begun.clear()
            looked_on = self._on_step is not None and self._on_step(self.steps, observed_step)
            # Several real ranks go by the times that they tell each other, however late these are.
            alone = self.conductor.company is None
            too_much = (
                alone and observed_step is not None and self.own.behind > observed_step.ended - observed_step.begin_s
            )
            if too_much:
                self.own.given_up += self.own.behind
            if too_much or looked_on or observed_step is None:
                self.own.be_at(time.perf_counter())
                self.conductor.begin_anew(self.own.rank_time_s(), self.own.cpu())


def optimizer_hooks(
    begins: Callable[[], None], ends: Callable[[], None], each: Callable[[object], None] | None = None
) -> Callable[[], None]:
    """Watch all optimizers: `begins` and `ends` are told of the one that the script stepped first, `each` of all before
    they step. The result undoes that.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    first: list[int] = []

    def before_step(optimizer: torch.optim.Optimizer, args: Arguments, kwargs: Keywords) -> None:
        if not first or first[0] == id(optimizer):
            begins()
        if each is not None:
            each(optimizer)

    def after_step(optimizer: torch.optim.Optimizer, args: Arguments, kwargs: Keywords) -> None:
        if not first:
            first.append(id(optimizer))
        if first[0] == id(optimizer):
            ends()

    handles = (register_optimizer_step_pre_hook(before_step), register_optimizer_step_post_hook(after_step))

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def _hang(call: Communication) -> str:
    toward = f" with rank {call.peer}" if call.is_message else ""
    return (
        f"this rank waits for {call.kind}{toward} in group {call.group} ({len(call.members)} ranks, number "
        f"{call.sequence}), which its peers' programs never come to; on a cluster the script would hang here too, "
        "unless it takes another branch there: check who sends to whom"
    )
