"""Requests through replicas: the study's event loop.

    arrival -> router -> replica;   end of a replica's event -> answers -> the client sends on

Two kinds of events in the order of (time, kind, sequence): a replica's end before an arrival of the same nanosecond,
since what a step plans was planned before it. A replica whose run was cut short by an arrival has a new end; the old
entry is passed over when it comes up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from windtunnel.studies.serving.replica.sequence import Sequence
from windtunnel.studies.serving.workload.clients import client_of
from windtunnel.studies.serving.workload.requests import Workload

NEVER = 1 << 62


class Server(Protocol):
    """What the loop needs of a replica."""

    @property
    def next_ns(self) -> int:
        """When its current event ends; `NEVER` where nothing goes on."""

    def submit(self, one: Sequence, now_ns: int) -> None:
        """A request arrives."""

    def advance(self) -> list[Sequence]:
        """The current event ends; returns the finished."""


class Router(Protocol):
    """Chooses a replica."""

    def choose(self, one: Sequence, servers: Listed[Server]) -> int:
        """Index of the replica that gets this request."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A request that no replica can ever hold."""

    index: int
    reason: str


def simulate(
    workload: Workload,
    servers: Listed[Server],
    router: Router | None,
    *,
    block_size: int,
    longest: int | None = None,
) -> tuple[list[Sequence], list[Rejected]]:
    """Every request with its stamps, and those refused at once because prompt and output exceed `longest` tokens.

    Each request ends exactly once: answered or refused.
    """
    names = workload.names_in(block_size)
    prompts, outputs = workload.input_tokens.tolist(), workload.output_tokens.tolist()
    people = client_of(workload)
    sent: list[Sequence] = []
    refused: list[Rejected] = []
    alone = len(servers) == 1 or getattr(router, "in_turn", False)  # what one replica gets depends on no other
    if alone and workload.concurrency is None:
        taken = []
        for pair in people.start():
            index = pair[1]
            if longest is not None and prompts[index] + outputs[index] > longest:
                refused.append(_refusal(index, prompts[index], outputs[index], longest))
            else:
                taken.append(pair)
        for place, server in enumerate(servers):
            _one_server(server, taken[place :: len(servers)], prompts, outputs, names, sent)
        return sent, refused
    begin = deque(people.start())  # in the order of time
    follow: list[tuple[int, int]] = []  # a heap: what answers bring about
    ends: list[tuple[int, int]] = []
    only = servers[0] if len(servers) == 1 or router is None else None
    pending = [0] * len(servers)  # the time last pushed, to pass over what is stale
    while begin or follow or ends:
        coming = NEVER if not begin else begin[0][0]
        if follow and follow[0][0] < coming:
            coming = follow[0][0]
        if ends and ends[0][0] <= coming:
            now_ns, place = heappop(ends)
            server = servers[place]
            if now_ns != server.next_ns or pending[place] != now_ns:
                continue
            pending[place] = 0
            finished = server.advance()
            if server.next_ns < NEVER:
                heappush(ends, (server.next_ns, place))
                pending[place] = server.next_ns
            if workload.concurrency is not None:
                for one in finished:
                    for at, index in people.answered(one.index, now_ns):
                        heappush(follow, (at, index))
            continue
        now_ns, index = heappop(follow) if not begin or begin[0][0] > coming else begin.popleft()
        prompt, output = prompts[index], outputs[index]
        if longest is not None and prompt + output > longest:
            refused.append(_refusal(index, prompt, output, longest))
            for at, following in people.answered(index, now_ns):
                heappush(follow, (at, following))
            continue
        one = Sequence(index, prompt, output, now_ns, names[index] if names is not None else ())
        sent.append(one)
        place = 0 if only is not None else router.choose(one, servers)  # type: ignore[union-attr]
        server = servers[place]
        server.submit(one, now_ns)
        if server.next_ns != pending[place] and server.next_ns < NEVER:
            heappush(ends, (server.next_ns, place))
            pending[place] = server.next_ns
    return sent, refused


def _refusal(index: int, prompt: int, output: int, longest: int) -> Rejected:
    return Rejected(index, f"{prompt} + {output} tokens exceed the {longest} that fit")


def _one_server(
    server: Server,
    arrivals: Listed[tuple[int, int]],
    prompts: list[int],
    outputs: list[int],
    names: list[tuple[int, ...]] | None,
    sent: list[Sequence],
) -> None:
    """The same loop for arrivals that are known and one server: no heap is needed."""
    for now_ns, index in arrivals:
        while server.next_ns <= now_ns:
            server.advance()
        one = Sequence(index, prompts[index], outputs[index], now_ns, names[index] if names is not None else ())
        sent.append(one)
        server.submit(one, now_ns)
    while server.next_ns < NEVER:
        server.advance()
