"""DistServe's two placement searches (OSDI '24, algorithms 1 and 2), over any measure of goodput.

    high affinity   each phase alone: the layout with the highest goodput per GPU; as many instances as the rate asks
    low affinity    pairs inside one node, so that caches move over NVLink: the pair with the highest goodput per GPU

Goodput comes as a callable, so that the search is the same for a simulator, a table or a test. It is asked once for
each candidate, in a fixed order; of equals the one with fewer GPUs wins, then the earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil

from windtunnel.errors import SpecError

Layout = tuple[int, int]  # tensor, pipeline parallelism
PhaseGoodput = Callable[[Layout], float]  # requests per second of one instance; 0 where it does not fit
PairGoodput = Callable[[Layout, Layout], float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One layout, or a pair of layouts, and what it does."""

    prefill: Layout | None
    decode: Layout | None
    goodput_per_s: float

    @property
    def gpus(self) -> int:
        """GPUs of one instance, or of the pair."""
        return sum(layout[0] * layout[1] for layout in (self.prefill, self.decode) if layout is not None)

    @property
    def per_gpu(self) -> float:
        """Goodput of one GPU."""
        return self.goodput_per_s / self.gpus


@dataclass(frozen=True, slots=True)
class Placement:
    """The best found. `prefill_instances` and `decode_instances` carry `rate_per_s`."""

    prefill: Layout
    decode: Layout
    prefill_instances: int
    decode_instances: int
    rate_per_s: float
    goodput_per_gpu_per_s: float  # of the placement without rounding up
    tried: tuple[Candidate, ...]
    runner_up: Candidate | None  # what comes next: of the phase, or pair, that was decided last

    @property
    def gpus(self) -> int:
        """In all."""
        (tp, pp), (tp2, pp2) = self.prefill, self.decode
        return self.prefill_instances * tp * pp + self.decode_instances * tp2 * pp2

    def to_dict(self) -> dict[str, object]:
        """Ready for JSON."""
        return {
            "prefill": {"tp": self.prefill[0], "pp": self.prefill[1], "instances": self.prefill_instances},
            "decode": {"tp": self.decode[0], "pp": self.decode[1], "instances": self.decode_instances},
            "gpus": self.gpus,
            "rate_per_s": self.rate_per_s,
            "goodput_per_gpu_per_s": self.goodput_per_gpu_per_s,
            "candidates": len(self.tried),
            "runner_up": None if self.runner_up is None else _document(self.runner_up),
            "tried": [_document(candidate) for candidate in self.tried],
        }


def layouts(gpus: int, nodes: int = 1, gpus_per_node: int | None = None) -> Iterator[Layout]:
    """(tp, pp) with tp a power of two inside a node and tp x pp <= `gpus`."""
    per_node = gpus if gpus_per_node is None else gpus_per_node
    tp = 1
    while tp <= min(gpus, per_node):
        for pp in range(1, gpus // tp + 1):
            if tp * pp <= per_node * nodes:
                yield tp, pp
        tp *= 2


def high_affinity(prefill: PhaseGoodput, decode: PhaseGoodput, choices: list[Layout], rate_per_s: float) -> Placement:
    """Algorithm 1: the phases are searched apart. Raises SpecError where nothing holds the limits at any rate."""
    _positive(rate_per_s)
    first = [Candidate(layout, None, prefill(layout)) for layout in choices]
    second = [Candidate(None, layout, decode(layout)) for layout in choices]
    best_first, _ = _best(first, "prefill")
    best_second, after = _best(second, "decode")
    assert best_first.prefill is not None
    assert best_second.decode is not None
    per_request = 1.0 / best_first.per_gpu + 1.0 / best_second.per_gpu  # GPU seconds of one request
    return Placement(
        best_first.prefill,
        best_second.decode,
        ceil(rate_per_s / best_first.goodput_per_s),
        ceil(rate_per_s / best_second.goodput_per_s),
        rate_per_s,
        1.0 / per_request,
        (*first, *second),
        after,
    )


def low_affinity(pair: PairGoodput, choices: list[Layout], gpus_per_node: int, rate_per_s: float) -> Placement:
    """Algorithm 2: both phases in one node, simulated together, and the pair replicated. Raises SpecError."""
    _positive(rate_per_s)
    candidates = []
    for first in choices:
        for second in choices:
            if first[0] * first[1] + second[0] * second[1] <= gpus_per_node:
                candidates.append(Candidate(first, second, pair(first, second)))
    best, after = _best(candidates, f"pair on {gpus_per_node} GPUs")
    assert best.prefill is not None
    assert best.decode is not None
    copies = ceil(rate_per_s / best.goodput_per_s)
    return Placement(best.prefill, best.decode, copies, copies, rate_per_s, best.per_gpu, tuple(candidates), after)


def _best(candidates: list[Candidate], what: str) -> tuple[Candidate, Candidate | None]:
    able = [candidate for candidate in candidates if candidate.goodput_per_s > 0.0]
    if not able:
        raise SpecError(
            "placement", f"{len(candidates)} candidates", f"no {what} holds the limits at any rate; loosen them"
        )
    ranked = sorted(able, key=lambda candidate: (-candidate.per_gpu, candidate.gpus))
    return ranked[0], ranked[1] if len(ranked) > 1 else None


def _document(candidate: Candidate) -> dict[str, object]:
    return {
        "prefill": candidate.prefill,
        "decode": candidate.decode,
        "goodput_per_s": candidate.goodput_per_s,
        "goodput_per_gpu_per_s": candidate.per_gpu,
    }


def _positive(rate_per_s: float) -> None:
    if not rate_per_s > 0.0:
        raise SpecError("--rate", rate_per_s, "give the rate that the placement must carry, above zero")
