"""A MuxServe unit: several models on one mesh of GPUs, their prompts and decodes as jobs with SM shares, one KV pool.

    shares    a job starts when the shares of what runs leave it room; a tenth of the SMs may be given twice, twice
    ADBS      prompts of one model after the other, at most 2,048 tokens each; decodes only while a prompt job runs or
              none could be asked for; as many sequences of a model as its share of the pool holds
    together  each job as fast as with its own share alone, as long as shares sum to 100 % and the memory's bandwidth
              is not asked for twice; else all slow down alike
    quota     starts at a share of rate x KV per token; every 8 s a model that uses over 90 % of it and has a queue
              takes a tenth of its batch from those under 90 %
    fcfs      the whole GPU to one job at a time (temporal sharing): the prompts of whoever waits longest, else a decode
              of the model that has the oldest request

With one model ADBS on all SMs is spatial partitioning. The pool holds what is there of each sequence: where a step
would overflow it, the newest of that model gives its cache back and starts anew. MuxServe (ICML '24); rules and
constants: its muxsched/scheduler.py and resource.py. Who runs together decides when the next of them ends, so one event
of all jobs waits in the engine's queue.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, Protocol

from windtunnel.physics.engine.events import EventQueue

PROMPT_TOKENS = 2048  # of one prompt job
ADAPT_EVERY_S = 8.0  # how often quotas move
BUSY, STEP = 0.9, 0.1  # from which use on a model asks for more, and how much of its batch it gets
NS = 1e9
GIVEN = 120.0  # percent of SMs that may be given out: two parts of ten twice


class ShareTimes(Protocol):
    """Times of one model on the GPUs of its unit, by the share of their SMs in percent."""

    def prefill_s(self, sm_percent: float, tokens: float) -> float:
        """Prompts of so many tokens in all."""

    def decode_s(self, sm_percent: float, batch: int, context: float) -> float:
        """One step of `batch` sequences of a mean context."""


@dataclass(order=True, slots=True)
class UnitRequest:
    """One request, and when it got its first and its last token (-1: not yet). `index`: its own among its model's."""

    arrival_s: float
    prompt: int
    output: int
    index: int = 0
    first_s: float = field(default=-1.0, compare=False)
    last_s: float = field(default=-1.0, compare=False)


@dataclass(eq=False)
class Llm:
    """One model of a unit: what it costs, what it is asked, and where it stands."""

    name: str
    table: ShareTimes
    requests: list[UnitRequest]
    prefill_sm: float
    decode_sm: float
    step_s: float  # host time of a step
    sequence_s: float  # host time of one sequence in a step
    most: float  # sequences at once: its quota
    weight_bytes: float  # on one GPU
    kv_token_bytes: float  # of one token on one GPU
    bandwidth_bytes_per_s: float  # of one GPU's memory, as kernels reach it
    waiting: deque[UnitRequest] = field(default_factory=deque)
    ends: list[tuple[int, float, UnitRequest]] = field(
        default_factory=list
    )  # (decode step, arrival, request), in order
    steps: int = 0
    prefilling: int = 0
    context: int = 0  # sum over the batch
    fresh: list[UnitRequest] = field(default_factory=list)  # whose prompts are done, to join
    decoding: bool = False
    last_finish_s: float = 0.0
    finished: int = 0
    latency_s: float = 0.0
    preemptions: int = 0
    batches: deque[int] = field(default_factory=lambda: deque(maxlen=500))  # of the last decode steps

    @property
    def inside(self) -> int:
        """Sequences that count against the quota."""
        return len(self.ends) + len(self.fresh) + self.prefilling


@dataclass(eq=False, slots=True)
class _Job:
    llm: Llm
    left_s: float
    share: float
    bandwidth: float
    prompts: list[UnitRequest] | None  # None: decode


@dataclass(frozen=True, slots=True)
class LlmAnswer:
    """What one model did."""

    name: str
    requests: int
    throughput_per_s: float  # requests over the time until the last of them ended
    mean_latency_s: float


@dataclass(eq=False)
class _Unit:
    llms: list[Llm]
    pool_bytes: float  # of one GPU
    held_bytes: float = 0.0
    full: bool = False  # no prompts until somebody ends
    turn: int = 0  # whose prompts are next
    decode_turn: int = 0
    jobs: list[_Job] = field(default_factory=list)


