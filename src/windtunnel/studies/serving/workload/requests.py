"""Requests as arrays: lengths, when they arrive, and the names of their prompt blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import SpecError
from windtunnel.questions.typed import Plain, plain_fields
from windtunnel.units import parse_count

Ints = NDArray[np.int64]
LONGEST_S = 3e8  # ten years, between the first and the last arrival: clocks of int64 nanoseconds hold thirty times that


@dataclass(frozen=True, slots=True)
class Load:
    """A workload in a few numbers: a closed loop has a concurrency, an open one a rate; both count sessions if any."""

    name: str
    requests: int
    input_tokens_mean: float
    output_tokens_mean: float
    concurrency: int | None
    rate_per_s: float | None  # None, too, where all arrive at once
    sessions: int | None = None

    def to_dict(self) -> dict[str, Plain]:
        """Ready for JSON: of the last two the one that is meant."""
        fields = plain_fields(self)
        del fields["concurrency" if self.concurrency is None else "rate_per_s"]
        if self.sessions is None:
            del fields["sessions"]
        return fields


def _whole(what: str, values: object) -> Ints:
    """Whole numbers, one of each request, from an array or a list. Raises SpecError."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise SpecError(what, values, "give whole numbers, one of each request")
    return array.astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Turns:
    """Requests that belong to sessions: a turn is sent so long after the answer to the one before it.

    `following`: the session's next turn, -1 at its end; `delay_ns`: what its user or tool takes before this turn.
    """

    following: Ints
    delay_ns: Ints

    @property
    def firsts(self) -> list[int]:
        """Requests that begin a session."""
        later = set(self.following.tolist())
        return [place for place in range(len(self.following)) if place not in later]


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests in the order in which they are sent. Times in ns from the start; closed loops have none of their own.

    `prefix_names`: for each request, ids of its full prompt blocks of `prefix_block` tokens, equal id = equal prefix.
    `concurrency`: so many in flight, the next sent when one ends; None = an open loop at `arrival_ns`.
    `turns`: of sessions; arrivals are then those of their first turns, and a concurrency counts sessions.
    """

    input_tokens: Ints  # or a list
    output_tokens: Ints
    arrival_ns: Ints | None = None
    concurrency: int | None = None
    prefix_names: Sequence[tuple[int, ...]] | None = None
    prefix_block: int = 16
    name: str = "requests"
    rows: Ints | None = None  # where each stood in the file, if not in the order in which they are sent
    turns: Turns | None = None
    notes: tuple[str, ...] = ()  # what has to be said of how it was read

    def __post_init__(self) -> None:
        for what in ("input_tokens", "output_tokens", "arrival_ns", "rows"):
            if getattr(self, what) is not None or what.endswith("tokens"):
                object.__setattr__(self, what, _whole(what, getattr(self, what)))
        n = len(self.input_tokens)
        if n == 0:
            raise SpecError("workload", self.name, "holds no request")
        if len(self.output_tokens) != n or (self.arrival_ns is not None and len(self.arrival_ns) != n):
            raise SpecError("workload", self.name, "lengths and arrivals must be as many")
        if (self.arrival_ns is None) == (self.concurrency is None):
            raise SpecError("workload", self.name, "give arrivals (open loop) or a concurrency (closed loop), not both")
        if self.concurrency is not None:
            parse_count(self.concurrency, "concurrency")
        for what, values in (("input_tokens", self.input_tokens), ("output_tokens", self.output_tokens)):
            if int(values.min()) < 1:
                raise SpecError(what, int(values.min()), "every request needs at least one token")

    def __len__(self) -> int:
        return len(self.input_tokens)

    def names_in(self, block_size: int) -> tuple[Sequence[tuple[int, ...]] | None, int]:
        """(prefix names, the blocks of `block_size` tokens that each of them stands for); None where there are none.

        The given blocks are whole multiples of those, or parts of them. Raises SpecError.
        """
        if self.prefix_names is None:
            return None, 1
        if self.prefix_block % block_size == 0:
            return self.prefix_names, self.prefix_block // block_size
        if block_size % self.prefix_block == 0:
            per = block_size // self.prefix_block
            return [tuple(names[per - 1 :: per]) for names in self.prefix_names], 1
        raise SpecError(
            "block_size",
            block_size,
            f"must divide the prefix blocks of {self.prefix_block} tokens, or be divided by them",
        )

    def at_means(self) -> tuple[int, int, tuple[str, ...]]:
        """(prompt, output, what to mind) where every request is played with the mean lengths."""
        both = self.input_tokens, self.output_tokens
        prompt, output = (max(1, round(float(array.mean()))) for array in both)
        if all(int(array.min()) == int(array.max()) for array in both):
            return prompt, output, ()
        note = f"requests of different lengths are played at their means, {prompt} tokens in and {output} out"
        return prompt, output, (note,)

    def load(self) -> Load:
        """What it is, in a few numbers."""
        rate = None
        if self.arrival_ns is not None:
            began = self.arrival_ns if self.turns is None else np.sort(self.arrival_ns[self.turns.firsts])
            span = float(began[-1] - began[0]) * 1e-9
            rate = (len(began) - 1) / span if span > 0 else None
        means = float(self.input_tokens.mean()), float(self.output_tokens.mean())
        sessions = None if self.turns is None else len(self.turns.firsts)
        return Load(self.name, len(self), *means, self.concurrency, rate, sessions)
