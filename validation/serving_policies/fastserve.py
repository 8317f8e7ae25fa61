"""FastServe's published curves of OPT-13B: its skip-join queues, its own FCFS, and vLLM, on the serving core.

    python validation/serving_policies/fastserve.py FOLDER

FOLDER holds fastserve_curves_tune.csv, distserve_fits_tune.csv and lengths_sharegpt_tune.csv. Nothing is fitted: step
times are the lines that the same authors published for their engine on an A100-80G, lengths their ShareGPT recipe;
batch 16, 2,048 prompt tokens, 56 GB of host memory for swaps as in their artifact, which does not name the GPU. Prints
mean normalised latency beside the published one, whether FastServe < FCFS < vLLM at every rate past the knee, and the
rates at 0.3 s per token.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
from fitted_times import fitted_times, read_fits
from sharegpt import lengths

from windtunnel.studies.serving.batching.continuous import ContinuousBatching
from windtunnel.studies.serving.batching.plan import Batching
from windtunnel.studies.serving.batching.skip_join import SkipJoinBatching
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.stepwise import StepwiseReplica
from windtunnel.studies.serving.workload.requests import Workload

BLOCK, BATCH, PROMPT_TOKENS = 16, 16, 2048
KV_TOKENS, TOKEN_BYTES = 66144, 2 * 2 * 40 * 5120  # of OPT-13B on 80 GB (distserve_max_tokens)
HOST_BYTES, PCIE_BYTES_PER_S = 56e9, 25e9  # each way: swaps in and out pass each other
TICKS_PER_S = 1024e9
SLO_S, KNEE_S, SEEDS = 0.3, 0.06, range(3)


def main() -> None:
    folder = Path(sys.argv[1])
    fits = read_fits(folder / "distserve_fits_tune.csv")
    times = fitted_times(fits, "A100-80G-SXM", "distserve", "opt-13b", 1)
    prompts, answers = lengths(folder / "lengths_sharegpt_tune.csv")
    kept = prompts <= PROMPT_TOKENS - BATCH
    prompts, answers = prompts[kept], answers[kept]
    swap_ticks = round(TICKS_PER_S * BLOCK * TOKEN_BYTES / PCIE_BYTES_PER_S / 2)
    common = {"max_num_seqs": BATCH, "token_budget": PROMPT_TOKENS, "longest_chunk": PROMPT_TOKENS, "chunked": False}
    host_blocks = int(HOST_BYTES / TOKEN_BYTES / BLOCK)

    def latency(system: str, n: int, rate: float, seed: int) -> float:
        policy: Batching = ContinuousBatching()
        rules = Rules(batching="prefill_first", **common)
        if system == "fastserve":
            policy = SkipJoinBatching(
                lambda tokens: times.mixed(0, 0, [(tokens, 0)], 1) // 1024, batch=BATCH, host_blocks=host_blocks
            )
            rules = Rules(swap_ticks_per_block=swap_ticks, **common)
        elif system == "fastserve-fcfs":
            rules = Rules(reserve="output", **common)
        rng = np.random.default_rng(seed)
        rows = rng.integers(0, len(prompts), n)
        arrivals = np.round(np.cumsum(rng.exponential(1.0, n)) / rate * 1e9).astype(np.int64)
        replica = StepwiseReplica(times, rules, KV_TOKENS // BLOCK, policy, host_blocks)
        sent, _ = simulate(Workload(prompts[rows], answers[rows], arrivals), [replica], None, block_size=BLOCK)
        assert all(one.last_ns >= 0 for one in sent), "every request ends"
        return float(np.mean([(one.last_ns - one.arrival_ns) * 1e-9 / one.output for one in sent]))

    published: dict[str, dict[float, tuple[float, int]]] = defaultdict(dict)
    with (folder / "fastserve_curves_tune.csv").open() as file:
        for row in csv.DictReader(file):
            if (row["figure"], row["model"]) == ("11", "opt-13b"):
                point = (float(row["value"]), int(row["prompts"] or 400))
                published[row["system"]][float(row["rate_req_per_s"])] = point
    systems = ("fastserve", "fastserve-fcfs", "vllm")
    ours = {
        system: {
            rate: float(np.mean([latency(system, n, rate, seed) for seed in SEEDS]))
            for rate, (_, n) in sorted(published[system].items())
        }
        for system in systems
    }
    print("rate   " + "   ".join(f"{system:>22}" for system in systems) + "   (simulated / published, s per token)")
    for rate in sorted(published["fastserve"]):
        cells = [
            f"{ours[s][rate]:9.3f} / {published[s][rate][0]:9.3f}" if rate in ours[s] else " " * 21 for s in systems
        ]
        print(f"{rate:5}   " + "   ".join(f"{cell:>22}" for cell in cells))
    past = [rate for rate in ours["vllm"] if ours["vllm"][rate] > KNEE_S and rate in ours["fastserve"]]
    held = [rate for rate in past if ours["fastserve"][rate] < ours["fastserve-fcfs"][rate] < ours["vllm"][rate]]
    print(f"FastServe < FCFS < vLLM at {len(held)} of {len(past)} rates past the knee")
    rates = {s: (_rate_at(ours[s]), _rate_at({r: v for r, (v, _) in published[s].items()})) for s in systems}
    for other in systems[1:]:
        mine, theirs = (rates["fastserve"][k] / rates[other][k] for k in (0, 1))
        off = mine / theirs - 1.0
        print(f"rate at {SLO_S} s per token over {other}: {mine:.2f} x, published {theirs:.2f} x ({off:+.0%})")


def _rate_at(curve: dict[float, float]) -> float:
    """Rate at which a curve first crosses the limit, straight between points."""
    points = sorted(curve.items())
    for (rate, value), (rate2, value2) in pairwise(points):
        if value <= SLO_S < value2:
            return rate + (rate2 - rate) * (SLO_S - value) / (value2 - value)
    return points[-1][0]


if __name__ == "__main__":
    main()
