"""Who is to blame, in a sentence or two. Thresholds are the study's (Lin et al., OSDI'25, sections 4 and 5).

A few workers, or one stage, are to blame when mending them alone gains at least half of the lost time. Micro-batches of
unequal work are when forward and backward of a micro-batch deviate alike, correlation 0.9 or more.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.studies.traces.by_class import StepTime, typical
from windtunnel.studies.traces.stragglers.explanation import Part

NEGLIGIBLE = 1.03
MOST = 0.5
_ALIKE = 0.9
OUTLYING = 1.5  # of the median step


def verdict(
    slowdown: float,
    slowest_workers: Part,
    by_stage: Sequence[Part],
    by_kind: Sequence[Part],
    n_workers: int,
    correlation: float | None,
    has_peers: bool = True,
    slow_stages: frozenset[str] = frozenset(),
    rank_steps: Sequence[StepTime] = (),
) -> str:
    """The sentences. `by_stage` and `by_kind` begin with the largest slowdown; `slow_stages`: most workers are slow."""
    if n_workers == 1 and rank_steps:
        return one_rank(rank_steps)
    if not has_peers:
        return "Nothing to compare with: no op of this trace has a peer, so stragglers cannot be told."
    if slowdown < 0.9995:  # levelled, ops wait for each other longer than they did
        return "Nothing is lost to stragglers: with every op as long as its peers the step would be no shorter."
    if slowdown < NEGLIGIBLE:
        return f"Hardly anything is lost to stragglers: the replay takes {slowdown:.3f} times its ideal."
    texts: list[str] = []
    if n_workers > 1 and (slowest_workers.share or 0.0) >= MOST:
        texts.append(f"A slow worker is to blame: {slowest_workers.name}{_gain(slowest_workers)}.")
    stages = [part for part in by_stage if (part.share or 0.0) >= MOST and part.name in slow_stages]
    if len(by_stage) > 1 and stages:
        texts.append(f"Stage {stages[0].name} has more to do than the others{_gain(stages[0])}.")
    if correlation is not None and correlation >= _ALIKE:
        texts.append(
            "Micro-batches are unequal work, as with sequences of unequal length: forward and backward of a "
            f"micro-batch deviate alike (correlation {correlation:.2f})."
        )
    if not texts:
        top = max(by_kind, key=lambda part: part.saved_ns)
        texts.append(f"No single worker or stage explains half of the loss. Among kinds of op, {top.name}{_gain(top)}.")
    return " ".join(texts)


def one_rank(steps: Sequence[StepTime]) -> str:
    """What a single rank can tell: where its time goes, and which step is longer than the others."""
    seconds = typical(steps)
    whole = sum(seconds.values()) or 1.0
    parts = sorted(seconds.items(), key=lambda item: -item[1])[:4]
    text = ", ".join(f"{value / whole:.0%} {name}" for name, value in parts)
    lengths = sorted(step.length_s for step in steps)
    longest = max(steps, key=lambda step_time: step_time.length_s)
    late = longest.length_s / lengths[len(lengths) // 2]
    beside = f" Step {longest.step} took {late:.1f} times as long." if len(steps) > 2 and late > OUTLYING else ""
    return f"One rank, whom nobody is held against: a step is {text}.{beside}"


def _gain(part: Part) -> str:
    return f" (alone ideal, it would give back {part.share:.0%} of the lost time)" if part.share is not None else ""
