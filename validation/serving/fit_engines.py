"""Fit an engine's few constants on measured deployments, and say how they do on families they were not fitted on.

    python validation/serving/fit_engines.py silicon_tune.csv --engine trtllm --rows 10

A family is one (model family, GPU, mode). Constants: time per layer beside the priced kernels, factor on dense prefill
kernels. Gauss-Newton on log(predicted / measured TPOT) with Huber weights and a prior around 10 us and 1.1. Rows that
do not say what ran are left out: level B, and DeepSeek-R1, part of whose runs drafted tokens without saying so.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.evidence.accuracy.serving import predict
from windtunnel.evidence.accuracy.serving.rows import ServingRow, engine_named, read_rows
from windtunnel.studies.serving.engines.profile import load_engine

NAMES = ("layer_gap_s", "prefill_factor")
PRIOR, SPREAD = np.array([1.0e-5, 1.1]), np.array([5e-6, 0.2])
SIGMA = 0.07  # what a row is believed to scatter


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("table", type=Path)
    words.add_argument("--engine", default="trtllm")
    words.add_argument("--rows", type=int, default=10, help="of each family")
    words.add_argument("--rounds", type=int, default=2)
    asked = words.parse_args()
    predict.MOST_REQUESTS, predict.LEAST_WAVES = 1200, 3  # a fit needs no more
    families = _families(read_rows([asked.table]), asked.engine, asked.rows)
    for left, held in families.items():
        rest = [row for name, rows in families.items() if name != left for row in rows]
        if not rest:
            continue
        found = _fit(rest, asked.rounds)
        ratios = _ratios(held, found)
        constants = ", ".join(f"{name} {value:.3g}" for name, value in zip(NAMES, found, strict=True))
        print(
            f"without {left}: {constants}; on it TPOT {np.abs(ratios - 1).mean():.1%}, median {np.median(ratios):.2f}",
            flush=True,
        )
    everything = [row for rows in families.values() for row in rows]
    found = _fit(everything, asked.rounds)
    off = {name: np.abs(_ratios(rows, found) - 1) for name, rows in families.items()}
    print(f"all {len(everything)} rows: {dict(zip(NAMES, found.tolist(), strict=True))},", end=" ")
    print(f"TPOT {np.concatenate(list(off.values())).mean():.1%}")
    for name, errors in off.items():
        print(f"    on {name}, {len(errors)} rows: TPOT {errors.mean():.1%}")


def _families(rows: list[ServingRow], engine: str, most: int) -> dict[str, list[ServingRow]]:
    found: dict[str, list[ServingRow]] = {}
    for row in rows:
        told = row.text("spec_level") == "A" and not row.text("duplicate_of") and "R1" not in row.text("model")
        if told and row.text("engine") == engine and 0 < (row.number("concurrency") or 0) <= 600:
            found.setdefault(" ".join((row.text("model_family"), row.text("gpu"), row.text("mode"))), []).append(row)
    draw = np.random.default_rng(0)
    return {
        name: [part[i] for i in sorted(draw.permutation(len(part))[:most])]
        for name, part in found.items()
        if len(part) > 2
    }


_KNOWN: dict[tuple[str, tuple[float, ...]], float] = {}


def _ratios(rows: list[ServingRow], values: Any) -> Any:
    return np.array([_ratio(row, tuple(float(value) for value in values)) for row in rows])


def _ratio(row: ServingRow, values: tuple[float, ...]) -> float:
    """Predicted over measured TPOT; every fit begins at the same constants, so what is known is kept."""
    if (row.id, values) not in _KNOWN:
        name = engine_named(row)
        changed = dict(zip(NAMES, values, strict=True))
        one = predict.predicted(row, {name: replace(load_engine(name), **changed)})
        _KNOWN[row.id, values] = one.tpot_s * 1e3 / (row.number("tpot_ms") or np.nan)
    return _KNOWN[row.id, values]


def _fit(rows: list[ServingRow], rounds: int) -> Any:
    values = PRIOR.copy()
    for _ in range(rounds):
        errors = np.log(_ratios(rows, values))
        slopes = np.stack(
            [(np.log(_ratios(rows, values + 0.5 * step)) - errors) / 0.5 for step in np.diag(SPREAD)], axis=1
        )
        weights = 1.0 / np.maximum(1.0, np.abs(errors) / (2 * SIGMA))
        left = (slopes * weights[:, None]).T @ slopes / SIGMA**2 + np.eye(len(NAMES))
        right = (slopes * weights[:, None]).T @ errors / SIGMA**2 + (values - PRIOR) / SPREAD
        values = np.maximum(values - SPREAD * np.linalg.solve(left, right), [0.0, 0.5])
    return values


if __name__ == "__main__":
    main()
