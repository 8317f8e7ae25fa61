"""The guess that a prediction has to beat: every run of a framework, GPU and precision reaches the same FLOP rate.

    rate = median of model FLOPs / (GPUs x measured step) over the rows of a framework, GPU and precision
    guess = model FLOPs / (GPUs x rate)

It is fitted on the very rows it is judged on, so it is as good as a single number for each can be.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from windtunnel.evidence.accuracy.outcome import Outcome


def with_guesses(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes with `guess_s` set where it can be."""
    rates: dict[tuple[str, str, str], list[float]] = {}
    for outcome in outcomes:
        measured, per_gpu = outcome.row.measured_s, _flops_per_gpu(outcome)
        if measured is not None and per_gpu is not None:
            rates.setdefault(_key(outcome), []).append(per_gpu / measured)
    medians = {key: statistics.median(values) for key, values in rates.items()}
    guessed = []
    for outcome in outcomes:
        per_gpu, rate = _flops_per_gpu(outcome), medians.get(_key(outcome))
        guessed.append(outcome if per_gpu is None or rate is None else replace(outcome, guess_s=per_gpu / rate))
    return guessed


def _key(outcome: Outcome) -> tuple[str, str, str]:
    return (outcome.row.framework, outcome.row.gpu, outcome.row.precision)


def _flops_per_gpu(outcome: Outcome) -> float | None:
    n_gpus = outcome.row.n_gpus
    return outcome.model_flops / n_gpus if outcome.model_flops is not None and n_gpus else None
