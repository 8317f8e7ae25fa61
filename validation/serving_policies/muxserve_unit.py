"""A MuxServe unit: several models on one mesh of GPUs, their prompts and decodes as jobs with SM shares, one KV pool.

    ADBS      prompts of one model after the other, if no prompt job runs: at most 2,048 tokens, within its KV quota;
              then a decode job of every model that has a batch and none running
    together  each job as fast as with its own share alone, as long as shares sum to 100 % and the memory's bandwidth
              is not asked for twice; else all slow down alike
    quota     starts at a share of rate x KV per token; a model that uses over 90 % of it and has a queue takes a tenth
              of it from those under 90 %

`temporal`: the whole GPU to one job at a time, prompts first (AlpaServe-like). With one model that is spatial
partitioning. Tokens of a batch of one model end together; a request is on the GPU from its prompt to its last token.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Literal

from sm_table import SmTable

PROMPT_TOKENS = 2048  # of one prompt job (muxserve's default)
ADAPT_EVERY_S = 1.0  # how often quotas move
BUSY, STEP = 0.9, 0.1  # from which use on a model asks for more, and how much of its quota it gets


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    arrival_s: float
    prompt: int
    output: int


@dataclass(eq=False)
class Llm:
    """One model of a unit: what it costs, what it is asked, and where it stands."""

    name: str
    table: SmTable
    requests: list[Asked]
    prefill_sm: float
    decode_sm: float
    sequence_s: float  # host time of one sequence in a step
    quota_tokens: float
    weight_bytes: float  # on one GPU
    kv_token_bytes: float  # of one token on one GPU
    bandwidth_bytes_per_s: float  # of one GPU's memory, as kernels reach it
    max_batch: int = 2048
    waiting: deque[Asked] = field(default_factory=deque)
    ends: list[tuple[int, int, Asked]] = field(default_factory=list)  # (decode step, order, request)
    steps: int = 0
    batch: int = 0
    context: int = 0  # sum over the batch
    held: int = 0  # KV tokens: prompt and output of all that were taken in
    fresh: list[Asked] = field(default_factory=list)  # whose prompts are done, to join
    decoding: bool = False
    last_finish_s: float = 0.0
    finished: int = 0
    latency_s: float = 0.0
    first_s: float = 0.0


@dataclass(eq=False, slots=True)
class _Job:
    llm: Llm
    left_s: float
    share: float
    bandwidth: float
    prompts: list[Asked] | None  # None: decode


@dataclass(frozen=True, slots=True)
class LlmAnswer:
    """What one model did."""

    name: str
    requests: int
    throughput_per_s: float  # requests over the time until the last of them ended
    mean_latency_s: float
    mean_first_token_s: float


def run_unit(llms: list[Llm], policy: Literal["adbs", "temporal"]) -> list[LlmAnswer]:
    """All requests of all models through one unit."""
    arrivals = sorted(
        ((one.arrival_s, place, number) for place, llm in enumerate(llms) for number, one in enumerate(llm.requests)),
        reverse=True,
    )
    now, turn, adapt_at = 0.0, 0, ADAPT_EVERY_S
    jobs: list[_Job] = []
    while arrivals or jobs or any(llm.waiting or llm.fresh or llm.batch for llm in llms):
        turn = _start(llms, jobs, policy, turn)
        slow = _slowdown(jobs)
        until = min((job.left_s * slow for job in jobs), default=float("inf"))
        coming = arrivals[-1][0] - now if arrivals else float("inf")
        step = min(until, max(0.0, coming))
        assert step < float("inf"), "requests wait, and nothing runs: one needs more than its quota"
        now += step
        for job in jobs:
            job.left_s -= step / slow
        while arrivals and arrivals[-1][0] <= now:
            _, place, number = arrivals.pop()
            llms[place].waiting.append(llms[place].requests[number])
        for job in [job for job in jobs if job.left_s <= 1e-12]:
            jobs.remove(job)
            _end(job, now)
        if now >= adapt_at and policy == "adbs":
            adapt_at = now + ADAPT_EVERY_S
            _adapt(llms)
    return [
        LlmAnswer(
            llm.name,
            len(llm.requests),
            len(llm.requests) / llm.last_finish_s if llm.last_finish_s else 0.0,
            llm.latency_s / max(1, llm.finished),
            llm.first_s / max(1, llm.finished),
        )
        for llm in llms
    ]


def _slowdown(jobs: list[_Job]) -> float:
    """How much longer each of these takes than alone: by SMs or by memory bandwidth, whichever is asked for more."""
    return max(1.0, sum(job.share for job in jobs) / 100.0, sum(job.bandwidth for job in jobs))


def _start(llms: list[Llm], jobs: list[_Job], policy: str, turn: int) -> int:
    """Start what may start; returns whose turn it is for prompts."""
    alone = policy == "temporal"
    if alone and jobs:
        return turn
    n = len(llms)
    if not any(job.prompts is not None for job in jobs):
        for i in range(n):
            llm = llms[(turn + i) % n]
            prompts = _taken(llms, llm)
            if prompts:
                share = 100.0 if alone else llm.prefill_sm
                tokens = sum(one.prompt for one in prompts)
                length = llm.table.prefill_s(share, tokens) + llm.sequence_s * len(prompts)
                jobs.append(_Job(llm, length, share, 0.0, prompts))
                turn = (turn + i + 1) % n
                break
    if alone and jobs:
        return turn
    for i in range(n):
        llm = llms[(turn + i) % n]
        if llm.decoding:
            continue
        for one in llm.fresh:
            heappush(llm.ends, (llm.steps + one.output - 1, id(one), one))
            llm.batch += 1
            llm.context += one.prompt + 1
        llm.fresh.clear()
        if llm.batch:
            share = 100.0 if alone else llm.decode_sm
            length = llm.table.decode_s(share, llm.batch, llm.context / llm.batch) + llm.sequence_s * llm.batch
            read_s = (llm.weight_bytes + llm.kv_token_bytes * llm.context) / llm.bandwidth_bytes_per_s
            jobs.append(_Job(llm, length, share, read_s / length, None))
            llm.decoding = True
            if alone:
                return (turn + i + 1) % n
    return turn


def _taken(llms: list[Llm], llm: Llm) -> list[Asked]:
    """Prompts of one model for the next job: up to the token limit, its quota and its batch."""
    taken: list[Asked] = []
    tokens = 0
    while llm.waiting and llm.batch + len(llm.fresh) + len(taken) < llm.max_batch:
        one = llm.waiting[0]
        need = one.prompt + one.output
        if (taken and tokens + one.prompt > PROMPT_TOKENS) or (llm.held and llm.held + need > llm.quota_tokens):
            break
        llm.waiting.popleft()
        llm.held += need
        tokens += one.prompt
        taken.append(one)
    return taken


def _end(job: _Job, now: float) -> None:
    llm = job.llm
    if job.prompts is not None:
        for one in job.prompts:
            llm.first_s += now - one.arrival_s
            if one.output <= 1:
                _finish(llm, one, now)
            else:
                llm.fresh.append(one)
        return
    llm.decoding = False
    llm.steps += 1
    llm.context += llm.batch
    while llm.ends and llm.ends[0][0] <= llm.steps:
        _, _, one = heappop(llm.ends)
        llm.batch -= 1
        llm.context -= one.prompt + one.output
        _finish(llm, one, now)


def _finish(llm: Llm, one: Asked, now: float) -> None:
    llm.held -= one.prompt + one.output
    llm.finished += 1
    llm.latency_s += now - one.arrival_s
    llm.last_finish_s = now


def _adapt(llms: list[Llm]) -> None:
    """Move quota to models that have a queue and use theirs up, from those that do not, by what these leave unused."""
    hungry = [llm for llm in llms if llm.waiting and llm.held > BUSY * llm.quota_tokens]
    givers = [llm for llm in llms if llm.held < BUSY * llm.quota_tokens]
    spare = sum(0.95 * llm.quota_tokens - llm.held for llm in givers)
    wanted = sum(STEP * llm.quota_tokens for llm in hungry)
    if spare <= 0.0 or wanted <= 0.0:
        return
    moved = min(spare, wanted)
    for llm in givers:
        llm.quota_tokens -= moved * (0.95 * llm.quota_tokens - llm.held) / spare
    for llm in hungry:
        llm.quota_tokens += moved * STEP * llm.quota_tokens / wanted
