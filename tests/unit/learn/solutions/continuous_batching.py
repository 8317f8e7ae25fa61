"""Lab 5, solved."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rules:
    """Limits of the engine."""

    max_num_seqs: int
    token_budget: int
    block_size: int
    blocks: int


@dataclass(eq=False)
class Request:
    """A request and where it stands."""

    arrival_ns: int
    prompt: int
    output: int
    known: int = 0
    computed: int = 0
    context: int = 0
    generated: int = 0
    blocks: int = 0
    preemptions: int = 0
    first_ns: int = -1
    last_ns: int = -1

    def __post_init__(self) -> None:
        self.known = self.known or self.prompt


@dataclass
class Plan:
    """One step."""

    preempt: list[Request] = field(default_factory=list)
    chunks: list[tuple[Request, int]] = field(default_factory=list)
    decode: list[Request] = field(default_factory=list)


def growth(decoding: Sequence[Request], block_size: int) -> int:
    """A full last block: the next token opens another."""
    return sum(request.context % block_size == 0 for request in decoding)


def plan(running: Sequence[Request], waiting: Sequence[Request], free: int, rules: Rules) -> Plan:
    """Decodes first, then prompts under way, then new ones."""
    step = Plan()
    kept = list(running)
    while True:
        step.decode = [one for one in kept if one.computed == one.known]
        if growth(step.decode, rules.block_size) <= free or len(kept) == 1:
            break
        step.preempt.append(kept.pop())
        free += step.preempt[-1].blocks
    free -= growth(step.decode, rules.block_size)
    budget = rules.token_budget - len(step.decode)
    for request in kept:
        if request.computed < request.known and budget > 0:
            step.chunks.append((request, min(request.known - request.computed, budget)))
            budget -= step.chunks[-1][1]
    if step.preempt:
        return step
    admitted = len(kept)
    for request in waiting:
        blocks = -(-request.known // rules.block_size)
        if budget <= 0 or admitted >= rules.max_num_seqs or blocks > free:
            break
        step.chunks.append((request, min(request.known, budget)))
        budget -= step.chunks[-1][1]
        free -= blocks
        admitted += 1
    return step


def serve(requests: Sequence[Request], rules: Rules, step_ns: Callable[[int], int]) -> int:
    """Plan, carry out, stamp, until all are served."""
    running: list[Request] = []
    waiting: deque[Request] = deque()
    clock = following = steps = 0
    while following < len(requests) or running or waiting:
        if not running and not waiting:
            clock = max(clock, requests[following].arrival_ns)
        while following < len(requests) and requests[following].arrival_ns <= clock:
            waiting.append(requests[following])
            following += 1
        step = plan(running, waiting, rules.blocks - sum(request.blocks for request in running), rules)
        for one in step.preempt:
            one.known = one.prompt + one.generated
            one.computed = one.blocks = one.context = 0
            one.preemptions += 1
            running.remove(one)
            waiting.appendleft(one)
        for one, _ in step.chunks:
            if one.blocks == 0:
                one.blocks = -(-one.known // rules.block_size)
                waiting.remove(one)
                running.append(one)
        for one in step.decode:
            one.blocks += one.context % rules.block_size == 0
            one.context += 1
        clock += step_ns(len(step.decode) + sum(n for _, n in step.chunks))
        steps += 1
        sampled = list(step.decode)
        for one, n in step.chunks:
            one.computed += n
            if one.computed == one.known:
                one.context = one.known
                sampled.append(one)
        for one in sampled:
            one.generated += 1
            if one.first_ns < 0:
                one.first_ns = clock
            if one.generated == one.output:
                one.last_ns = clock
                one.blocks = 0
                running.remove(one)
    return steps
