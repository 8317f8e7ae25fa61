"""One run measured, the others judged: each source's smallest run of a model on a GPU moves its others by nearness.

The rule is the product's own (`studies/measured_run/anchoring.py`): in full for the same plan at another scale, a
quarter of it for other plans, none for other models, GPUs or formats. A run that fills its memory moves nothing.

Levels of specification are kept apart, so that no swept row is an anchor for a known one. Ties go to the smaller global
batch, then to the earlier row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from windtunnel.evidence.accuracy.outcome import Outcome
from windtunnel.studies.measured_run.anchoring import Regime, carried

Key = tuple[object, ...]


def anchored(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes, every group's scored ones moved by its anchor; anchors are marked, to be left out of the scores."""
    anchors: dict[Key, tuple[float, Outcome]] = {}
    scored = [outcome for outcome in outcomes if outcome.error is not None]
    alike = Counter(_key(outcome) for outcome in scored)
    for outcome in sorted(scored, key=_size):
        if alike[_key(outcome)] > 1:
            measured, predicted = outcome.row.measured_s, outcome.step_time_s
            assert measured is not None  # `error` is there, so both are
            assert predicted is not None
            anchors.setdefault(_key(outcome), (math.log(measured / predicted), outcome))
    return [_moved(outcome, anchors.get(_key(outcome))) for outcome in outcomes]


def _moved(outcome: Outcome, anchor: tuple[float, Outcome] | None) -> Outcome:
    if anchor is None or outcome.error is None:
        return outcome
    log_factor, other = anchor
    if other.row.id == outcome.row.id:
        return outcome.scale(math.exp(log_factor), is_anchor=True)
    if other.full or other.status != "ok":
        return outcome
    shift = carried(log_factor, regime_of(other), regime_of(outcome))
    return outcome.scale(shift.factor, is_anchor=False, share=shift.share)


def regime_of(outcome: Outcome) -> Regime:
    """Of a published run."""
    row = outcome.row
    layout = (row.tp, row.pp, row.vpp, row.cp, row.ep)
    source, gpu, *job = _key(outcome)
    batch = (row.micro_batch, row.recompute, row.seq_len, "lora" in row.task.lower())
    return Regime((source, *job), str(gpu), layout, batch, row.n_gpus or 0)


def _key(outcome: Outcome) -> Key:
    row = outcome.row
    return (row.source, row.gpu, row.model, row.framework, row.precision, row.level)


def _size(outcome: Outcome) -> tuple[int, int, int]:
    row = outcome.row
    return (row.n_gpus or 0, row.global_batch or 0, row.line)
