"""Lower bounds of an RL step: what generators and the learner take whatever the order of events.

A decode step of b answers takes a(b) or more at the shortest context, concave in b, and s or more for each further
token in the caches. N answers of a generator that begin together take the least where all of them run in every step:
the number of answers in a step is then most uneven, and a sum of concave terms least (Gale and Ryser; Schur).

    together    sum over steps k of a(answers longer than k) + s contexts
    any order   n (a(1) - c) + c tokens + s contexts,    c: slope of the chord of a, n: steps, at the least
                the longest answer over the batches in flight, or contexts over what the cache holds
    ahead       F batches in flight, all while the learner waits, F - 1 while it works: L = F n + (F - 1) m steps of
                the longest answer, m of them in the learner's time;  the period is that time and the n steps
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from windtunnel.studies.rl.job import Job, alone_s
from windtunnel.studies.rl.study import window
from windtunnel.studies.serving.build import Engine
from windtunnel.studies.serving.step_time.times import TICKS_PER_S

LEAST = 0.9  # of a bound where pools overlap: what is begun before the simulated steps counts for them
AGES, SEEN = 256, 4  # where batches overlap: nodes of an answer's life; generators that stand for all

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
        return float((self.of(np.arange(1.0, len(steps) + 1)) * more).sum() + self.cached * _contexts(steps))

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
        ticks.append(min(line.at(one) - cached * (one - b * prompt) for one in sums))
    # Steps of b answers and more, up to the next that is priced, take no less than that of b.
    concave, slope = [ticks[-1]], 0.0
    for place in range(len(ends) - 2, -1, -1):
        width = ends[place + 1] - ends[place]
        slope = max(slope, (concave[0] - ticks[place]) / width)
        concave.insert(0, concave[0] - slope * width)
    return Least(np.interp(np.arange(most + 1), [0, *ends], [0.0, *concave]), cached)


def bound_s(job: Job, learner_s: Callable[[Ints], float]) -> float:
    """A lower bound of the step: the mean over the very batches that are simulated.

    `learner_s`: what the passes over samples of these tokens take at the least.
    """
    times, rules, replicas = job.times, job.rules, job.replicas
    warm, measured = window(job)
    extra = rules.prompt_tokens + (rules.turns - 1) * rules.tool_tokens
    flying = rules.async_steps + 1
    # A sample goes to the generator that has least, so none has more than the mean and one.
    most = ceil(flying * rules.groups * rules.samples / replicas) + 1
    least = least_of(job.engine, rules.prompt_tokens, extra + job.answers.cap, most)
    plain = rules.turns == 1 and rules.useful == 1.0
    cached = 0 if job.engine.rules.beside_blocks else job.engine.blocks * job.engine.rules.block_size
    tick_s = job.habits.generation_factor / TICKS_PER_S
    learner: list[float] = []
    generation: list[float] = []
    for number in range(warm, warm + measured):
        batch = job.lengths(number)
        learner.append(times.between_s + learner_s(batch + extra))
        steps = np.maximum(0, batch - 1)
        of_each = _parts(steps, job)
        longest = float(np.mean([part.max() for part in of_each])) * len(of_each) / replicas
        full = _contexts(steps) / replicas / cached if cached else 0.0
        longest *= 1.0 if _by_chunks(job) else LEAST
        ticks = least.in_any_order(steps.sum() / replicas, _contexts(steps) / replicas, max(longest / flying, full))
        if plain and not rules.async_steps:
            ticks = max(ticks, *(least.together(part) for part in of_each))
        elif plain and rules.in_order and flying.is_integer():
            seen = of_each[:: max(1, len(of_each) // SEEN)]
            ahead = [least.ahead(part, int(flying), learner[-1] / tick_s) for part in seen if part.max()]
            ticks = max(ticks, float(np.mean(ahead)) * len(of_each) / replicas if ahead else 0.0)
        alone = 0.0 if rules.async_steps else alone_s(job, int(batch.max()))
        generation.append(max(alone, ticks * tick_s))
    if not rules.async_steps:
        return times.refit_s + (sum(learner) + sum(generation)) / measured
    return times.refit_s + LEAST * max(sum(learner), sum(generation)) / measured


def _by_chunks(job: Job) -> bool:
    """Whether a batch goes to the generators in one piece each."""
    return job.rules.chunks and not job.rules.async_steps


def _parts(steps: Ints, job: Job) -> list[Ints]:
    """The samples of a batch that begins at once on empty generators, by generator; those without any left out."""
    places, many = np.arange(len(steps)), job.replicas
    places = places * many // len(steps) if _by_chunks(job) else places % many
    return [part for one in range(many) if len(part := steps[places == one])]


def _contexts(steps: Ints) -> float:
    """Tokens in the caches beyond prompts, summed over steps."""
    exact = steps.astype(np.float64)
    return float((exact * (exact - 1.0)).sum() / 2.0)
