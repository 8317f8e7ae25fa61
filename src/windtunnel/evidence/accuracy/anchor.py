"""One-anchor calibration: a group's smallest run sets one efficiency factor, the rest is judged with it.

    factor(source, GPU, model, precision) = measured / predicted of the run on the fewest GPUs

Levels of specification are kept apart, so that no swept row is an anchor for a known one. Ties go to the smaller global
batch, then to the earlier row. The factor is one number; it stands for what differs
between two installations of the same software: clocks, library builds, cluster health.
"""

from __future__ import annotations

from collections.abc import Sequence

from windtunnel.evidence.accuracy.outcome import Outcome

Key = tuple[str, str, str, str, str]


def anchored(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with every scored group scaled by its anchor; anchors are marked, to be left out of the scores."""
    factors: dict[Key, tuple[float, str]] = {}
    scored = [outcome for outcome in outcomes if outcome.error is not None]
    for outcome in sorted(scored, key=_size):
        row = outcome.row
        measured, predicted = row.measured_s, outcome.step_time_s
        assert measured is not None  # `error` is there, so both are
        assert predicted is not None
        factors.setdefault(_key(outcome), (measured / predicted, row.id))
    found = ((outcome, factors.get(_key(outcome))) for outcome in outcomes)
    return [one.scaled(pair[0], is_anchor=one.row.id == pair[1]) if pair else one for one, pair in found]


def _key(outcome: Outcome) -> Key:
    row = outcome.row
    return (row.source, row.gpu, row.model, row.precision, row.level)


def _size(outcome: Outcome) -> tuple[int, int, int]:
    row = outcome.row
    return (row.n_gpus or 0, row.global_batch or 0, row.line)
