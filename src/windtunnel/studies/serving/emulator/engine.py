"""The fleet on the wall clock: requests in, tokens out, nothing left behind.

    submit -> Answer;   one task sleeps until the next token, hands tokens to their answers, and wakes who waits

Late is late: a token that is handed on after its time is counted with its lag, and no later token is moved by it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from collections.abc import Sequence as Listed
from dataclasses import dataclass
from typing import TextIO, final

from windtunnel.studies.serving.emulator.api_request import ApiError, ApiRequest
from windtunnel.studies.serving.emulator.clock import Clock
from windtunnel.studies.serving.emulator.fleet import Fleet, Output
from windtunnel.studies.serving.emulator.metrics import Metrics
from windtunnel.studies.serving.emulator.tokens import in_blocks
from windtunnel.studies.serving.replica.sequence import NEVER, Sequence

LONGEST_SLEEP_S = 3600.0
UNNAMED = 256  # tokens of an answer for which neither the request nor the server has a length


@dataclass(frozen=True, slots=True)
class Loss:
    """A replica that is lost at a time, and back after another (None: never)."""

    replica: int
    at_ns: int
    back_ns: int | None


@final
class Answer:
    """What one request has got so far. `ready` is set when something is new; whoever reads it clears it."""

    __slots__ = (
        "arrival_ns", "done", "error", "first_ns", "index", "last_ns", "length", "ready", "request", "sequence",
        "tokens",
    )  # fmt: skip

    def __init__(self, index: int, request: ApiRequest, length: int, sequence: Sequence, arrival_ns: int) -> None:
        self.index, self.request, self.length, self.sequence = index, request, length, sequence
        self.tokens = 0
        self.done = False
        self.error: ApiError | None = None
        self.arrival_ns = self.first_ns = self.last_ns = arrival_ns
        self.ready = asyncio.Event()


@final
class Engine:
    """A fleet, its clock, and the requests that are on their way.

    `draw` gives the natural length of the next answer; None: answers are as long as their request says. `record` gets a
    CSV line for each request, in the form that `windtunnel serve --workload` reads.
    """

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        *,
        block_size: int,
        draw: Callable[[], int] | None = None,
        most_waiting: int = 4096,
        losses: Listed[Loss] = (),
        record: TextIO | None = None,
    ) -> None:
        self.fleet, self.clock = fleet, clock
        self.block_size = block_size
        self.metrics = Metrics()
        self.answers: dict[int, Answer] = {}
        self.broken = ""  # why the task that hands out tokens has ended, where it has
        self._draw = draw
        self._most_waiting = most_waiting
        self._plans = sorted(
            [(loss.at_ns, 0, loss.replica) for loss in losses]
            + [(loss.back_ns, 1, loss.replica) for loss in losses if loss.back_ns is not None]
        )
        self._record = record
        self._count = 0
        self._wake = asyncio.Event()
        if record is not None:
            record.write("input_tokens,output_tokens,arrival_ns,prefix_block_ids\n")

    def submit(self, request: ApiRequest) -> Answer:
        """Send a request to the fleet. Raises ApiError where it cannot take any."""
        if self.broken:
            raise ApiError(500, f"the engine has stopped: {self.broken}", "server_error")
        now_ns = self.clock.now_ns()
        waiting = sum(len(replica.waiting) for replica in self.fleet.replicas if replica is not None)
        if waiting >= self._most_waiting:
            self.metrics.refused += 1
            raise ApiError(503, f"{waiting} requests wait already: try again later", "overloaded_error")
        length = request.most
        if not (request.exact and request.has_own_most) and not (self._draw is None and request.has_own_most):
            natural = UNNAMED if self._draw is None else self._draw()
            length = max(1, request.least, min(request.most, natural))
        sequence = Sequence(self._count, request.prompt, length, now_ns, in_blocks(request.names, self.block_size))
        answer = Answer(self._count, request, length, sequence, now_ns)
        if not self.fleet.submit(sequence, now_ns):
            self.metrics.refused += 1
            raise ApiError(503, "no replica is left to serve this request", "server_error")
        self._count += 1
        self.answers[answer.index] = answer
        self._wake.set()
        if self._record is not None:
            self._record.write(f"{request.prompt},{length},{now_ns},{' '.join(map(str, request.names))}\n")
        return answer

    def drop(self, answer: Answer) -> None:
        """The client of an answer has gone, or has got all of it."""
        if self.answers.pop(answer.index, None) is not None and not answer.done:
            self.fleet.cancel(answer.index, self.clock.now_ns())
            self.metrics.ended["abort"] += 1
            self._wake.set()

    async def run(self) -> None:
        """Hand out tokens for ever."""
        try:
            while True:
                now_ns = self.clock.now_ns()
                self._wake.clear()
                while self._plans and self._plans[0][0] <= now_ns:
                    _, back, place = self._plans.pop(0)
                    if back:
                        self.fleet.restore(place, now_ns)
                    else:
                        self.metrics.lost += self.fleet.lose(place, now_ns)
                news = self.fleet.advance(now_ns)
                news.sort(key=self._has_begun)  # writing takes time too, and a first token is waited for most
                first = True
                for output in news:
                    if first and self._has_begun(output):
                        first = False
                        await asyncio.sleep(0)  # those who got their first token write now
                    self._hand_out(output, now_ns)
                coming = self.fleet.next_ns(now_ns)
                if self._plans:
                    coming = min(coming, self._plans[0][0])
                sleep_s = self.clock.real_s(coming) if coming < NEVER else LONGEST_SLEEP_S
                if sleep_s <= 0.0:
                    await asyncio.sleep(0)
                    continue
                try:
                    async with asyncio.timeout(min(sleep_s, LONGEST_SLEEP_S)):
                        await self._wake.wait()
                except TimeoutError:
                    pass
        except Exception as error:
            self.broken = str(error) or type(error).__name__
            for answer in self.answers.values():
                answer.error = ApiError(500, f"the engine has stopped: {self.broken}", "server_error")
                answer.done = True
                answer.ready.set()
            raise

    def _has_begun(self, output: Output) -> bool:
        answer = self.answers.get(output.index)
        return answer is None or answer.tokens > 0

    def _hand_out(self, output: Output, now_ns: int) -> None:
        answer = self.answers.get(output.index)
        if answer is None or answer.done:
            return
        metrics = self.metrics
        metrics.lag.add((now_ns - output.at_ns) * 1e-9 / self.clock.speed)
        if output.tokens:
            gap_s = (output.at_ns - answer.last_ns) * 1e-9
            if answer.tokens == 0:
                metrics.ttft.add(gap_s)
                metrics.prompt_tokens += answer.request.prompt
                metrics.queue.add((answer.sequence.scheduled_ns - answer.arrival_ns) * 1e-9)
                if output.tokens > 1:
                    metrics.itl.add(gap_s / output.tokens, output.tokens - 1)
            else:
                metrics.itl.add(gap_s / output.tokens, output.tokens)
            answer.last_ns = output.at_ns
            answer.tokens += output.tokens
            metrics.output_tokens += output.tokens
        if answer.tokens == output.tokens:
            answer.first_ns = output.at_ns
        if output.lost:
            answer.error = ApiError(503, "the replica that served this request was lost", "server_error")
            metrics.ended["error"] += 1
        elif output.finished:
            metrics.e2e.add((output.at_ns - answer.arrival_ns) * 1e-9)
            decode_s, begun_ns = (output.at_ns - answer.first_ns) * 1e-9, answer.sequence.scheduled_ns
            metrics.prefill.add((answer.first_ns - begun_ns) * 1e-9)
            metrics.decode.add(decode_s)
            metrics.inference.add((output.at_ns - begun_ns) * 1e-9)
            if answer.length > 1:
                metrics.per_token.add(decode_s / (answer.length - 1))
            metrics.most_sizes.add(answer.request.most)
            metrics.prompt_sizes.add(answer.request.prompt)
            metrics.output_sizes.add(answer.length)
            metrics.ended["length" if answer.length == answer.request.most else "stop"] += 1
        if output.finished:
            answer.done = True
            del self.answers[output.index]
        answer.ready.set()
