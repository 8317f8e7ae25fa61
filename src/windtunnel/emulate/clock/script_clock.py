"""The joint between a running script and the conductor: what the virtual world asks at each communication.

`begin` answers with a `Due`: a time on `time.perf_counter`'s clock that may not be known yet. It is asked for by
whoever waits, which also tells when the host began to wait: the first question that the script's own thread asks by
subtraction. Steps end with the first optimizer that the script was seen to step, by PyTorch's public hooks on all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from windtunnel.emulate.clock.compute_time import ComputeTime
from windtunnel.emulate.conductor import Conductor, Ticket
from windtunnel.emulate.observe import Came, ObservedStep
from windtunnel.emulate.several.company import Company
from windtunnel.errors import UserError
from windtunnel.programs.communication import Communication

_ASK_AGAIN_S = 1e-3
PATIENCE_S = 5.0  # for other threads of the script to begin what this wait hangs on


class HangError(UserError):
    """The real rank waits for what no peer will ever begin."""


class Due(float):
    """When a communication is done, as far as it is known; compares and subtracts as that time."""

    __slots__ = ("asked_at", "asks", "call", "company", "lock", "since", "thread", "ticket")

    ticket: Ticket
    call: Communication
    thread: int
    asks: Callable[[Ticket], float]
    asked_at: float | None  # when the script's thread first asked how long there is left, by the rank's time
    since: float | None  # since when it asks without an answer
    lock: Any  # of the conductor: other threads ask too
    company: Company | None

    def __new__(
        cls,
        ticket: Ticket,
        call: Communication,
        thread: int,
        asks: Callable[[Ticket], float],
        lock: Any = None,
        company: Company | None = None,
    ) -> Due:
        """A time that `ticket` is asked for; `asks`: the thread `thread` begins to wait for it, and when that is."""
        made = super().__new__(cls, float("nan"))
        made.ticket, made.call, made.thread, made.asks = ticket, call, thread, asks
        made.asked_at = made.since = None
        made.lock, made.company = lock if lock is not None else nullcontext(), company
        return made

    def known(self) -> float | None:
        """The time, or None."""
        with self.lock:
            return self.ticket.due()

    def __sub__(self, now: float) -> float:
        mine = threading.get_ident() == self.thread
        if mine and self.asked_at is None:
            self.asked_at = self.asks(self.ticket)
            now = time.perf_counter()
        due = self.known()
        if due is not None:
            if mine and self.since is not None and self.company is not None:
                self.since = None
                self.company.waits(False)
            return due - now
        if mine and self.company is not None:
            if self.since is None:
                self.since = now
                self.company.waits(True)
            if self.company.is_stuck():
                raise HangError(_hang(self.call))
        elif mine:
            self.since = self.since if self.since is not None else now
            if now - self.since > PATIENCE_S:
                raise HangError(_hang(self.call))
        return _ASK_AGAIN_S

    def _against(self, other: object) -> tuple[float, float]:
        due = self.known()
        theirs = other.known() if isinstance(other, Due) else float(other)  # type: ignore[arg-type]
        return float("inf") if due is None else due, float("inf") if theirs is None else theirs

    def __lt__(self, other: object) -> bool:
        mine, theirs = self._against(other)
        return mine < theirs

    def __le__(self, other: object) -> bool:
        mine, theirs = self._against(other)
        return mine <= theirs

    def __gt__(self, other: object) -> bool:
        mine, theirs = self._against(other)
        return mine > theirs

    def __ge__(self, other: object) -> bool:
        mine, theirs = self._against(other)
        return mine >= theirs

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __hash__(self) -> int:
        return id(self)


class Listening:
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
        self._open: dict[tuple[object, ...], Due] = {}  # what was not waited for
        self._begun: list[Due] = []  # in this step
        self.steps = 0
        self.control = 0  # control messages, answered at once

    def begin(self, call: Communication) -> float | None:
        """The script arrives at a communication. When it is done."""
        if call.is_control:
            self.control += 1
            if self._started is not None:
                self._started(call, None)
            return None
        own = self.own
        with self._lock:
            came = Came(own.now(), own.cpu())
            own.reach(came.at + self.conductor.share(came.at))
            ticket = self.conductor.begin(call, own.now(), own.cpu(), came)
            due = Due(ticket, call, self._thread, self._asks, self._lock, self.conductor.company)
            self._open[_identity(call)] = due
            self._begun.append(due)
            if len(self._open) > 4096:
                self._open.pop(next(iter(self._open)))
        if self._started is not None:
            self._started(call, ticket)
        return due

    def _asks(self, ticket: Ticket) -> float:
        """The script begins to wait: first what else its processor still has to do."""
        now = self.own.now()
        self.own.reach(now + self.conductor.share(now, ticket))
        return self.own.now()

    def waited(self, call: Communication) -> None:
        """The script has waited for it."""
        due = self._open.pop(_identity(call), None)
        if due is None or threading.get_ident() != self._thread:
            return
        with self._lock:
            entered = due.asked_at if due.asked_at is not None else self.own.now()
            until = due.known()
            left = entered if until is None else max(entered, until)
            self.own.be_at(left)
            self.conductor.waited(call, entered, left, self.own.cpu())

    def optimizer(self) -> None:
        """The step's optimizer begins: what nobody was seen to wait for was waited for."""
        with self._lock, self.own.standing():
            wall = time.perf_counter()
            for one in self._begun:
                due = one.known() if self._open.get(_identity(one.call)) is one else None
                if due is not None and due <= wall:
                    self.own.reach(due)
            self.conductor.optimizer(self.own.now(), self.own.cpu())

    def end_step(self) -> None:
        """The step's optimizer is done."""
        with self._lock, self.own.standing():
            seen = self.conductor.end_step(self.own.now(), self.own.cpu(), learns=self._learns())
            self.steps += 1
            self._begun.clear()
            looked_on = self._on_step is not None and self._on_step(self.steps, seen)
            # Several real ranks go by the times that they tell each other, however late these are.
            alone = self.conductor.company is None
            too_much = alone and seen is not None and self.own.behind > seen.ended - seen.begun
            if too_much:
                self.own.given_up += self.own.behind
            if too_much or looked_on or seen is None:
                self.own.be_at(time.perf_counter())
                self.conductor.begin_anew(self.own.now(), self.own.cpu())


def optimizer_hooks(
    begins: Callable[[], None], ends: Callable[[], None], each: Callable[[Any], None] | None = None
) -> Callable[[], None]:
    """Watch all optimizers: `begins` and `ends` are told of the one that the script stepped first, `each` of all before
    they step. The result undoes that.
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    first: list[int] = []

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not first or first[0] == id(optimizer):
            begins()
        if each is not None:
            each(optimizer)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not first:
            first.append(id(optimizer))
        if first[0] == id(optimizer):
            ends()

    handles = (register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after))

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo


def _identity(call: Communication) -> tuple[object, ...]:
    return (call.group, call.kind, call.peer, call.tag, call.sequence)


def _hang(call: Communication) -> str:
    toward = f" with rank {call.peer}" if call.is_message else ""
    return (
        f"this rank waits for {call.kind}{toward} in group {call.group} ({len(call.members)} ranks, number "
        f"{call.sequence}), which its peers' programs never come to; on a cluster the script would hang here too, "
        "unless it takes another branch there: check who sends to whom"
    )
