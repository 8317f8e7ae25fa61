"""LoRA adapters that requests ask for: which are on the GPU, what they take there, what their products take.

    resident   as many at once as the engine has slots, all of the largest rank (vLLM: max_loras, max_lora_rank)
    bytes      of a slot, in 16 bits: rank x (in + out) of every product of attention and dense feed-forward; of those
               that tensor parallelism cuts by outputs the first matrix is on each rank, of others the second
    admitted   beside those that run only while their adapters and its own fit the slots; others behind it pass (vLLM)
    load       one that is in no slot comes from host memory over the GPU's link, and the next step waits for it; the
               slot used longest ago is given up
    products   two kernels for each product (shrink, expand), bound by what they read and write: the adapters of the
               step, by expectation R (1 - (1 - 1 / R)^tokens) of R slots, and activations

Requests ask for adapters alike often, turns of a session for one. Prefixes are an adapter's own.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from windtunnel.errors import SpecError
from windtunnel.physics.model.architecture import Layer, Model
from windtunnel.studies.serving.workload.requests import Workload

WIDTH = 2.0  # bytes of a number


@dataclass(frozen=True, slots=True)
class Adapters:
    """How many there are, their rank, and how many are on the GPU at once."""

    adapters: int
    rank: int
    resident: int


def adapters_of(text: str) -> Adapters:
    """`adapters=100,rank=16,resident=8`. Raises SpecError."""
    remedy = "write adapters=100,rank=16,resident=8, whole numbers of at least 1"
    numbers: dict[str, int] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in ("adapters", "rank", "resident") or name in numbers or not value.isdecimal() or len(value) > 6:
            raise SpecError("lora", text, remedy)
        numbers[name] = int(value)
    if len(numbers) < 3 or min(numbers.values()) < 1:
        raise SpecError("lora", text, remedy)
    return Adapters(numbers["adapters"], numbers["rank"], min(numbers["resident"], numbers["adapters"]))


def products(layer: Layer, hidden: int, tp: int) -> Iterator[tuple[int, float, float]]:
    """(matrices fused, inputs, outputs) on one GPU of products that adapters stand beside. Raises SpecError."""
    attention, block = layer.attention, layer.feed_forward
    if attention.kind == "mla" or not attention.kv_heads or not attention.heads:
        raise SpecError("lora", attention.kind, "adapters are modelled beside heads of attention alone")
    heads, kv = -(-attention.heads // tp), -(-attention.kv_heads // tp)
    yield 3, hidden, heads * attention.head_dim + kv * (attention.head_dim + attention.value_head_dim)
    yield 1, heads * attention.value_head_dim, hidden
    if block.kind == "dense" and block.size:
        inner = -(-block.size // tp)
        yield 1 + block.gated, hidden, inner * (1 + block.gated)
        yield 1, inner, hidden


def slot_bytes(model: Model, rank: int, tp: int, pp: int) -> float:
    """Of one adapter on one GPU."""
    return (
        sum(
            count * WIDTH * rank * (fused * inputs + outputs)
            for layer, count in model.distinct_layers()
            for fused, inputs, outputs in products(layer, model.hidden_size, tp)
        )
        / pp
    )


def products_s(
    stream_s: Callable[[float], float], layer: Layer, hidden: int, tp: int, adapters: Adapters, tokens: float
) -> float:
    """Seconds of one layer's kernels. `stream_s`: of a kernel by its bytes."""
    slots, rank = adapters.resident, adapters.rank
    used = slots * (1.0 - (1.0 - 1.0 / slots) ** tokens)
    return sum(
        stream_s(WIDTH * fused * (used * rank * inputs + tokens * rank) + WIDTH * tokens * inputs)
        + stream_s(WIDTH * (used * rank * outputs + tokens * (fused * rank + 2.0 * outputs)))
        for fused, inputs, outputs in products(layer, hidden, tp)
    )


def asked_for(load: Workload, adapters: int) -> list[int]:
    """The adapter of each request."""
    adapter_of: list[int] = np.random.default_rng([0, 3]).integers(0, adapters, len(load)).tolist()
    if load.turns is not None:
        for before, after in enumerate(load.turns.following.tolist()):
            if after >= 0:
                adapter_of[after] = adapter_of[before]
    return adapter_of


@final
class Slots:
    """The adapters on a replica's GPUs."""

    __slots__ = ("_here", "_load_ticks", "_resident", "_waits", "in_use", "loads")

    def __init__(self, resident: int, load_ticks: int) -> None:
        self.in_use: dict[int, int] = {}  # adapter -> sequences
        self.loads = 0
        self._here: OrderedDict[int, None] = OrderedDict()
        self._resident, self._load_ticks = resident, load_ticks
        self._waits = 0  # loads that the next step waits for

    def admits(self, adapter: int) -> bool:
        """Whether one more sequence with this adapter may run."""
        return adapter in self.in_use or len(self.in_use) < self._resident

    def take(self, adapter: int) -> None:
        """A sequence with it is taken in."""
        self.in_use[adapter] = self.in_use.get(adapter, 0) + 1
        if adapter not in self._here:
            self.loads += 1
            self._waits += 1
            if len(self._here) == self._resident:
                del self._here[next(number for number in self._here if number not in self.in_use)]
        self._here[adapter] = None
        self._here.move_to_end(adapter)

    def leave(self, adapter: int) -> None:
        """A sequence with it has gone."""
        self.in_use[adapter] -= 1
        if not self.in_use[adapter]:
            del self.in_use[adapter]

    def waited(self) -> int:
        """Ticks that the next step waits."""
        ticks, self._waits = self._waits * self._load_ticks, 0
        return ticks
