"""DistServe against vLLM-style colocation, on the serving core with the authors' own fitted step times.

    python validation/serving_policies/distserve.py FOLDER

FOLDER holds distserve_fits_tune.csv, distserve_max_tokens_tune.csv, distserve_attainment_tune.csv and
lengths_arxiv_summarization_tune.csv. Prints attainment beside what was measured, and the gain over vLLM of each of the
paper's five cases as its artifact computes it: both systems on one grid of rates with so many prompts per GPU, where
the straight lines between the points cross 90 %, or the lowest rate where they do not.

Requests of ShareGPT are the authors' own, in their order (distserve_requests.csv, from LLMServe/DistServe@20a1633:
simdistserve/benchmarks/alignment/data-ground-truth, Apache-2.0), sent when their client sent them: one run per rate.
DistServe: 128 prompts or 8,192 tokens, caches pulled, first token at the end of prefill. vLLM: whole prompts before
decodes, 1 % watermark; its runs of OPT-13B in that folder are of two kinds, and so are ours:

    quick   at 1 request/s: prompts take 28 ms + 0.124 ms a token, 2,048 tokens a step, none padded. Fitted on the times
            to the first token of 65 requests (vllm-100-1.exp), least squares: 10 ms off on average
    table   at 2 requests/s: as the table has it, up to 16 % slower, 16,384 tokens a step, padded to the longest

The gain of OPT-13B is taken with `quick`, since 90 % are crossed at low rates, all others with `table`. The table holds
single forward passes. DistServe's served prompts take 6 ms more: 60 requests of distserve-c21d11-300-3.exp (those in
distserve_first_tokens.csv that waited for no other) take 20.7 ms + 0.078 ms a token to the first token, least squares,
where the table has 14.7 ms + 0.069 ms; the fixed part's difference is the engine's. vLLM's at 2 requests/s take what
the table says (302 ms for 1,835 tokens, 307 in the table), and decode steps of both do.

Limits of OPT-66B on ShareGPT are the paper's (2.5 s, 0.15 s), not those of its artifact's scripts (0.4 s, 0.1 s), with
which vLLM is never at 90 %. Its rates are eighths: the gains that its notebook printed, 2.7504 over vLLM and 1.5729
over DeepSpeed-MII, come of 200, 100 and 100 requests and lines between eighths in one way only, with DistServe at 0.955
requests/s per GPU and vLLM at 0.347. The rates of the scripts' grid give them in none.

What is not published, and what stands in for it:
    OPT-175B   no fitted times: those of OPT-66B with the same tensor parallelism, each term by what it is made of
               (weights read, launches per layer, FLOPs, attention); nothing measured of 175B goes in
    its pipeline   at most as many batches at once as stages, as its engine has it (single_stage_engine.py), one prompt
               each: the paper batches to about 512 tokens there, and most prompts are longer
    HumanEval  no lengths: lognormal, sd of the logarithm 0.5, about the paper's means of 171 and 98 tokens
    LongBench  no lengths: its recipe (a prompt cut to 1,900 to 2,048 tokens) on arXiv papers; answers about its mean 91
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
from fitted_times import Line, fitted_times, read_fits

from windtunnel.studies.serving.disaggregated.server import Disaggregated
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.sequence import Sequence
from windtunnel.studies.serving.step_time.times import TICKS_PER_NS
from windtunnel.studies.serving.workload.requests import Workload

GPU = "A100-80G-SXM"
BLOCK = 16
SEEDS = range(10)
TARGET = 90.0


@dataclass(frozen=True, slots=True)
class Case:
    """One panel of the paper's figures 8 and 9, with the limits, prompts and rates of its artifact."""

    model: str
    data: str
    ttft_s: float
    tpot_s: float
    prompts: int  # per GPU and rate
    rates: tuple[float, ...]  # per GPU
    published: float  # gain over vLLM (OSDI '24, section 6.2)


# vLLM's tp; (tp, pp) of DistServe's prefill and decode
LAYOUTS = {"opt-13b": (1, (2, 1), (1, 1)), "opt-66b": (4, (4, 1), (2, 2)), "opt-175b": (8, (3, 3), (4, 3))}
CASES = (
    Case("opt-13b", "sharegpt", 0.25, 0.1, 100, (0.25, 0.5, 1, 1.5, 2, 2.25, 2.5, 3), 4.6),
    Case("opt-66b", "sharegpt", 2.5, 0.15, 25, tuple(k / 8 for k in range(1, 9)), 2.75),
    Case("opt-175b", "sharegpt", 4.0, 0.2, 25, tuple(k / 32 for k in range(1, 11)), 1.99),
    Case("opt-66b", "humaneval", 0.125, 0.2, 50, tuple(0.125 + k / 4 for k in range(9)), 5.7),
    Case("opt-66b", "longbench", 15.0, 0.15, 25, tuple(k / 16 for k in range(1, 11)), 4.2),
)
WAITED_MS = 25.0  # a first token that is so much later than the line of the others has waited for another prompt
QUICK = (28.0, 0.124, 0.0)  # ms: fixed, per token, per token squared
BANDWIDTH = 0.85 * 2.039e12  # of an A100-80G SXM, as kernels reach it
LAYERS_HIDDEN = {"opt-66b": (64, 9216), "opt-175b": (96, 12288)}


