"""Fit an engine's few constants on measured deployments, and say how they do on families they were not fitted on.

    python validation/serving/fit_engines.py TABLE... --engine sglang [--gpu mi300x] [--mode agg] [--rows 14]

A cell is (engine, release as its profile reads it, GPU); a family of it (model, mode, precision, layout), as tables
keep together that are split for judging. Runs of one deployment on many days count once, by their median. Constants,
all beside the priced kernels:

    decode_factor    dense products and small kernels of decode steps
    expert_factor    routed experts of decode steps
    prefill          dense products, experts and attention of prompts, one factor on what the profile has
    layer_gap_s      per layer
    first_token_s    from the client to the queue and back

Gauss-Newton on log(predicted / measured) of TPOT and TTFT, Huber weights, a prior at what the profile has. A family is
left out on the linear form of the last round. Prints how far off it is then, how much of it lies in the profile's band,
and what to write under `by_gpu` of the release.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.evidence.accuracy.serving import predict
from windtunnel.evidence.accuracy.serving.mlperf import is_mlperf
from windtunnel.evidence.accuracy.serving.rows import ServingRow, engine_named, gpu_of, read_rows
from windtunnel.studies.serving.engines.profile import Profile, load_engine

NAMES = ("decode_factor", "expert_factor", "prefill", "layer_gap_s", "first_token_s")
SPREAD = np.array([0.4, 0.4, 0.5, 4e-5, 0.03])  # of the prior: factors as logarithms
LEAST = np.array([-1.2, -1.2, -1.0, 0.0, 0.0])
STEP = np.array([0.15, 0.15, 0.2, 1.5e-5, 0.01])
SIGMA = (0.06, 0.25)  # what TPOT and TTFT of a row are believed to scatter
PREFILL = ("prefill_factor", "expert_prefill_factor", "expert_prefill_factor_ranks", "prefill_attention_factor")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("tables", type=Path, nargs="+")
    words.add_argument("--engine", required=True)
    words.add_argument("--gpu", default="")
    words.add_argument("--release", default="")
    words.add_argument("--mode", default="", help="agg or disagg")
    words.add_argument("--until", default="", help="a day after which rows are left out")
    words.add_argument("--rows", type=int, default=14, help="of each cell")
    words.add_argument("--rounds", type=int, default=2)
    words.add_argument("--residuals", type=Path, help="what is left of each row whose family is left out: for bands.py")
    asked = words.parse_args()
    predict.MOST_REQUESTS, predict.LEAST_WAVES = 600, 3  # a fit needs no more
    for (release, gpu), rows in sorted(_cells(read_rows(asked.tables), asked).items()):
        off = _fit(f"{asked.engine} {release} {gpu}", rows, asked.rounds)
        if asked.residuals:
            with asked.residuals.open("a", newline="") as file:
                csv.writer(file).writerows([asked.engine, release, gpu, *line] for line in off)


def _cells(rows: list[ServingRow], asked: argparse.Namespace) -> dict[tuple[str, str], list[ServingRow]]:
    found: dict[tuple[str, str], dict[tuple[str, ...], list[ServingRow]]] = {}
    for row in rows:
        if row.text("spec_level") != "A" or row.text("duplicate_of") or is_mlperf(row) or not row.number("tpot_ms"):
            continue
        if (
            row.text("spec") not in ("none", "")
            or row.text("engine") != asked.engine
            or asked.gpu not in row.text("gpu")
        ):
            continue
        if row.text("client") == "sessions_replayed" or not 0 < (row.number("concurrency") or 0) <= 600:
            continue
        if asked.until and row.text("measured") > asked.until:
            continue
        if asked.mode and row.text("mode") != asked.mode:
            continue
        release = load_engine(engine_named(row)).calibrated_to
        if asked.release and release != asked.release:
            continue
        point = (*_family(row), *(row.text(name) for name in ("isl", "osl", "concurrency")))
        found.setdefault((release, row.text("gpu")), {}).setdefault(point, []).append(row)
    draw = np.random.default_rng(0)
    cells = {}
    for key, points in found.items():
        alike = [_middle(same) for same in points.values()]
        cells[key] = [alike[i] for i in sorted(draw.permutation(len(alike))[: asked.rows])]
    return cells


def _family(row: ServingRow) -> tuple[str, ...]:
    sizes = [row.text(name) for name in row.fields if name.endswith(("tp", "attn_dp", "moe_ep", "num_workers"))]
    return (row.text("model_family"), row.text("mode"), row.text("precision"), *sizes)


def _middle(same: list[ServingRow]) -> ServingRow:
    columns = {}
    for name in ("tpot_ms", "ttft_ms"):
        values = [value for row in same if (value := row.number(name)) is not None]
        columns[name] = str(statistics.median(values)) if values else ""
    return ServingRow({**same[-1].fields, **columns})


def _profile(base: Profile, row: ServingRow, values: Any) -> Profile:
    """The row's profile with constants instead of its own: factors as logarithms beside what it has."""
    base = replace(base.on(gpu_of(row.text("gpu"), 1).gpu), by_gpu=())
    decode, expert, prefill, gap, first = (float(value) for value in values)
    changed: dict[str, Any] = {name: getattr(base, name) * np.exp(prefill) for name in PREFILL}
    changed |= {"decode_factor": float(np.exp(decode)), "layer_gap_s": gap, "first_token_s": first}
    changed |= {name: getattr(base, name) * np.exp(expert) for name in ("expert_factor", "expert_factor_ranks")}
    return replace(base, **changed)


