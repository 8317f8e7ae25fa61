"""Disturbances: what makes some GPUs, links or moments unlike the others.

A lost NIC's traffic goes through the neighbour on its node, which then carries twice as much: both GPUs' traffic across
nodes takes twice as long. How fast the lost NIC was no longer matters, so losing a bad one may even help.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from numbers import Integral

from windtunnel.errors import SpecError
from windtunnel.physics.hardware import Cluster
from windtunnel.physics.step.disturbances.parse import Slow, read_slow, takers
from windtunnel.questions.asked.parts.scenario import Scenario

SAMPLES = 200  # where something random is asked for without saying how many


@dataclass(frozen=True, slots=True)
class Disturbances:
    """All disturbances of one prediction."""

    slow: tuple[Slow, ...] = ()
    jitter: float = 0.0  # relative standard deviation of one pass of a cell
    samples: int = 0
    seed: int = 0

    @property
    def parts(self) -> tuple[Slow, ...]:
        """All of them one by one, jitter last."""
        if not self.jitter:
            return self.slow
        text = f"jitter {100.0 * self.jitter:g}%"
        return (*self.slow, Slow(text, (), 1.0, link=False, kind="jitter", share=self.jitter))

    @property
    def sampled(self) -> bool:
        """Whether the step differs from sample to sample."""
        return any(part.random or (part.kind == "thermal" and self.samples > 0) for part in self.parts)

    def scenario(self, router_load: str | None = None, lengths: str | None = None) -> Scenario:
        """The scenario of these disturbances, spelled out: without a seed where nothing is drawn."""
        samples = self.samples if self.sampled else 0
        draws = self.slow or self.jitter or samples or router_load or lengths
        slow = tuple(disturbance.text for disturbance in self.slow)
        seed = self.seed if draws else 0
        return Scenario(slow, self.jitter, samples, seed, router_load=router_load, lengths=lengths)


def parse_disturbances(scenario: Scenario, cluster: Cluster) -> Disturbances:
    """The disturbances of a scenario, from its words or from files of them.

    Raises SpecError on what names no GPU, link or sensible amount, InputFileError on a file that cannot be read as a
    list of such words.
    """
    samples, seed = scenario.samples, scenario.seed
    if not isinstance(samples, Integral) or not 0 <= samples <= 1_000_000:
        raise SpecError("samples", samples, "give a whole number from 0 to 1,000,000")
    if not isinstance(seed, Integral) or not 0 <= seed < 2**63:
        raise SpecError("seed", seed, "give a whole number from 0 to 2^63 - 1")
    noise = scenario.jitter
    if noise > 1.0:
        raise SpecError("jitter", scenario.jitter, "give a relative standard deviation of at most 100 %")
    disturbances = Disturbances(read_slow(scenario.slow, cluster, seed), noise, samples, seed)
    return replace(disturbances, samples=SAMPLES) if disturbances.sampled and not samples else disturbances


def turns_of(parts: Iterable[Slow]) -> dict[int, int]:
    """How many of its kind come before each random part, by its number: what it draws does not hang on other kinds."""
    before: Counter[str] = Counter()
    turns = {}
    for number, part in enumerate(parts):
        if part.random:
            turns[number] = before[part.kind]
            before[part.kind] += 1
    return turns


def link_times(slow: Iterable[Slow], cluster: Cluster) -> dict[int, float]:
    """How many times as long each GPU's traffic across nodes takes, by GPU, where that is not once."""
    slow = [disturbance for disturbance in slow if disturbance.kind in ("link", "lost")]
    own: dict[int, float] = {}
    for disturbance in slow:
        if disturbance.kind == "link":
            own[disturbance.gpus[0]] = max(own.get(disturbance.gpus[0], 1.0), disturbance.factor)
    lost = {disturbance.gpus[0] for disturbance in slow if disturbance.kind == "lost"}
    per_node, nics = cluster.gpus_per_node, min(cluster.gpus_per_node, cluster.n_gpus)
    carried: dict[int, list[int]] = {}  # by NIC that takes over: the GPUs whose own NIC is lost
    for nic in sorted(lost):
        first = nic // per_node * per_node
        alive = [first + other for other in takers(nic - first, nics) if first + other not in lost]
        carried.setdefault(alive[0], []).append(nic)
    times = {nic: factor for nic, factor in own.items() if nic not in lost}
    for taker, guests in carried.items():
        for gpu in (taker, *guests):
            times[gpu] = own.get(taker, 1.0) * (1 + len(guests))
    return times