class Study:
    """Tables of one folder, and both systems on them."""

    def __init__(self, folder: Path) -> None:
        self.fits = read_fits(folder / "distserve_fits_tune.csv")
        with (folder / "distserve_max_tokens_tune.csv").open() as file:
            self.tokens = {
                (row["model"], int(row["tp"]), int(row["pp"])): int(row["max_num_tokens"])
                for row in csv.DictReader(file)
            }
        self.served_s = 1e-3 * (served_fixed_ms() - self.fits[GPU, "distserve", "opt-13b", 2][0][0])
        self.quick = self.fits | {(GPU, "vllm", "opt-13b", 1): (QUICK, *self.fits[GPU, "vllm", "opt-13b", 1][1:])}
        for tp in (3, 4, 8):
            for engine in ("distserve", "vllm"):
                self.fits[GPU, engine, "opt-175b", tp] = larger(self.fits[GPU, engine, "opt-66b", tp], tp)
        self.lengths = {
            "sharegpt": requests(),
            "humaneval": humaneval(),
            "longbench": longbench(folder / "lengths_arxiv_summarization_tune.csv"),
        }

    def load(self, data: str, n: int, rate: float, seed: int) -> Workload:
        prompts, answers = self.lengths[data]
        rows = np.arange(n) if data == "sharegpt" else np.random.default_rng(seed).integers(0, len(prompts), n)
        return Workload(prompts[rows], answers[rows], sent_ns(n, rate))

    def colocated(self, case: Case, per_gpu: float, seed: int, quick: bool = False) -> float:
        model, (tp, _, _) = case.model, LAYOUTS[case.model]
        times = fitted_times(self.quick if quick else self.fits, GPU, "vllm", model, tp, pads_prompts=not quick)
        tokens = 2048 if quick else 16384
        blocks = self.tokens[model, tp, 1] // BLOCK
        rules = Rules(
            batching="prefill_first",
            chunked=False,
            max_num_seqs=1024,
            token_budget=tokens,
            longest_chunk=tokens,
            watermark_blocks=blocks // 100,
        )
        workload = self.load(case.data, case.prompts * tp, per_gpu * tp, seed)
        sent, _ = simulate(workload, [Replica(times, rules, blocks)], None, block_size=BLOCK)
        return attained(sent, {one.index: one.first_ns for one in sent}, case)

    def disaggregated(self, case: Case, per_gpu: float, seed: int) -> float:
        model, (_, first, second) = case.model, LAYOUTS[case.model]
        gpus = first[0] * first[1] + second[0] * second[1]
        prompt_times = fitted_times(self.fits, GPU, "distserve", model, *first)
        prompt_times.prompt_s = self.served_s
        decode_times = fitted_times(self.fits, GPU, "distserve", model, *second)
        common = {"batching": "prefill_first", "chunked": False}
        at_once = 128 if first[1] == 1 else 1
        prefill = Replica(
            prompt_times,
            Rules(max_num_seqs=at_once, token_budget=8192, longest_chunk=8192, **common),
            self.tokens[(model, *first)] // BLOCK,
        )
        if first[1] > 1:
            prompt_times.clock = lambda: prefill._clock
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
            if prompt_times.clock is not None:
                one.first_ns = prompt_times.done_ticks // TICKS_PER_NS
            firsts[one.index] = one.first_ns
            return hand_over(one)

        prefill.on_first = stamped
        workload = self.load(case.data, case.prompts * gpus, per_gpu * gpus, seed)
        sent, _ = simulate(workload, [server], None, block_size=BLOCK)
        return attained(sent, firsts, case)


def sent_ns(n: int, rate: float) -> np.ndarray:
    """When the authors' client sent its requests: gaps of seed 0, scaled so that the last goes at n / rate."""
    times = np.cumsum(np.random.RandomState(0).gamma(1.0, 1.0, n))
    times = (times - times[0]) / (times[-1] - times[0]) * n / rate
    return np.asarray(np.round(times * 1e9), dtype=np.int64)


def served_fixed_ms() -> float:
    """Of the line through DistServe's times to the first token, OPT-13B on 2 GPUs, without requests that waited."""
    path = Path(__file__).parent / "distserve_first_tokens.csv"
    tokens, took = np.loadtxt(path, delimiter=",", skiprows=1, unpack=True)
    alone = np.full(len(tokens), True)
    while True:
        slope, fixed = np.polyfit(tokens[alone], took[alone], 1)
        still = np.abs(took - fixed - slope * tokens) < WAITED_MS
        if (still == alone).all():
            return float(fixed)
        alone = still


