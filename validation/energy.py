"""Power of GPUs that serve, against what was measured: `validation/energy.csv` has one row per configuration.

    python validation/energy.py          error of power at the measured step time, and of joules per token end to end
    python validation/energy.py --fit    the constants of calibration/power.yaml, from all rows of a generation
    python validation/energy.py --splitwise FILE    mean power of A100s in Splitwise's static batches, each tp left out

Each model family is left out of the constants that its rows are judged with. Source of the rows: The ML.ENERGY
Benchmark (Chung et al., 2025; vLLM 0.11.1, GPU energy by Zeus at a steady state), github.com/ml-energy/leaderboard at
0cd52da, read 2026-11-28. Prompts' lengths are not published with them: 250 tokens are taken.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, nnls

from windtunnel.physics.cost.power import draw_of
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.model.catalogue import load_model
from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.power import rates
from windtunnel.studies.serving.run import serve_with
from windtunnel.studies.serving.workload.requests import Workload

# Power as a share of the rated one; seconds of each part, and its shares of the bandwidth and of the matrix rate.
Batch = tuple[float, list[tuple[float, tuple[float, float]]]]
ROWS = Path(__file__).parent / "energy.csv"
PROMPT = 250


@dataclass(frozen=True)
class Row:
    """One configuration: what was asked, and what was measured."""

    model: str
    gpu: str
    engine: Engine
    batch: float
    output: float
    most: int
    tokens_per_s: float
    watts: float  # of one GPU

    @property
    def rated_w(self) -> float:
        """Rated power of its GPU."""
        return self.engine.cluster.gpu.tdp_w

    @property
    def rates(self) -> tuple[float, float]:
        """Shares of bandwidth and matrix rate, with the measured length of a step."""
        tokens = self.batch * (1 + PROMPT / self.output)
        held = self.batch * (PROMPT + self.output / 2) * self.engine.memory.kv_per_token / self.engine.memory.kv
        return rates(self.engine, tokens, min(1.0, held), self.batch / self.tokens_per_s)


def rows() -> list[Row]:
    """All of them that fit, as we see it, where they were measured."""
    found = []
    engines: dict[tuple[str, ...], Engine] = {}
    for line in csv.DictReader(ROWS.open()):
        key = tuple(line[name] for name in ("model", "precision", "gpu", "gpus", "ep"))
        if key not in engines:
            ep = int(line["ep"])  # where experts are spread, attention is split over the same GPUs
            layout = Deployment(
                tp=int(line["gpus"]),
                moe_ep=ep if ep > 1 else None,
                weights=line["precision"],
                engine="vllm-0.11",
                sampling="top-p",
            )
            cluster = parse_cluster(f"{line['gpu']}:{line['gpus']}")
            engines[key] = engine_of(load_model(line["model"]), cluster, layout)
        engine = engines[key]
        if engine.fits:
            rate, power = (float(line[name]) for name in ("tokens_per_s", "power_w"))
            found.append(
                Row(line["model"], line["gpu"], engine, float(line["batch"]), float(line["output"]),
                    int(line["max_num_seqs"]), rate, power / int(line["gpus"]))
            )  # fmt: skip
    return found


def fitted(those: list[Row]) -> NDArray[np.float64]:
    """busy, memory, matrix: least squares of relative errors, none below zero."""
    shares = np.array([one.watts / one.engine.cluster.gpu.tdp_w for one in those])
    use = np.array([(1.0, *one.rates) for one in those])
    return nnls(use / shares[:, None], np.ones(len(those)))[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--every", type=int, default=5, help="of the rows end to end: each so many")
    parser.add_argument("--splitwise", type=Path, help="data/perf_model.csv of splitwise-sim at 8f99e7d")
    asked = parser.parse_args()
    if asked.splitwise:
        splitwise(asked.splitwise)
        return
    everything = rows()
    for gpu in sorted({one.gpu for one in everything}):
        those = [one for one in everything if one.gpu == gpu]
        if asked.fit:
            print(gpu, "busy, memory, matrix:", fitted(those).round(3))
        print(f"{gpu}: {len(those)} rows")
        left_out(those)
        end_to_end(those[:: asked.every])


def left_out(those: list[Row]) -> None:
    """Power at the measured length of a step, each model family with constants of the others."""
    families = defaultdict(list)
    for one in those:
        families[one.model].append(one)
    every, lines = [], []
    for name, own in families.items():
        constants = fitted([one for one in those if one.model != name])
        errors = [min(1.0, float(constants @ (1.0, *one.rates))) * one.rated_w / one.watts - 1 for one in own]
        every += errors
        lines.append(f"   {name:24} {len(own):3} {np.mean(np.abs(errors)):6.1%} {np.mean(errors):+6.1%}")
    rated = [one.rated_w / one.watts - 1 for one in those]
    nine = np.quantile(np.abs(every), 0.9)
    print(f"   power: {said(every)}, nine in ten within {nine:.0%}; at rated power {said(rated)}")
    print("\n".join(lines))


def end_to_end(those: list[Row]) -> None:
    """Joules per token of the same load through `serve`: of its power and of its length of a step."""
    joules, speed, rated, inside = [], [], [], []
    for one in those:
        count = max(32, 3 * one.most)
        load = Workload([PROMPT] * count, [round(one.output)] * count, concurrency=one.most)
        result = serve_with(one.engine, load)
        if result.joules_per_token is None or result.joules_band is None:
            continue
        measured = one.watts * one.engine.gpus / one.tokens_per_s
        joules.append(result.joules_per_token / measured - 1)
        speed.append(result.output_tokens_per_s / one.tokens_per_s - 1)
        rated.append(one.rated_w * one.engine.gpus / result.output_tokens_per_s / measured - 1)
        inside.append(result.joules_band[0] <= measured <= result.joules_band[1])
    print(f"   end to end, {len(joules)}: J/token {said(joules)}, tokens/s {said(speed)}; at rated power {said(rated)};"
          f" in the band {np.mean(inside):.0%}")  # fmt: skip


def splitwise(file: Path) -> None:
    """Llama 2 70B on A100s: mean power over a prompt and its decode steps, at their measured lengths.

    Prompts of 4,096 tokens and more are left out: their means lie below what a GPU draws that waits.
    """
    engines: dict[int, Engine] = {}
    by_tp: dict[int, list[Batch]] = defaultdict(list)
    for line in csv.DictReader(file.open()):
        share, tp, batch, prompt, output = (
            float(line[name]) for name in ("mean_power_of_tdp", "tp", "batch", "prompt_tokens", "output_tokens")
        )
        if share == 0.0 or prompt >= 4096:
            continue
        if tp not in engines:
            cluster = parse_cluster(f"a100-80gb:{tp:.0f}")
            engines[int(tp)] = engine_of(load_model("llama-2-70b"), cluster, Deployment(tp=int(tp)))
        engine, first, each = engines[int(tp)], float(line["prompt_ms"]) / 1e3, float(line["token_ms"]) / 1e3
        held = min(1.0, batch * (prompt + output / 2) * engine.memory.kv_per_token / engine.memory.kv)
        parts = [
            (first, rates(engine, batch * prompt, 0.0, first)),
            (each * (output - 1), rates(engine, batch, held, each)),
        ]
        by_tp[int(tp)].append((share, parts))
    draw = draw_of(engines[2].cluster.gpu)

    def errors(those: list[Batch], busy: float, memory: float) -> list[float]:
        found = []
        for share, parts in those:
            joules = sum(s * min(1.0, busy + memory * bytes_ + draw.matrix * flops) for s, (bytes_, flops) in parts)
            found.append(joules / sum(s for s, _ in parts) / share - 1)
        return found

    for tp, own in by_tp.items():
        others = [row for key, those in by_tp.items() if key != tp for row in those]
        fit = least_squares(lambda c, those=others: errors(those, *c), (0.4, 0.5)).x
        print(f"tp {tp}: {len(own)} rows, as it stands {said(errors(own, draw.busy, draw.memory))};"
              f" left out {said(errors(own, *fit))}")  # fmt: skip
    print("all:", least_squares(lambda c: errors([r for those in by_tp.values() for r in those], *c), (0.4, 0.5)).x)


def said(errors: list[float]) -> str:
    """Mean, median and bias."""
    return f"{np.mean(np.abs(errors)):.1%} (median {np.median(np.abs(errors)):.1%}, bias {np.mean(errors):+.1%})"


if __name__ == "__main__":
    main()
