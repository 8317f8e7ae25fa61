"""Lab 5: continuous batching with chunked prefill and paged KV cache. Fill in the functions; README.md explains them.

Times are whole nanoseconds. A sequence's KV cache lies in blocks of `block_size` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rules:
    """Limits of the engine."""

    max_num_seqs: int  # sequences that run at once, at most
    token_budget: int  # new tokens in one step, prompts' and decodes' together
    block_size: int  # tokens
    blocks: int  # of KV cache, in all


@dataclass(eq=False)
class Request:
    """A request and where it stands."""

    arrival_ns: int
    prompt: int  # tokens
    output: int  # tokens that it generates
    known: int = 0  # tokens to compute before the next is sampled: prompt; after a preemption, prompt + generated
    computed: int = 0  # of those; a sequence decodes once it has computed all that is known
    context: int = 0  # cached tokens, while it decodes
    generated: int = 0
    blocks: int = 0  # held
    preemptions: int = 0
    first_ns: int = -1  # when its first token came; -1: not yet
    last_ns: int = -1  # and its last

    def __post_init__(self) -> None:
        self.known = self.known or self.prompt


@dataclass
class Plan:
    """One step."""

    preempt: list[Request] = field(default_factory=list)  # lose their blocks, in this order to the head of the queue
    chunks: list[tuple[Request, int]] = field(default_factory=list)  # prompt tokens to compute; may admit a request
    decode: list[Request] = field(default_factory=list)  # get one more token


def growth(decoding: Sequence[Request], block_size: int) -> int:
    """Blocks that one more cached token of each sequence takes."""
    raise NotImplementedError


def plan(running: Sequence[Request], waiting: Sequence[Request], free: int, rules: Rules) -> Plan:
    """The next step, as a pure decision: nothing is changed.

    running: Admitted, in the order in which they were admitted.
    waiting: In the order of arrival; preempted ones at the head.
    free: Blocks that nobody holds.
    """
    raise NotImplementedError


def serve(requests: Sequence[Request], rules: Rules, step_ns: Callable[[int], int]) -> int:
    """Serve all requests, which come in the order of their arrivals, and stamp them. Returns the number of steps.

    Each time that a sequence is preempted its request counts one of `preemptions`.

    step_ns: How long a step with so many new tokens takes.
    """
    raise NotImplementedError
