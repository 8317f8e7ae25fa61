"""Serving's one loop: servers, and whatever else happens beside them, on the engine's queue of events.

    arrival -> router -> server;   end of a server's event -> answers -> the client sends on

A server works on one event at a time and says when that ends. The loop keeps one entry of the queue for each server,
and moves it when something has changed the end: `watch`. Of one time the entry of the least priority comes first, then
what was there first. Who drives it says how far: `simulate` and a pool of models to the end, two pools of one server
as they are asked, an emulator by the wall clock.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Listed
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, final

from windtunnel.physics.engine.events import EventQueue, NextEnds
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence
from windtunnel.studies.serving.workload.clients import ClosedLoop, FrontEnd, client_of
from windtunnel.studies.serving.workload.requests import Workload

Action = Callable[[int], None]  # is told the time
Arrive = Callable[[int, int], None]  # time, request
Ended = Callable[[int, int, list[Sequence]], None]  # time, server, the requests that finished


class Server(Protocol):
    """What the loop and the routers need of a replica, or of pools that stand for one."""

    @property
    def next_ns(self) -> int:
        """When its current event ends; `NEVER` where nothing goes on."""

    @property
    def load(self) -> int:
        """Requests that are here."""

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens that wait or are being computed."""

    def known_blocks(self, sequence: Sequence) -> int:
        """Leading blocks of a prompt that a cache has already."""

    def submit(self, sequence: Sequence, now_ns: int) -> None:
        """A request arrives."""

    def advance(self) -> list[Sequence]:
        """The current event ends; returns the finished."""


class Router(Protocol):
    """Chooses a replica."""

    def choose(self, sequence: Sequence, servers: Listed[Server]) -> int:
        """Index of the replica that gets this request."""


@final
class Loop:
    """Servers by place, and other events, on one queue.

    `ended` is called after each end of a server's event, `arrive` with each request that was `sent`.
    """

    __slots__ = ("_arrive", "_end_ns", "_ended", "_priorities", "_tickets", "events", "servers")

    def __init__(self, ended: Ended | None = None, arrive: Arrive | None = None) -> None:
        self.events: EventQueue[Action | int] = EventQueue()  # an action; the server whose event ends; - 1 - a request
        self._arrive = arrive
        self.servers: list[Server | None] = []
        self._ended = ended
        self._end_ns: list[int] = []  # in the queue, by server; `NEVER`: none is
        self._tickets: list[int] = []
        self._priorities: list[int] = []

    def add(self, server: Server, priority: int = 0) -> int:
        """One more server; returns its place."""
        self.servers.append(server)
        self._end_ns.append(NEVER)
        self._tickets.append(0)
        self._priorities.append(priority)
        return len(self.servers) - 1

    def put(self, place: int, server: Server | None) -> None:
        """Another server, or none, at a place: what the one before it was doing never ends."""
        self.servers[place] = server
        self.watch(place)

    def at(self, time_ns: int, action: Action, priority: int = 0) -> None:
        """Something else happens at a time."""
        self.events.push(time_ns, action, priority)

    def sent(self, time_ns: int, request: int, priority: int = 0) -> None:
        """A request arrives at a time."""
        self.events.push(time_ns, -1 - request, priority)

    def watch(self, place: int) -> None:
        """Something has happened to a server: its event may end at another time."""
        server = self.servers[place]
        end_ns = NEVER if server is None else server.next_ns
        before_ns = self._end_ns[place]
        if end_ns == before_ns:
            return
        if before_ns != NEVER:
            self.events.cancel(self._tickets[place])
        self._end_ns[place] = end_ns
        if end_ns != NEVER:
            self._tickets[place] = self.events.push(end_ns, place, self._priorities[place])

    @property
    def next_ns(self) -> int:
        """When the next thing happens; `NEVER` where none does."""
        next_ns = self.events.next_ns()
        return NEVER if next_ns is None else next_ns

    def step(self) -> None:
        """The next thing happens, if there is one."""
        self._go_on(NEVER, once=True)

    def run(self, until_ns: int = NEVER) -> None:
        """Everything happens that does up to a time, that included."""
        self._go_on(until_ns, once=False)

    def _go_on(self, until_ns: int, once: bool) -> None:
        events, servers, ends, tickets, priorities = (
            self.events, self.servers, self._end_ns, self._tickets, self._priorities
        )  # fmt: skip
        push, pop, ended, arrive = events.push, events.pop, self._ended, self._arrive
        while once or until_ns == NEVER or self.next_ns <= until_ns:
            try:
                now_ns, event, _ = pop()
            except IndexError:  # the end
                return
            if not isinstance(event, int):
                event(now_ns)
            elif event < 0:
                assert arrive is not None
                arrive(now_ns, -1 - event)
            else:
                server = servers[event]
                assert server is not None
                finished = server.advance()
                ends[event] = NEVER
                if ended is not None:
                    ended(now_ns, event, finished)
                server = servers[event]
                if server is not None and (end_ns := server.next_ns) != ends[event]:  # unless `ended` has seen to it
                    if ends[event] != NEVER:
                        events.cancel(tickets[event])
                    ends[event] = end_ns
                    if end_ns != NEVER:
                        tickets[event] = push(end_ns, event, priorities[event])
            if once:
                return


@dataclass(frozen=True)
class Rejection:
    """A request that no replica can ever hold."""

    index: int
    reason: str


