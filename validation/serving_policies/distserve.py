"""DistServe against vLLM-style colocation, on the serving core with the authors' own fitted step times.

    python validation/serving_policies/distserve.py FOLDER

FOLDER holds distserve_fits_tune.csv, distserve_max_tokens_tune.csv, distserve_attainment_tune.csv and
lengths_sharegpt_tune.csv. Prints attainment beside what was measured (mean over seeds, 100 prompts per GPU as in the
paper, so no run is long), and the goodput ratio of both systems where the fits have the model.

Nothing is fitted here. vLLM: whole prompts before decodes, padded to the longest of the step as its releases then did,
16,384 tokens, 1 % watermark. DistServe: 128 prompts or 8,192 tokens, caches pulled, first token at the end of prefill.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from fitted_times import fitted_times, read_fits
from sharegpt import lengths

from windtunnel.serving.disaggregated.server import Disaggregated
from windtunnel.serving.replica.replica import Replica
from windtunnel.serving.replica.rules import Rules
from windtunnel.serving.replica.sequence import Sequence
from windtunnel.serving.simulate import simulate
from windtunnel.serving.workload.requests import Workload

GPU = "A100-80G-SXM"
BLOCK = 16
SEEDS = range(10)
# model: TTFT and TPOT limits in s; vLLM's tp; (tp, pp) of prefill and decode; published gain (OSDI '24, section 6.2)
SETUPS = {
    "opt-13b": (0.25, 0.1, 1, (2, 1), (1, 1), 4.6),
    "opt-66b": (2.5, 0.15, 4, (4, 1), (2, 2), 2.75),
    "opt-175b": (4.0, 0.2, 8, (3, 3), (4, 3), 1.99),
}


class Study:
    """Tables of one folder, and both systems on them."""

    def __init__(self, folder: Path) -> None:
        self.fits = read_fits(folder / "distserve_fits_tune.csv")
        with (folder / "distserve_max_tokens_tune.csv").open() as file:
            self.tokens = {
                (row["model"], int(row["tp"]), int(row["pp"])): int(row["max_num_tokens"])
                for row in csv.DictReader(file)
            }
        self.prompts, self.answers = lengths(folder / "lengths_sharegpt_tune.csv")

    def load(self, n: int, rate: float, seed: int) -> Workload:
        rng = np.random.default_rng(seed)
        rows = rng.integers(0, len(self.prompts), n)
        arrivals = np.round(np.cumsum(rng.exponential(1.0, n)) / rate * 1e9).astype(np.int64)
        return Workload(self.prompts[rows], self.answers[rows], arrivals)

    def colocated(self, model: str, per_gpu: float, seed: int) -> float:
        ttft, tpot, tp, *_ = SETUPS[model]
        times = fitted_times(self.fits, GPU, "vllm", model, tp, pads_prompts=True)
        blocks = self.tokens[model, tp, 1] // BLOCK
        rules = Rules(
            batching="prefill_first",
            chunked=False,
            max_num_seqs=1024,
            token_budget=16384,
            longest_chunk=16384,
            watermark_blocks=blocks // 100,
        )
        workload = self.load(100 * tp, per_gpu * tp, seed)
        sent, _ = simulate(workload, [Replica(times, rules, blocks)], None, block_size=BLOCK)
        return attained(sent, {one.index: one.first_ns for one in sent}, ttft, tpot)

    def disaggregated(self, model: str, per_gpu: float, seed: int) -> float:
        ttft, tpot, _, first, second, _ = SETUPS[model]
        gpus = first[0] * first[1] + second[0] * second[1]
        prompt_times = fitted_times(self.fits, GPU, "distserve", model, *first)
        decode_times = fitted_times(self.fits, GPU, "distserve", model, *second)
        common = {"batching": "prefill_first", "chunked": False}
        prefill = Replica(
            prompt_times,
            Rules(max_num_seqs=128, token_budget=8192, longest_chunk=8192, **common),
            self.tokens[(model, *first)] // BLOCK,
        )
        decode = Replica(
            decode_times,
            Rules(max_num_seqs=1024, token_budget=65536, longest_chunk=65536, **common),
            self.tokens[(model, *second)] // BLOCK,
        )
        server = Disaggregated([prefill], [decode], lambda tokens: 0)  # NVLink: under a millisecond
        firsts: dict[int, int] = {}
        hand_over = prefill.on_first
        assert hand_over is not None

        def stamped(one: Sequence) -> bool:
            """The client has the first token when prefill is done, not when the cache has moved."""
            one.first_ns += prompt_times.prompt_tail_ns(one.prompt)
            firsts[one.index] = one.first_ns
            return hand_over(one)

        prefill.on_first = stamped
        sent, _ = simulate(self.load(100 * gpus, per_gpu * gpus, seed), [server], None, block_size=BLOCK)
        return attained(sent, firsts, ttft, tpot)


def attained(sent: list[Sequence], firsts: dict[int, int], ttft_s: float, tpot_s: float) -> float:
    """Percent of requests within both limits."""
    met = 0
    for one in sent:
        first = firsts[one.index]
        per_token = (one.last_ns - first) / max(1, one.output - 1)
        met += (first - one.arrival_ns) <= ttft_s * 1e9 and per_token <= tpot_s * 1e9
    return 100.0 * met / len(sent)


def mean(run: Callable[[str, float, int], float], model: str, per_gpu: float) -> float:
    return float(np.mean([run(model, per_gpu, seed) for seed in SEEDS]))


def goodput(run: Callable[[str, float, int], float], model: str, percent: float) -> float:
    low, high = 0.02, 8.0
    for _ in range(9):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if mean(run, model, middle) >= percent else (low, middle)
    return low


def main() -> None:
    folder = Path(sys.argv[1])
    study = Study(folder)
    print(f"lengths: mean {study.prompts.mean():.0f} in, {study.answers.mean():.0f} out")
    errors = []
    print("model     system      rate/GPU  measured  simulated")
    with (folder / "distserve_attainment_tune.csv").open() as file:
        for row in csv.DictReader(file):
            run = {"vllm": study.colocated, "distserve": study.disaggregated}.get(row["system"])
            if run is None or (GPU, row["system"], row["model"], SETUPS[row["model"]][2]) not in study.fits:
                continue
            ours = mean(run, row["model"], float(row["x"]))
            errors.append(ours - float(row["attainment_percent"]))
            print(f"{row['model']:9} {row['system']:10} {row['x']:>9} {row['attainment_percent']:>9} {ours:10.1f}")
    size = np.abs(errors)
    within = np.mean(size <= 6)
    print(f"{len(size)} points: mean {size.mean():.1f} points off, largest {size.max():.1f}, {within:.0%} within 6")
    for model, (*_, published) in SETUPS.items():
        if (GPU, "vllm", model, SETUPS[model][2]) not in study.fits:
            print(f"{model}: no fits in this table; published {published} x")
            continue
        for percent in (90.0, 85.0):
            ours, theirs = (goodput(run, model, percent) for run in (study.disaggregated, study.colocated))
            ratio = f"{ours / theirs:.2f} x" if theirs > 0.021 else "vLLM never"
            told = f"{model} at {percent:.0f} %: DistServe {ours:.2f}, vLLM {theirs:.2f} requests/s per GPU"
            print(f"{told}: {ratio} (published at 90 %: {published} x)")


if __name__ == "__main__":
    main()
