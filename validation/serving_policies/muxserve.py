"""MuxServe's measured runs: 19 models on 32 A100 under muxserve, spatial and temporal sharing.

    python validation/serving_policies/muxserve.py FOLDER [SYSTEM ...]

FOLDER holds muxserve_latency_tune.csv (times by SM share), muxserve_runs_tune.csv (placements, rates, requests, what
came of it) and lengths_sharegpt_tune.csv. Each model sends as many requests as in the run, Poisson at its rate;
throughput is requests over the time until its last one ended, which is what the published figures are. Prints the total
of each run beside what was measured, and whether the best of the three systems is the measured best.

Fitted: the mean answer, 290 tokens, from the latency of lightly loaded models under spatial sharing. Prompts: 161, the
mean of ShareGPT in vLLM's benchmark. Memory and host constants are MuxServe's own. SM shares were not published: the
prefill job has 80 %, decodes share the GPU equally, between 30 and 60 %.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from muxserve_unit import Asked, Llm, LlmAnswer, run_unit
from sm_table import SmTable, read_sm_tables

MEAN_PROMPT, MEAN_ANSWER = 161.0, 290.0
WEIGHTS_GB = {"llama-7b": 13.5, "llama-13b": 26.0, "llama-30b": 65.0, "llama-65b": 130.0}
LAYERS_HIDDEN = {"llama-7b": (32, 4096), "llama-13b": (40, 5120), "llama-30b": (60, 6656), "llama-65b": (80, 8192)}
SEQUENCE_S = {"llama-7b": 1e-4, "llama-13b": 8e-5, "llama-30b": 7e-5, "llama-65b": 7e-5}  # muxsched
MEMORY_BYTES, RESERVED_BYTES, USED = 80e9, 6e9, 0.98  # of a GPU; per model; share (muxsched)
BANDWIDTH = 0.85 * 2.039e12  # A100-80G SXM, as kernels reach it
PREFILL_SM, LEAST_SM, MOST_SM = 80.0, 30.0, 60.0
Row = dict[str, str]


def sharegpt(folder: Path) -> np.ndarray:
    with (folder / "lengths_sharegpt_tune.csv").open() as file:
        turns = [(int(r["input_tokens"]), int(r["output_tokens"])) for r in csv.DictReader(file) if r["d_turn"] == "0"]
    kept = np.array([pair for pair in turns if pair[0] <= 1024 and sum(pair) <= 2048 and min(pair) >= 4], float)
    return np.maximum(1, np.round(kept * (np.array([MEAN_PROMPT, MEAN_ANSWER]) / kept.mean(axis=0)))).astype(int)


def run(
    rows: list[Row], gpus: int, system: str, tables: dict[tuple[str, int], SmTable], lengths: np.ndarray
) -> list[LlmAnswer]:
    cache = USED * MEMORY_BYTES * gpus - sum(WEIGHTS_GB[r["model"]] * 1e9 + RESERVED_BYTES for r in rows)
    token = {name: 4.0 * layers * hidden for name, (layers, hidden) in LAYERS_HIDDEN.items()}
    weights = np.array([float(r["d_rate_req_per_s"]) * token[r["model"]] for r in rows])
    llms = []
    for row, share in zip(rows, weights / weights.sum(), strict=True):
        rng = np.random.default_rng([0, int(row["llm"].split("-")[1])])
        n, model = int(row["requests"]), row["model"]
        arrivals = np.cumsum(rng.exponential(1.0, n) / float(row["d_rate_req_per_s"]))
        picked = lengths[rng.integers(0, len(lengths), n)]
        asked = [Asked(float(at), int(p), int(o)) for at, (p, o) in zip(arrivals, picked, strict=True)]
        alone = len(rows) == 1
        llms.append(
            Llm(
                row["llm"],
                tables[model, gpus],
                asked,
                100.0 if alone else PREFILL_SM,
                100.0 if alone else max(LEAST_SM, min(MOST_SM, 100.0 / len(rows))),
                SEQUENCE_S[model],
                max(share * cache / token[model], float(picked.sum(axis=1).max())),
                WEIGHTS_GB[model] * 1e9 / gpus,
                token[model] / gpus,
                BANDWIDTH,
            )
        )
    return run_unit(llms, "adbs" if system == "muxserve" else "temporal")


def main() -> None:
    folder, systems = Path(sys.argv[1]), sys.argv[2:]
    tables, lengths = read_sm_tables(folder / "muxserve_latency_tune.csv"), sharegpt(folder)
    runs: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    with (folder / "muxserve_runs_tune.csv").open() as file:
        for row in csv.DictReader(file):
            if row["throughput_req_per_s"] and (not systems or row["system"] in systems):
                runs[row["alpha"], row["rate_scale"], row["system"]].append(row)
    totals: dict[tuple[str, str], dict[str, tuple[float, float]]] = defaultdict(dict)
    for (alpha, scale, system), rows in runs.items():
        units: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            units[row["llm"] if system == "spatial" else row["placement"]].append(row)
        ours = 0.0
        for name, unit in units.items():
            gpus = int(unit[0]["placement"]) if system == "spatial" else int(name[4 : name.index("idx")])
            ours += sum(answer.throughput_per_s for answer in run(unit, gpus, system, tables, lengths))
        measured = sum(float(row["throughput_req_per_s"]) for row in rows)
        totals[alpha, scale][system] = (ours, measured)
        print(
            f"alpha {alpha} scale {scale:4} {system:9} {ours:7.1f} measured {measured:7.1f} {ours / measured - 1:+.1%}"
        )
    errors = {
        s: [abs(o / m - 1) for t in totals.values() for name, (o, m) in t.items() if name == s]
        for s in ("muxserve", "spatial", "temporal")
    }
    for system, found in errors.items():
        if found:
            print(f"{system}: {np.mean(found):.1%} off on average, {np.max(found):.1%} at most, {len(found)} runs")
    full = [t for t in totals.values() if len(t) == 3]
    right = sum(max(t, key=lambda s: t[s][0]) == max(t, key=lambda s: t[s][1]) for t in full)
    everything = [error for found in errors.values() for error in found]
    within = np.mean(np.array(everything) <= 0.12)
    print(f"all: {np.mean(everything):.1%} off, {within:.0%} of runs within 12 %; right winner {right} of {len(full)}")


if __name__ == "__main__":
    main()
