"""One request inside a replica."""

from __future__ import annotations

from typing import final

NEVER = 1 << 62  # a time in ns that does not come
NO_NAMES: list[int] = []  # of all that share nothing, for speed: replaced, never changed


@final
class Sequence:
    """A request's lengths, where it stands, and its stamps in nanoseconds (-1 = not yet)."""

    __slots__ = ("adapter", "arrival_ns", "blocks", "cached_len", "computed", "context", "end_step",
        "first_ns", "generated", "index", "joined", "known", "last_ns", "names", "output", "preemptions",
        "prompt", "queued_ns", "rank", "scheduled_ns", "shared", "span", "ticket", "token_ticks", "used_ns",
        "waited_ns")  # fmt: skip

    def __init__(
        self, index: int, prompt: int, output: int, arrival_ns: int, names: tuple[int, ...] = (), span: int = 1
    ) -> None:
        self.index = index  # in the workload
        self.prompt = prompt
        self.output = output
        self.arrival_ns = arrival_ns
        self.names = names  # of its full prompt blocks, each of `span` of them
        self.span = span
        self.known = prompt  # tokens to compute before the next one can be sampled
        self.computed = 0  # of those
        self.generated = 0
        self.cached_len = 0  # prompt tokens that a prefix cache saved
        self.blocks = 0  # held when it joined the decoding, or while it is prefilled
        self.shared = NO_NAMES  # names among them
        self.context = 0  # cached tokens when it joined
        self.joined = 0  # the replica's decode step count then
        self.end_step = 0  # and when its last token comes
        self.ticket = 0  # of that in the queue of its batch
        self.preemptions = 0
        self.adapter = -1  # that it asks for; -1 = none
        self.rank = -1  # the attention rank it belongs to, where ranks admit prompts together
        self.token_ticks = -1  # when it got its last token, while it does not decode; -1 = none yet
        self.used_ns = 0  # service so far, for policies that count it
        self.waited_ns = 0  # for a place to decode in, its prompt computed elsewhere
        self.queued_ns = self.scheduled_ns = self.first_ns = self.last_ns = -1

    def lose_cache(self) -> None:
        """Its machine is gone: prompt and tokens so far are to be computed elsewhere."""
        self.known = self.prompt + self.generated
        self.computed = self.blocks = self.cached_len = 0
        self.shared = NO_NAMES
        self.queued_ns = self.rank = -1