def rejected(index: int, prompt: int, output: int, longest: int) -> Rejection:
    """The refusal of a request of more than `longest` tokens."""
    return Rejection(index, f"{prompt} + {output} tokens exceed the {longest} that fit")


@contextmanager
def no_collection() -> Iterator[None]:
    """No search for cycles: none are made, and each search walks over all requests so far."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@no_collection()
def simulate(
    workload: Workload,
    servers: Listed[Server],
    router: Router | None,
    *,
    block_size: int,
    longest: int | None = None,
    apart: bool = True,
    adapters: Listed[int] | None = None,
    read_token_s: float = 0.0,
) -> tuple[list[Sequence], list[Rejection]]:
    """Every request with its stamps, and those refused at once because prompt and output exceed `longest` tokens.

    `adapters`: that requests ask for; prefixes are an adapter's own. `apart`: whether servers have nothing in common,
    so that what one does depends on its own requests alone.
    Each request ends exactly once: answered or refused. At one time servers' events end in the order of the servers,
    before requests arrive: what a step plans was planned before them.
    """
    names, span = workload.names_in(block_size)
    prompts, outputs = workload.input_tokens.tolist(), workload.output_tokens.tolist()
    client = client_of(workload)
    reading = FrontEnd(client, prompts, 1e9 * read_token_s) if read_token_s else None
    client = reading or client
    sent: list[Sequence] = []
    refused: list[Rejection] = []

    def request(index: int, now_ns: int) -> Sequence | None:
        prompt, output = prompts[index], outputs[index]
        if longest is not None and prompt + output > longest:
            refused.append(rejected(index, prompt, output, longest))
            return None
        sent_ns = now_ns - reading.waited_ns[index] if reading else now_ns
        sequence = Sequence(index, prompt, output, sent_ns, names[index] if names is not None else (), span)
        if adapters is not None:
            sequence.adapter = adapter = adapters[index]
            sequence.names = tuple((name << 20) + adapter for name in sequence.names)
        sent.append(sequence)
        return sequence

    # Whether it is known when requests arrive.
    open_loop = workload.concurrency is None and workload.turns is None and reading is None
    if open_loop and (len(servers) == 1 or router is not None):
        sequences = [sequence for now_ns, index in client.start() if (sequence := request(index, now_ns)) is not None]
        if router is not None and len(servers) > 1 and not (apart and getattr(router, "in_turn", False)):
            _routed(servers, router, sequences)
            return sent, refused
        sent.clear()
        for place, server in enumerate(servers):  # what one of them gets depends on no other
            sent += _alone(server, sequences[place :: len(servers)])
        return sent, refused

    if workload.concurrency is not None and len(servers) == 1 and isinstance(client, ClosedLoop):
        _kept_full(servers[0], client, request)
        return sent, refused

    def answered(now_ns: int, place: int, finished: list[Sequence]) -> None:
        for sequence in finished:
            for at_ns, following in client.answered(sequence.index, now_ns):
                loop.sent(at_ns, following, after)

    def arrive(now_ns: int, index: int) -> None:
        sequence = request(index, now_ns)
        if sequence is not None:
            place = 0 if router is None or only else router.choose(sequence, servers)
            servers[place].submit(sequence, now_ns)
            watch(place)
        else:
            answered(now_ns, 0, [Sequence(index, prompts[index], outputs[index], now_ns)])
        if later:  # the next one only: a long queue is slow
            at_ns, following = later.pop()
            loop.sent(at_ns, following, first)

    only = len(servers) == 1
    later = client.start()[::-1]
    loop = Loop(answered, arrive)
    for place, server in enumerate(servers):
        loop.add(server, place)
    first, after = len(servers), len(servers) + 1
    watch = loop.watch
    at_ns, index = later.pop()
    loop.sent(at_ns, index, first)
    loop.run()
    return sent, refused


def _routed(servers: Listed[Server], router: Router, arrivals: list[Sequence]) -> None:
    """The same for arrivals that are known: servers' ends are all that happens between them."""
    ends = NextEnds(len(servers), NEVER)

    def end(place: int) -> int:
        server = servers[place]
        server.advance()
        return server.next_ns

    for arrival in arrivals:
        now_ns = arrival.arrival_ns
        ends.run(now_ns, end)
        place = router.choose(arrival, servers)
        server = servers[place]
        server.submit(arrival, now_ns)
        ends.move(place, server.next_ns)
    ends.run(NEVER, end)


def _kept_full(server: Server, client: ClosedLoop, request: Callable[[int, int], Sequence | None]) -> None:
    """The same for one server and slots that send at once when they are answered."""

    def send(now_ns: int, waiting: list[tuple[int, int]]) -> None:
        waiting.reverse()
        while waiting:
            _, index = waiting.pop()
            sequence = request(index, now_ns)
            if sequence is not None:
                server.submit(sequence, now_ns)
            else:
                waiting[:0] = client.answered(index, now_ns)  # refused: the slot goes on

    send(0, list(client.start()))
    while (now_ns := server.next_ns) < NEVER:
        finished = server.advance()
        if finished:
            send(now_ns, [following for sequence in finished for following in client.answered(sequence.index, now_ns)])


def _alone(server: Server, arrivals: list[Sequence]) -> list[Sequence]:
    """The same loop for arrivals that are known and one server: no queue is needed."""
    for arrival in arrivals:
        now_ns = arrival.arrival_ns
        while server.next_ns <= now_ns:
            server.advance()
        server.submit(arrival, now_ns)
    while server.next_ns < NEVER:
        server.advance()
    return arrivals