def larger(times: tuple[Line, Line, Line, int], tp: int) -> tuple[Line, Line, Line, int]:
    """OPT-175B's lines from OPT-66B's: fixed part = weights read + launches, then FLOPs and attention."""
    (small_layers, small), (layers, hidden) = LAYERS_HIDDEN["opt-66b"], LAYERS_HIDDEN["opt-175b"]
    flops, attention = layers * hidden**2 / (small_layers * small**2), layers * hidden / (small_layers * small)
    read_ms = 2.0 * 12.0 * small_layers * small**2 / tp / BANDWIDTH * 1e3

    def fixed(a: float) -> float:
        return max(0.0, a - read_ms) * layers / small_layers + read_ms * flops

    prefill, *decoding = times[:3]
    few, many = ((fixed(a), b * attention, c * flops) for a, b, c in decoding)
    return (fixed(prefill[0]), prefill[1] * flops, prefill[2] * attention), few, many, times[3]


def requests() -> tuple[np.ndarray, np.ndarray]:
    """The authors' requests of ShareGPT, in their order."""
    rows = np.loadtxt(Path(__file__).parent / "distserve_requests.csv", delimiter=",", skiprows=1, dtype=int)
    return rows[:, 0], rows[:, 1]


def humaneval() -> tuple[np.ndarray, np.ndarray]:
    rng, sd = np.random.default_rng(0), 0.5
    drawn = (mean * rng.lognormal(-(sd**2) / 2, sd, 1640) for mean in (171.0, 98.0))
    prompts, answers = (np.maximum(1, np.round(values)).astype(int) for values in drawn)
    return prompts, answers


def longbench(path: Path) -> tuple[np.ndarray, np.ndarray]:
    rows = np.loadtxt(path, delimiter=",", skiprows=1)
    answers = np.clip(np.round(rows[:, 1] * 91.0 / rows[:, 1].mean()), 1, 1000).astype(int)
    cut = np.random.default_rng(0).integers(1900, 2049, len(rows))
    return np.minimum(rows[:, 0].astype(int), np.minimum(2040 - answers, cut)), answers


def attained(sent: list[Sequence], firsts: dict[int, int], case: Case) -> float:
    """Percent of requests within both limits."""
    met = 0
    for one in sent:
        first = firsts[one.index]
        per_token = (one.last_ns - first) / max(1, one.output - 1)
        met += (first - one.arrival_ns) <= case.ttft_s * 1e9 and per_token <= case.tpot_s * 1e9
    return 100.0 * met / len(sent)


Run = Callable[[Case, float, int], float]


def mean(run: Run, case: Case, per_gpu: float) -> float:
    seeds = SEEDS[:1] if case.data == "sharegpt" else SEEDS  # those requests are given
    return float(np.mean([run(case, per_gpu, seed) for seed in seeds]))


def goodput(run: Run, case: Case) -> tuple[float, str]:
    """(rate at which attainment falls through the target, a remark), straight between the rates of the grid."""
    curve = [(rate, mean(run, case, rate)) for rate in case.rates]
    if curve[0][1] < TARGET:
        return curve[0][0], f" ({curve[0][1]:.0f} % at the lowest rate)"
    for (rate, value), (rate2, value2) in pairwise(curve):
        if value2 < TARGET:
            return rate + (rate2 - rate) * (value - TARGET) / (value - value2), ""
    return curve[-1][0], f" ({curve[-1][1]:.0f} % at the highest rate)"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("folder", type=Path)
    asked = words.parse_args()
    folder = asked.folder
    study = Study(folder)
    for data, (prompts, answers) in study.lengths.items():
        print(f"{data}: mean {prompts.mean():.0f} in, {answers.mean():.0f} out")
    quick = partial(study.colocated, quick=True)
    runs = {"distserve": (study.disaggregated,), "vllm": (quick, study.colocated)}
    errors = []
    print("model     system      rate/GPU  measured  simulated (vLLM: quick, table)")
    with (folder / "distserve_attainment_tune.csv").open() as file:
        for row in csv.DictReader(file):
            if row["system"] not in runs:
                continue
            case = next(one for one in CASES if (one.model, one.data) == (row["model"], row["dataset"]))
            found = [mean(run, case, float(row["x"])) for run in runs[row["system"]]]
            errors.append(min(abs(one - float(row["attainment_percent"])) for one in found))
            told = " ".join(f"{one:10.1f}" for one in found)
            print(f"{row['model']:9} {row['system']:10} {row['x']:>9} {row['attainment_percent']:>9} {told}")
    size = np.array(errors)
    print(f"{len(size)} points: mean {size.mean():.1f} points off, largest {size.max():.1f} (vLLM: the nearer kind)")
    for case in CASES:
        colocated = quick if case.model == "opt-13b" else study.colocated
        (ours, said), (theirs, also) = (goodput(run, case) for run in (study.disaggregated, colocated))
        ratio = ours / theirs
        print(
            f"{case.model} {case.data} within {case.ttft_s} s and {case.tpot_s} s: DistServe {ours:.3f}{said}, "
            f"vLLM {theirs:.3f}{also} requests/s per GPU: {ratio:.2f} x, published {case.published} x "
            f"({ratio / case.published - 1:+.0%})"
        )


if __name__ == "__main__":
    main()
