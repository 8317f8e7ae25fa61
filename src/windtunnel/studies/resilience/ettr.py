"""Effective training time ratio in closed form, and the checkpoint interval that makes it largest.

lam: failures a second of the whole job; u: seconds from a failure to work again; w: seconds that a checkpoint blocks;
d: seconds of work between checkpoints.

    exact    d lam / (e^(lam u) (e^(lam (d + w)) - 1))     failures strike at any time, also while restarting and
             writing
    linear   (1 - lam (u + d/2)) / (1 + w/d)               Kokolis et al., HPCA 2025; good while lam (u + d) is small
    Young    d* = sqrt(2 w / lam)                          Young, CACM 1974: the optimum of the linear form
    Daly     d* = sqrt(2 w M) (1 + sqrt(w/2M)/3 + (w/2M)/9) - w for w < 2 M, else M, with M = 1/lam; Daly, FGCS 2006

The exact form: a segment of d + w seconds without a failure is tried until it succeeds; each try lasts at most that
long, and each failure costs a restart that is itself tried until it succeeds (a renewal process).
"""

from __future__ import annotations

import math


def exact(lam: float, u: float, w: float, d: float) -> float:
    """ETTR of periodic checkpoints under Poisson failures."""
    if lam <= 0:
        return d / (d + w)
    if lam * (u + d + w) > 700.0:  # beyond what a float holds: nothing is ever finished
        return 0.0
    return d * lam / (math.exp(lam * u) * math.expm1(lam * (d + w)))


def linear(lam: float, u: float, w: float, d: float) -> float:
    """ETTR as papers print it, at least 0. Above `exact` only where failures while writing matter: it counts none."""
    return max(0.0, (1.0 - lam * (u + d / 2.0)) / (1.0 + w / d))


def young_s(lam: float, w: float) -> float:
    """Young's interval; infinite where nothing fails."""
    return math.sqrt(2.0 * w / lam) if lam > 0 else math.inf


def daly_s(lam: float, w: float) -> float:
    """Daly's correction of it."""
    if lam <= 0:
        return math.inf
    mttf = 1.0 / lam
    if w >= 2.0 * mttf:
        return mttf
    share = w / (2.0 * mttf)
    return math.sqrt(2.0 * w * mttf) * (1.0 + math.sqrt(share) / 3.0 + share / 9.0) - w


def best_interval_s(lam: float, u: float, w: float, least_s: float = 1.0, most_s: float = 86_400.0) -> float:
    """The interval between `least_s` and `most_s` with the largest exact ETTR, to a part in a thousand.

    d lam / (e^(lam (d + w)) - 1) has a single maximum, so its logarithm is searched by golden section.
    """
    low, high = math.log(least_s), math.log(max(most_s, least_s))
    golden = (math.sqrt(5.0) - 1.0) / 2.0
    while high - low > 1e-3:
        a, b = high - golden * (high - low), low + golden * (high - low)
        if exact(lam, u, w, math.exp(a)) < exact(lam, u, w, math.exp(b)):
            low = a
        else:
            high = b
    return math.exp((low + high) / 2.0)