def run_unit(llms: list[Llm], policy: Literal["adbs", "fcfs"], pool_bytes: float) -> list[LlmAnswer]:
    """All requests of all models through one unit; `pool_bytes` of KV cache on every GPU."""
    unit = _Unit(llms, pool_bytes)
    start = _adbs if policy == "adbs" else _fcfs
    queue: EventQueue[tuple[Llm, UnitRequest] | None] = EventQueue()  # a request that comes, or None: a job ends
    for llm in llms:
        for request in llm.requests:
            queue.push(math.ceil(request.arrival_s * NS), (llm, request))
    now, slow, adapt_at, ends = 0.0, 1.0, ADAPT_EVERY_S, 0
    while queue:
        now_ns = queue.next_ns()
        while queue.next_ns() == now_ns:  # what comes and ends at one time is seen together
            _, came, _ = queue.pop()
            if came is None:
                ends = 0
            else:
                came[0].waiting.append(came[1])
        step, now = queue.now_ns / NS - now, queue.now_ns / NS
        for job in unit.jobs:
            job.left_s -= step / slow
        for job in [job for job in unit.jobs if job.left_s <= 1e-12]:
            unit.jobs.remove(job)
            _end(unit, job, now)
        if now >= adapt_at and policy == "adbs":
            adapt_at = now + ADAPT_EVERY_S
            _adapt(llms)
        start(unit)
        slow = _slowdown(unit.jobs)
        if ends:
            queue.cancel(ends)
        left_s = min((job.left_s for job in unit.jobs), default=0.0)
        ends = queue.push(queue.now_ns + math.ceil(left_s * slow * NS), None) if unit.jobs else 0
    assert not any(llm.waiting or llm.fresh or llm.ends for llm in llms), (
        "requests wait, and nothing runs: one needs more than the pool"
    )
    return [
        LlmAnswer(
            llm.name,
            len(llm.requests),
            len(llm.requests) / llm.last_finish_s if llm.last_finish_s else 0.0,
            llm.latency_s / max(1, llm.finished),
        )
        for llm in llms
    ]


def _slowdown(jobs: list[_Job]) -> float:
    """How much longer each of these takes than alone: by SMs or by memory bandwidth, whichever is asked for more."""
    return max(1.0, sum(job.share for job in jobs) / 100.0, sum(job.bandwidth for job in jobs))


def _room(unit: _Unit, share: float) -> bool:
    return sum(job.share for job in unit.jobs) + share <= GIVEN


def _adbs(unit: _Unit) -> None:
    n, first = len(unit.llms), unit.turn
    for i in range(n):
        llm = unit.llms[(first + i) % n]
        if not llm.prefilling and _room(unit, llm.prefill_sm) and _prefill(unit, llm):
            unit.turn = (first + i + 1) % n
    if not any(llm.prefilling for llm in unit.llms) and any(_may_prefill(unit, llm) for llm in unit.llms):
        return  # prompts first: what decodes is waited for
    first = unit.decode_turn
    for i in range(n):
        llm = unit.llms[(first + i) % n]
        if not llm.decoding and _room(unit, llm.decode_sm) and _decode(unit, llm):
            unit.decode_turn = (first + i + 1) % n


def _fcfs(unit: _Unit) -> None:
    if unit.jobs:
        return
    waits = [llm for llm in unit.llms if llm.waiting]
    if waits and _prefill(unit, min(waits, key=lambda llm: llm.waiting[0].arrival_s)):
        return
    runs = [llm for llm in unit.llms if llm.ends or llm.fresh]
    if runs:
        _decode(unit, min(runs, key=_oldest))


def _oldest(llm: Llm) -> float:
    return min(request.arrival_s for request in (*llm.fresh, *(end[2] for end in llm.ends)))


def _may_prefill(unit: _Unit, llm: Llm) -> bool:
    if not llm.waiting or llm.inside >= llm.most or unit.full:
        return False
    alone = unit.held_bytes <= 0.0
    return alone or unit.held_bytes + llm.waiting[0].prompt * llm.kv_token_bytes <= unit.pool_bytes


