"""A policy's ETTR in closed form, for curves: what `run/many.py` simulates, without its chance.

Interruptions are of two kinds. Those that read a checkpoint enter the renewal form of `ettr.py`. Those that keep the
step under way cost their downtime and half a step:  1 / (1 + rate x (down + step / 2)). Machines away from the job are
a Poisson number with mean rate x time away, and the job runs at the mean speed over it. Lemons are taken as gone where
the policy sends them away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from windtunnel.studies.resilience.failures import FailureProcess
from windtunnel.studies.resilience.policies import Job, Policy


@dataclass(frozen=True, slots=True)
class Rates:
    """Interruptions a second that read a checkpoint and their mean downtime, pauses, and the mean speed."""

    reading_per_s: float
    reading_down_s: float
    paused_s: float  # for each second of work, by interruptions that keep the step under way
    speed: float


def rates_of(process: FailureProcess, policy: Policy, job: Job, *, spare: bool) -> Rates:
    """What a policy makes of each cause, where standbys are enough (`spare`) or are never there."""
    reading = reading_time = paused = away = 0.0
    back_s = sum(policy.rejoin)
    for cause in process.causes:
        rate = cause.of_job(job.gpus, job.hosts) * (1.0 + process.bursts.share)
        if policy.evicts and cause.hosts and cause.symptom != "planned":
            rate *= 1.0 - process.lemons.share_of_failures  # once lemons have been sent away
        reaction = policy.react(cause, spare)
        down = sum(reaction.phases)
        if reaction.away_s > 0 and policy.away == "from the job":
            away += rate * policy.units(cause) * reaction.away_s
            down += back_s
        if reaction.keeps_step:
            paused += rate * (down + job.step_s / 2)
        else:
            reading += rate
            reading_time += rate * down
    slow = process.slow
    mean_s, detection = _slow(policy, slow.shortest_s, slow.longest_s)
    paused += slow.rate_per_node_s * job.hosts * detection * sum(policy.swap)
    share = slow.rate_per_node_s * job.hosts * mean_s
    slowed = 1.0 - (-math.expm1(-share)) * slow.slower / (1.0 + slow.slower)
    mean_down = reading_time / reading if reading else 0.0
    return Rates(reading, mean_down, paused, _mean_rate(policy.rate, away) * slowed)


def closed_form(rates: Rates, stall_s: float, interval_s: float, form: Callable[..., float]) -> float:
    """ETTR with checkpoints every `interval_s`; `form`: `ettr.exact` or `ettr.linear`."""
    saved = form(rates.reading_per_s, rates.reading_down_s, stall_s, interval_s)
    return saved * rates.speed / (1.0 + rates.paused_s)


def _slow(policy: Policy, shortest: float, longest: float) -> tuple[float, float]:
    """Mean of a log-uniform time, cut where the policy sends the host away, and the share that is cut."""
    limit = math.inf if policy.slow_found_s is None else policy.slow_found_s
    if longest <= shortest:
        return min(longest, limit), float(longest > limit)
    if limit < shortest:
        return limit, 1.0
    span, cut = math.log(longest / shortest), min(limit, longest)
    share = math.log(longest / cut) / span
    return (cut - shortest) / span + cut * share, share


def _mean_rate(rate: Callable[[int], float], away: float) -> float:
    """Speed with a Poisson number of parts away: they come at random and stay for a time (M/G/infinity)."""
    if away <= 0:
        return rate(0)
    chance = math.exp(-away) if away < 700 else 0.0
    mean = chance * rate(0)
    total = chance
    for units in range(1, math.ceil(away + 8 * math.sqrt(away)) + 8):
        chance = math.exp(units * math.log(away) - away - math.lgamma(units + 1))
        mean += chance * rate(units)
        total += chance
    return mean / total if total > 0 else 0.0
