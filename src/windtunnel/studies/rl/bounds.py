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
from math import ceil

import numpy as np

from windtunnel.studies.rl.job import Job, alone_s
from windtunnel.studies.rl.least import Ints, contexts_of, least_of, parts_of
from windtunnel.studies.rl.study import window
from windtunnel.studies.serving.step_time.times import TICKS_PER_S

LEAST = 0.9  # of a bound where pools overlap: what is begun before the simulated steps counts for them
SEEN = 4  # where batches overlap: generators that stand for all


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
        of_each = parts_of(steps, job.replicas, _by_chunks(job))
        longest = float(np.mean([part.max() for part in of_each])) * len(of_each) / replicas
        full = contexts_of(steps) / replicas / cached if cached else 0.0
        longest *= 1.0 if _by_chunks(job) else LEAST
        ticks = least.in_any_order(steps.sum() / replicas, contexts_of(steps) / replicas, max(longest / flying, full))
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