def _prefill(unit: _Unit, llm: Llm) -> bool:
    """Start the prompts of one model: up to the token limit, its quota and the pool."""
    prompts: list[UnitRequest] = []
    tokens = 0
    while _may_prefill(unit, llm) and not (prompts and tokens + llm.waiting[0].prompt > PROMPT_TOKENS):
        request = llm.waiting.popleft()
        unit.held_bytes += request.prompt * llm.kv_token_bytes
        tokens += request.prompt
        llm.prefilling += 1
        prompts.append(request)
    if prompts:
        length = llm.table.prefill_s(llm.prefill_sm, tokens) + llm.step_s + llm.sequence_s * len(prompts)
        unit.jobs.append(_Job(llm, length, llm.prefill_sm, 0.0, prompts))
    return bool(prompts)


def _decode(unit: _Unit, llm: Llm) -> bool:
    """Start one step of all sequences of a model."""
    for request in llm.fresh:
        insort(llm.ends, (llm.steps + request.output - 1, request.arrival_s, request))
        llm.context += request.prompt
    llm.fresh.clear()
    while len(llm.ends) > 1 and unit.held_bytes + len(llm.ends) * llm.kv_token_bytes > unit.pool_bytes:
        _preempt(unit, llm)
    batch = len(llm.ends)
    if not batch:
        return False
    unit.held_bytes += batch * llm.kv_token_bytes
    llm.context += batch
    llm.batches.append(batch)
    length = llm.table.decode_s(llm.decode_sm, batch, llm.context / batch) + llm.step_s + llm.sequence_s * batch
    read_s = (llm.weight_bytes + llm.kv_token_bytes * llm.context) / llm.bandwidth_bytes_per_s
    unit.jobs.append(_Job(llm, length, llm.decode_sm, read_s / length, None))
    llm.decoding = True
    return True


def _preempt(unit: _Unit, llm: Llm) -> None:
    """The newest sequence gives its cache back, and will be computed again."""
    newest = max(llm.ends, key=lambda end: end[1])
    llm.ends.remove(newest)
    done = newest[2].output - 1 - (newest[0] - llm.steps)
    llm.context -= newest[2].prompt + done
    unit.held_bytes -= (newest[2].prompt + done) * llm.kv_token_bytes
    llm.waiting.appendleft(newest[2])
    llm.preemptions += 1
    unit.full = True


def _end(unit: _Unit, job: _Job, now: float) -> None:
    llm = job.llm
    if job.prompts is not None:
        llm.prefilling = 0
        for request in job.prompts:
            request.first_s = now if request.first_s < 0.0 else request.first_s
            if request.output <= 1:
                _finish(unit, llm, request, request.prompt, now)
            else:
                llm.fresh.append(request)
        return
    llm.decoding = False
    llm.steps += 1
    while llm.ends and llm.ends[0][0] <= llm.steps:
        _, _, request = llm.ends.pop(0)
        llm.context -= request.prompt + request.output - 1
        _finish(unit, llm, request, request.prompt + request.output - 1, now)


def _finish(unit: _Unit, llm: Llm, request: UnitRequest, tokens: int, now: float) -> None:
    unit.held_bytes -= tokens * llm.kv_token_bytes
    unit.full = False
    llm.finished += 1
    llm.latency_s += now - request.arrival_s
    llm.last_finish_s = request.last_s = now


def _adapt(llms: list[Llm]) -> None:
    """Move quota to models that have a queue and use theirs up, from those that do not, by what these leave unused."""
    used = {llm: sum(llm.batches) / len(llm.batches) if llm.batches else 30.0 for llm in llms}
    givers = [llm for llm in llms if used[llm] < BUSY * llm.most]
    spare = {llm: max(1.0, 0.95 * llm.most - used[llm]) * llm.kv_token_bytes for llm in givers}
    total = sum(spare.values())
    for llm in llms:
        if llm in spare or not givers or len(llm.waiting) + llm.inside < 1.1 * used[llm]:
            continue
        wanted = min(max(1.0, STEP * used[llm]), len(llm.waiting) + llm.inside - used[llm]) * llm.kv_token_bytes
        for giver in givers:
            moved = min(wanted * spare[giver] / total, spare[giver])
            giver.most -= moved / giver.kv_token_bytes
            llm.most += moved / llm.kv_token_bytes
