"""What the steps of one generator take at the least: `Least`, the arithmetic of `bounds.py`."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.serving.build import Engine

AGES = 256  # where batches overlap: nodes of an answer's life

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Least:
    """What the steps of one generator take at the least, in ticks."""

    ticks: Floats  # by answers, from none to the most that it has at once: concave
    cached: float  # for each token in the cache beyond the prompts

    def of(self, answers: Floats) -> Floats:
        """Of steps with so many answers; beyond the most on the last slope."""
        most = len(self.ticks) - 1
        last = self.ticks[-1] - self.ticks[-2]
        within = np.interp(answers, np.arange(most + 1), self.ticks)
        return np.asarray(within + np.maximum(0.0, answers - most) * last)

    def together(self, steps: Ints) -> float:
        """Answers of so many steps each that begin together."""
        longest_first = np.sort(steps)[::-1].astype(np.float64)
        more = longest_first - np.append(longest_first[1:], 0.0)
        return float((self.of(np.arange(1.0, len(steps) + 1)) * more).sum() + self.cached * contexts_of(steps))

    def in_any_order(self, tokens: float, contexts: float, steps: float) -> float:
        """So many tokens in so many steps or more."""
        most = len(self.ticks) - 1
        chord = (self.ticks[most] - self.ticks[1]) / max(1, most - 1)
        steps = max(steps, tokens / most)
        return float((self.ticks[1] - chord) * steps + chord * tokens + self.cached * contexts)

    def ahead(self, steps: Ints, flying: int, learner_ticks: float) -> float:
        """The period of batches of which `flying` are under way, each with answers of so many steps here."""
        width = max(1, ceil(int(steps.max()) / AGES))
        ages = np.arange(0, int(steps.max()), width)
        alive = len(steps) - np.searchsorted(np.sort(steps), ages, side="right").astype(np.float64)
        life = len(ages)

        def cost(of_batches: int, begin: int, many: int, period: int) -> float:
            """Of `many` nodes; a batch is a period older than the next."""
            places = begin + np.arange(many)[None, :] + period * np.arange(of_batches)[:, None]
            here = np.where(places < life, alive[np.minimum(places, life - 1)], 0.0)
            contexts = (here * places * width).sum()
            return width * float(self.of(here.sum(axis=0)).sum() + self.cached * contexts)

        low, high = 0, life // (flying - 1)  # nodes in the learner's time
        while low < high:
            middle = (low + high + 1) // 2
            waits = (life - (flying - 1) * middle) // flying
            if cost(flying - 1, waits, middle, waits + middle) <= learner_ticks:
                low = middle
            else:
                high = middle - 1
        waits = (life - (flying - 1) * low) // flying
        return learner_ticks + cost(flying, 0, waits, waits + low)


def least_of(engine: Engine, prompt: int, longest: int, most: int) -> Least:
    """Of a generator that has at most so many answers at once, with contexts of `prompt` to `longest` tokens."""
    most = max(2, min(most, engine.rules.max_num_seqs))
    begins = [1, 2]  # the same for all generators, whatever they have: steps are priced once
    while begins[-1] <= most:
        begins.append(max(begins[-1] + 1, begins[-1] * 5 // 4))
    ends = [after - 1 for after in begins[1:]]
    begins.pop()
    cached = float(engine.times.decode(begins[-1]).slope[-1])
    ticks = []
    for b in begins:
        line = engine.times.decode(b)
        sums = [b * prompt, b * longest, *(end for end in line.ends if b * prompt < end < b * longest)]
        ticks.append(min(line.at(total) - cached * (total - b * prompt) for total in sums))
    # Steps of b answers and more, up to the next that is priced, take no less than that of b.
    concave, slope = [ticks[-1]], 0.0
    for place in range(len(ends) - 2, -1, -1):
        width = ends[place + 1] - ends[place]
        slope = max(slope, (concave[0] - ticks[place]) / width)
        concave.insert(0, concave[0] - slope * width)
    return Least(np.interp(np.arange(most + 1), [0, *ends], [0.0, *concave]), cached)


def parts_of(steps: Ints, replicas: int, by_chunks: bool) -> list[Ints]:
    """The samples of a batch that begins at once on empty generators, by generator; those without any left out.

    `by_chunks`: a batch goes to them in one piece each.
    """
    places, many = np.arange(len(steps)), replicas
    places = places * many // len(steps) if by_chunks else places % many
    return [part for number in range(many) if len(part := steps[places == number])]


def contexts_of(steps: Ints) -> float:
    """Tokens in the caches beyond prompts, summed over steps."""
    exact = steps.astype(np.float64)
    return float((exact * (exact - 1.0)).sum() / 2.0)