def _start(row: ServingRow) -> Any:
    base = load_engine(engine_named(row)).on(gpu_of(row.text("gpu"), 1).gpu)
    return np.array([np.log(base.decode_factor), 0.0, 0.0, base.layer_gap_s, base.first_token_s])


def _errors(row: ServingRow, values: Any) -> list[float]:
    """log(predicted / measured) of TPOT and TTFT, over what they are believed to scatter."""
    name = engine_named(row)
    one = predict.predicted(row, {name: _profile(load_engine(name), row, values)})
    tpot, ttft = row.number("tpot_ms"), row.number("ttft_ms")
    found = [np.log(one.tpot_s * 1e3 / tpot) / SIGMA[0]] if tpot else []
    return [*found, *([np.log(one.ttft_s * 1e3 / ttft) / SIGMA[1]] if ttft else [])]


def _fit(name: str, rows: list[ServingRow], rounds: int) -> list[tuple[str, str, float, float]]:
    """Prints; returns of each row family, name, log(predicted / measured) of TPOT left out, and its band."""
    values = prior = _start(rows[0])
    owner = np.array([place for place, row in enumerate(rows) for _ in _errors(row, values)])
    kind = np.array([of for row in rows for of, key in enumerate(("tpot_ms", "ttft_ms")) if row.number(key)])
    for _ in range(rounds):
        errors = np.concatenate([_errors(row, values) for row in rows])
        slopes = np.stack(
            [
                (np.concatenate([_errors(row, values + step) for row in rows]) - errors) / step.sum()
                for step in np.diag(STEP)
            ],
            axis=1,
        )
        before = values
        values = _solve(errors, slopes, before, prior, np.ones(len(errors), bool))
    after = errors + slopes @ (values - before)
    families = [_family(row) for row in rows]
    left = np.empty(len(errors))
    for family in dict.fromkeys(families):
        own = np.array([families[place] == family for place in owner])
        without = _solve(errors, slopes, before, prior, ~own) if not own.all() else prior
        left[own] = (errors + slopes @ (without - before))[own]
    tpot, ttft = kind == 0, kind == 1
    off = np.abs(np.expm1(left[tpot] * SIGMA[0])).mean(), np.median(np.abs(np.expm1(left[ttft] * SIGMA[1])))
    band = load_engine(engine_named(rows[0])).on(gpu_of(rows[0].text("gpu"), 1).gpu).band
    held = np.mean(np.abs(left[tpot]) * SIGMA[0] <= band)
    print(
        f"{name}: {len(rows)} rows, {len(set(families))} families; fitted TPOT"
        f" {np.abs(np.expm1(after[tpot] * SIGMA[0])).mean():.1%}; left out TPOT {off[0]:.1%}, TTFT median {off[1]:.1%};"
        f" in the band {held:.0%}"
    )
    print("    " + _written(rows[0], values), flush=True)
    return [
        (" ".join(families[place]), rows[place].id, float(left[i] * SIGMA[0]), band)
        for i, place in enumerate(owner)
        if tpot[i]
    ]


def _written(row: ServingRow, values: Any) -> str:
    profile = _profile(load_engine(engine_named(row)), row, values)
    shown: Mapping[str, float] = {
        name: getattr(profile, name)
        for name in ("decode_factor", "expert_factor", "expert_factor_ranks", *PREFILL, "layer_gap_s", "first_token_s")
    }
    return "{" + ", ".join(f"{key}: {value:.3g}" for key, value in shown.items()) + "}"


def _solve(errors: Any, slopes: Any, values: Any, prior: Any, kept: Any) -> Any:
    weights = 1.0 / np.maximum(1.0, np.abs(errors) / 4.0) * kept
    left = (slopes * weights[:, None]).T @ slopes + np.diag(1.0 / SPREAD**2)
    right = (slopes * weights[:, None]).T @ errors + (values - prior) / SPREAD**2
    return np.maximum(values - np.linalg.solve(left, right), LEAST)


if __name__ == "__main__":
    main()
