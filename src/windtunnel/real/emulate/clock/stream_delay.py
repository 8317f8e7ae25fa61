"""Communications of a real rank on a GPU: in the order of streams, on streams of their own, the host never held up.

*Not yet run on a GPU.* Reviewed line by line against PyTorch 2.13's documentation and source; tests run it on a device
that is played.

As NCCL does, each group has a stream. A communication makes it wait for the stream that the script issues from, fills
the outputs there, and holds it by a kernel that spins; whoever waits makes the current stream wait for that. The
tensors are kept until somebody waits, at most to the end of the next step, so that the caching allocator, which knows
nothing of the other stream, does not give their memory away; the allocator itself is untouched.

How long the kernel spins is planned, as the host runs ahead of the device and cannot know when a stream arrives:

    hold = finish of the slowest member - max(own arrival, finish of the one before on the group's stream)

from the replay of the whole job, whose own part is measured by events on the streams, steps behind. What is not planned
is held for what it costs once all are there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from windtunnel.real.capture.virtual_world.peer_data import Exchange, PeerPolicy
from windtunnel.real.emulate.observe import ObservedStep, Observer, identity
from windtunnel.real.emulate.peers.cohort import Watched
from windtunnel.real.emulate.peers.host_program import resembles
from windtunnel.studies.programs.communication import Communication

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

MOST_BEHIND = 64  # steps that the host may be ahead; of more, the first are not looked at
BEHIND = 2  # steps after which events are read: they have long passed, so that reading waits for nothing
SHORTEST_S = 2e-6  # less is what launching the kernel takes anyway


class Device(Protocol):
    """What is needed of a GPU."""

    def current(self) -> torch.cuda.Stream:
        """The stream that the script issues to now."""

    def stream(self, name: str) -> torch.cuda.Stream:
        """A stream of ours, made when first asked for."""

    def record(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        """An event after what the stream was given so far."""

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        """What the stream is given from here on waits for the event."""

    def on(self, stream: torch.cuda.Stream) -> contextlib.AbstractContextManager[object]:
        """What is issued inside goes to the stream."""

    def mark(self, stream: torch.cuda.Stream) -> object:
        """Note the time at which the stream gets here."""

    def spin(self, stream: torch.cuda.Stream, seconds: float, since: object) -> None:
        """Hold the stream until so long after the mark."""

    def seconds(self, first: object, then: object) -> float | None:
        """Between two events; None while they have not both passed."""


@dataclass(slots=True)
class _DelayedCall:
    call: Communication
    arrived: torch.cuda.Event  # event on the issuing stream
    done: torch.cuda.Event  # event on the group's stream
    waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(
        default_factory=list
    )  # before and after a stream waited
    tensors: tuple[object, ...] = ()


@dataclass(slots=True)
class _Step:
    begin: torch.cuda.Event  # event
    holds: list[_DelayedCall] = field(default_factory=list)
    optimizer: torch.optim.Optimizer = None
    ended: torch.cuda.Event | None = None


class StreamDelay:
    """A listener and a peer policy for a world whose tensors are on a GPU."""

    def __init__(
        self,
        device: Device,
        seconds_of: Callable[[Communication], float],
        policy: PeerPolicy,
        *,
        on_step: Callable[[ObservedStep], Sequence[Watched]] | None = None,
        started: Callable[[Communication], None] | None = None,
        filling: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """`on_step(seen)` is told of a step once its events have passed, and gives back the real rank's part of the
        job's replay, from which the next steps are planned. Outputs are filled inside of `filling()`.
        """
        self.device, self.seconds_of, self._policy, self._on_step = device, seconds_of, policy, on_step
        self._started, self._filling = started, filling
        self.policy = PeerPolicy(self.fill)
        self.plan: list[tuple[Communication, float]] = []
        self.unplanned = 0
        self._open: dict[tuple[object, ...], _DelayedCall] = {}
        self._on_host: dict[tuple[object, ...], float] = {}  # calls on tensors of the host -> when they are done
        self._step: _Step | None = None
        self._past: deque[_Step] = deque()
        self._place = 0
        self._lock = threading.RLock()

    # -------------------------------------------------------------------------------------- what the world asks

    def begin(self, call: Communication) -> float | None:
        """Nothing is known of times here; the host goes on."""
        if self._started is not None:
            self._started(call)
        return None

    def fill(self, exchange: Exchange) -> None:
        """Fill the outputs on the group's stream, and hold it."""
        if not any(tensor.is_cuda for tensor in (*exchange.inputs, *exchange.outputs)):
            self._on_host[identity(exchange.call)] = time.perf_counter() + self.seconds_of(exchange.call)
            self._policy.fill(exchange)
            return
        call, device = exchange.call, self.device
        with self._lock:
            issuing, stream = device.current(), device.stream(stream_name(call))
            arrived = device.record(issuing)
            device.wait(stream, arrived)
            since = device.mark(stream)
            with device.on(stream), self._filling():
                self._policy.fill(exchange)
            seconds = self._planned(call)
            if seconds > SHORTEST_S:
                device.spin(stream, seconds, since)
            hold = _DelayedCall(call, arrived, device.record(stream), tensors=(*exchange.inputs, *exchange.outputs))
            self._open[identity(call)] = hold
            if self._step is not None:
                self._step.holds.append(hold)

    def on_wait(self, call: Communication) -> None:
        """The current stream waits for it, and the tensors are the script's alone again."""
        until = self._on_host.pop(identity(call), None)
        if until is not None:  # of tensors on the host: so is the wait
            time.sleep(max(0.0, until - time.perf_counter()))
            return
        with self._lock:
            hold = self._open.pop(identity(call), None)
            if hold is None:
                return
            current = self.device.current()
            before = self.device.record(current)
            self.device.wait(current, hold.done)
            hold.waits.append((before, self.device.record(current)))
            hold.tensors = ()

    @contextlib.contextmanager
    def completing(self, call: Communication) -> Iterator[None]:
        """What records the current stream inside (a CUDA future that is completed) records the group's."""
        with self.device.on(self.device.stream(stream_name(call))):
            yield

    def futures_of(self, works: type[dist.Work]) -> Callable[[], None]:
        """Futures of a class of works are completed in the order of their group's stream; the result undoes that."""
        original = works.get_future

        def get_future(work: dist.Work) -> torch.futures.Future:
            with self.completing(work.calls[0]):
                return original(work)

        works.get_future = get_future

        def undo() -> None:
            works.get_future = original

        return undo

    # ---------------------------------------------------------------------------------------------------- steps

    def optimizer(self) -> None:
        """The optimizer begins."""
        if self._step is not None:
            self._step.optimizer = self.device.record(self.device.current())

    def end_step(self) -> None:
        """A step ends, and the next begins; what is long past is read."""
        with self._lock:
            event = self.device.record(self.device.current())
            if self._past:  # what nobody waited for: futures complete in the order of streams
                for hold in self._past[-1].holds:
                    hold.tensors = ()
                    self._open.pop(identity(hold.call), None)
            if self._step is not None:
                self._step.ended = event
                self._past.append(self._step)
            self._step, self._place = _Step(event), 0
            while len(self._past) > BEHIND:
                observed_step = self._read(self._past[0])
                if observed_step is None and len(self._past) < MOST_BEHIND:
                    break  # the host is further ahead: it is read at a later step's end
                self._past.popleft()
                if observed_step is not None and self._on_step is not None:
                    self.plan = stream_holds(self._on_step(observed_step))

    def _planned(self, call: Communication) -> float:
        place, self._place = self._place, self._place + 1
        if place < len(self.plan) and resembles(call, self.plan[place][0]):
            return self.plan[place][1]
        self.unplanned += bool(self.plan)
        return self.seconds_of(call)

    def _read(self, step: _Step) -> ObservedStep | None:
        """Events of a step as marks, in seconds from its begin; None when one has not passed."""

        def at(event: torch.cuda.Event) -> float:
            seconds = self.device.seconds(step.begin, event)
            if seconds is None:
                raise _NotYetError
            return seconds

        try:
            marks: list[tuple[float, int, int, float]] = []  # when, which, place, when it was left
            for place, hold in enumerate(step.holds):
                marks.append((at(hold.arrived), 0, place, at(hold.done)))
                marks += [(at(before), 1, place, at(after)) for before, after in hold.waits]
            if step.optimizer is not None:
                marks.append((at(step.optimizer), 2, -1, 0.0))
            ended = at(step.ended)
        except _NotYetError:
            return None
        observer = Observer(0.0)
        for when, which, place, left in sorted(marks):
            if which == 0:
                observer.begin(step.holds[place].call, when)
                observer.due(len(observer.calls) - 1, left)
            elif which == 1:
                observer.on_wait(step.holds[place].call, when, left)
            else:
                observer.optimizer(when)
        return observer.end(ended)


class _NotYetError(Exception):
    """An event has not passed."""


def stream_holds(replayed: Sequence[Watched]) -> list[tuple[Communication, float]]:
    """How long each communication holds its stream, from the real rank's part of a replay of one step."""
    free: dict[str, float] = {}
    holds = []
    for event in replayed:
        if event.what != "communication" or event.call is None:
            continue
        name = stream_name(event.call)
        start = max(event.begin_s, free.get(name, event.begin_s))
        free[name] = event.finish
        holds.append((event.call, max(0.0, event.finish - start)))
    return holds


def stream_name(call: Communication) -> str:
    """NCCL's: one stream per group; messages between two ranks have one per pair and direction here."""
    return f"{call.group} {call.kind} {call.peer}" if call.is_message else call.group
