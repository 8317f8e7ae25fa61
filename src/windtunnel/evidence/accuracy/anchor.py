"""One-anchor calibration: a group's smallest run sets one efficiency factor, the rest is judged with it.

    factor(source, GPU, model, precision, plan) = measured / predicted of the run on the fewest GPUs

Plan: its degrees but for data parallelism, micro-batch, length and recomputation. What is missing in one layout is not
what is missing in another: one factor for all of a model's layouts made them worse. A run without its like is left
alone, and scored.

Levels of specification are kept apart, so that no swept row is an anchor for a known one. Ties go to the smaller global
batch, then to the earlier row. The factor is one number; it stands for what differs
between two installations of the same software: clocks, library builds, cluster health.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from windtunnel.evidence.accuracy.outcome import Outcome

Key = tuple[object, ...]


def anchored(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with every scored group scaled by its anchor; anchors are marked, to be left out of the scores."""
    factors: dict[Key, tuple[float, str]] = {}
    scored = [outcome for outcome in outcomes if outcome.error is not None]
    alike = Counter(_key(outcome) for outcome in scored)
    for outcome in sorted(scored, key=_size):
        if alike[_key(outcome)] == 1:
            continue
        row = outcome.row
        measured, predicted = row.measured_s, outcome.step_time_s
        assert measured is not None  # `error` is there, so both are
        assert predicted is not None
        factors.setdefault(_key(outcome), (measured / predicted, row.id))
    found = ((outcome, factors.get(_key(outcome))) for outcome in outcomes)
    return [one.scale(pair[0], is_anchor=one.row.id == pair[1]) if pair else one for one, pair in found]


def _key(outcome: Outcome) -> Key:
    row = outcome.row
    plan = (row.tp, row.pp, row.vpp, row.cp, row.ep, row.micro_batch, row.seq_len, row.recompute)
    return (row.source, row.gpu, row.model, row.precision, row.level, *plan)


def _size(outcome: Outcome) -> tuple[int, int, int]:
    row = outcome.row
    return (row.n_gpus or 0, row.global_batch or 0, row.line)
