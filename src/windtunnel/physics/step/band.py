"""The band of a step: how far from the predicted time published runs of such steps were, part by part.

`--jitter` has a band besides: the 5th and 95th percentile of sampled steps (`step/disturbances/effect.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from windtunnel.physics.cost.price import Z95

# Halves of the band over z. Of 57 sources left out of what they informed, each counting once, a twentieth took less
# than 0.89 of the predicted time and a twentieth more than 1.27: twice as far.
FASTER, SLOWER = 0.7, 1.5
PARTS_NAMED, PART_WORTH_NAMING = 2, 0.15  # of the band's variance


class Band(NamedTuple):
    """Relative p5 and p95 of a step, and why they are where they are."""

    low: float
    high: float
    reason: str


def band_of(
    breakdown_ns: Mapping[str, int],
    spread: float,
    uncertainty: Mapping[str, float],
    distances: Sequence[tuple[str, float, str]] = (),
    *,
    experts: bool,
) -> Band:
    """The band of a step.

    Parts err independently of each other, each by the standard deviation that published runs showed (`uncertainty` in
    the calibration) or by its kernels' own band where that is wider. What is missing makes runs slower rather than
    faster, so that its upper half is twice the lower. `spread`: (p95 - p5) / time of all kernels. `distances`: in words
    what lies beyond what was measured, and what that adds; or, where the third is "like" or "own", what such runs were
    off by altogether.
    """
    kernels = spread / 2 / Z95
    total = max(1, sum(breakdown_ns.values()))
    parts = {"software": uncertainty["software"] ** 2}
    for name, nanoseconds in breakdown_ns.items():
        key = "exposed" if name.startswith("exposed") else name
        if experts and f"{name}_moe" in uncertainty:  # of products, and of a host that launches experts one by one
            key = f"{name}_moe"
        sigma = uncertainty.get(key, uncertainty["other"])
        if name in ("gemm", "attention", "memory-bound"):
            sigma = max(sigma, kernels)
        parts[name] = (nanoseconds / total * sigma) ** 2
    # What runs like it were off by holds what their parts leave open, and the other way round: the wider of the two.
    # Where those runs were all one project's, and so the next one: two estimates of one error, and their mean.
    from_parts = sum(parts.values())
    like = max((sigma**2 for _, sigma, of in distances if of), default=0.0)
    own = any(of == "own" for _, _, of in distances)
    variance = (from_parts + like) / 2 if own else max(from_parts, like)
    variance += sum(sigma**2 for _, sigma, of in distances if not of)
    z = Z95 * variance**0.5
    widest = sorted(parts, key=lambda name: (-parts[name], name))[:PARTS_NAMED]
    largest = [_words(name) for name in widest if parts[name] > PART_WORTH_NAMING * variance]
    reasons = [words for words, sigma, _ in distances if words and sigma**2 > PART_WORTH_NAMING / 3 * variance]
    reason = "; ".join([*reasons, *([f"mostly {' and '.join(largest)}"] if largest else [])])
    return Band(1.0 / (1.0 + FASTER * z), 1.0 + SLOWER * z, reason)


def _words(part: str) -> str:
    return {"software": "how far releases and clusters differ", "gemm": "matrix products"}.get(part, part)
