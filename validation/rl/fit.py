"""Fit the habits of RL frameworks on published steps, and say how far off they are on a release that was left out.

    python validation/rl/fit.py TABLE.csv

For each row: generation, learner and weight bytes as predicted with every factor 1. A step is

    in turn        g G + f L + w + c            f: l for dense models, m for those with experts
    one ahead      max(g Gb, f L) + w + c       Gb: a step whose learner takes no time; w: weight update, offload

and g, l, m, c are fitted on the logarithm by Gauss-Newton with a weak prior, on all releases but one in turn. The
last lines: one measured step as an anchor, half of the logarithm of its factor carried, for each pair of rows of one
release, model and GPU; and of those that compute in one format.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from windtunnel.errors import UserError
from windtunnel.evidence.accuracy.rl.run import RlRow, missing, question_of
from windtunnel.files.table import read_table
from windtunnel.studies.rl.anchor import CARRIED
from windtunnel.studies.rl.clock import Times
from windtunnel.studies.rl.job import batch_time_s, job_of, run_of

NAMES = ("generation", "learner", "experts", "fixed s")
PRIOR = np.log([1.4, 1.4, 1.8, 5.0])
WEIGHT, AHEAD = 0.2, 3  # of the prior; steps that are measured after those in which pools fill


@dataclass(frozen=True)
class Part:
    """A row's parts in seconds, and what was measured."""

    id: str
    source: str
    measured_s: float
    generation_s: float
    learner_s: float
    experts: bool
    colocated: bool
    published_s: float  # weight update, and what is offloaded for it
    like: tuple[str, ...]  # model, GPU, formats of both sides: what an anchor of another step is known to carry over

    def step_s(self, logs: NDArray[np.float64]) -> float:
        """The step with these factors."""
        g, dense, experts, fixed = np.exp(logs)
        learner = self.learner_s * (experts if self.experts else dense)
        if self.colocated:
            return float(g * self.generation_s + learner + self.published_s + fixed)
        return float(max(g * self.generation_s, learner) + self.published_s + fixed)


def part_of(row: RlRow) -> Part | None:
    """The parts of a row that can be asked about."""
    measured = row.number("total_step_s")
    if missing(row) or measured is None or "dynamic sampling" in row.text("notes"):
        return None
    try:
        job = job_of(question_of(row))
    except UserError:
        return None
    plain = replace(job, habits=replace(job.habits, generation_factor=1.0), trainer=replace(job.trainer, factor=1.0))
    if plain.rules.oldest == 0:
        generation = batch_time_s(plain, plain.engine, plain.replicas)
    else:
        first = plain.rules.oldest
        run = run_of(plain, plain.engine, plain.replicas, plain.rules, Times(0.0), first + 1 + AHEAD, idle=True)
        generation = (run.steps[-1].end_s - run.steps[first].end_s) / AHEAD
    learner = plain.trainer.passes(plain.sample_tokens(), plain.train_batch).total_s
    published_s = job.times.refit_s + job.times.between_s - job.habits.between_s
    experts = any(layer.feed_forward.kind == "moe" for layer in job.model.layers)
    like = tuple(row.text(name) for name in ("model", "gpu", "gen_precision", "train_precision"))
    return Part(row.id, row.text("source"), measured, generation, learner, experts, job.colocated, published_s, like)


def fitted(parts: Sequence[Part]) -> NDArray[np.float64]:
    """The logarithms of the factors, robust against single rows."""
    logs = PRIOR.copy()
    for _ in range(60):
        residuals = np.array([np.log(one.step_s(logs) / one.measured_s) for one in parts])
        slopes = np.empty((len(parts), len(logs)))
        for place in range(len(logs)):
            moved = logs.copy()
            moved[place] += 1e-4
            slopes[:, place] = [np.log(one.step_s(moved) / one.measured_s) for one in parts]
            slopes[:, place] = (slopes[:, place] - residuals) / 1e-4
        weights = 1.0 / np.sqrt(1.0 + (residuals / 0.1) ** 2)
        normal = slopes.T @ (slopes * weights[:, None]) + WEIGHT**2 * np.eye(len(logs))
        step = np.linalg.solve(normal, slopes.T @ (weights * residuals) + WEIGHT**2 * (logs - PRIOR))
        logs = logs - np.clip(step, -0.2, 0.2)
    return logs


def told(name: str, errors: Sequence[float], logs: NDArray[np.float64] | None = None) -> None:
    """A line of the report."""
    off = np.array(errors)
    factors = "" if logs is None else ", ".join(f"{n} {v:.3g}" for n, v in zip(NAMES, np.exp(logs), strict=True))
    print(f"{name:54} {len(off):3} rows  mean {np.abs(off).mean():6.1%}  bias {off.mean():+6.1%}  {factors}")


def main() -> None:
    """Fit, leave out, anchor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    asked = parser.parse_args()
    rows = [RlRow(line) for _, line in read_table(asked.table, "give a CSV").rows()]
    parts = [part for row in rows if (part := part_of(row)) is not None]
    logs = fitted(parts)
    told("all, fitted on all", [one.step_s(logs) / one.measured_s - 1 for one in parts], logs)
    left_out: list[float] = []
    pairs: dict[str, list[float]] = {"not anchored": [], "anchored": [], "in one format, anchored": []}
    for source in sorted({one.source for one in parts}):
        own = [one for one in parts if one.source == source]
        others = [one for one in parts if one.source != source]
        if not others:
            continue
        logs = fitted(others)
        errors = [one.step_s(logs) / one.measured_s - 1 for one in own]
        told(f"left out: {source[-24:]}", errors, logs)
        left_out += errors
        for (first, there), (second, error) in permutations(zip(own, errors, strict=True), 2):
            if first.like[:2] == second.like[:2]:
                carried = (1 + error) / (1 + there) ** CARRIED - 1
                pairs["not anchored"].append(error)
                pairs["anchored"].append(carried)
                if first.like == second.like:
                    pairs["in one format, anchored"].append(carried)
    if left_out:
        told("left out, all", left_out)
    for name, carried_errors in pairs.items():
        if carried_errors:
            told(f"pairs of a model and GPU, {name}", carried_errors)


if __name__ == "__main__":
    main()
