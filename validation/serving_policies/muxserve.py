"""MuxServe's measured runs: 19 models on 32 A100 under muxserve, spatial and temporal sharing.

    python validation/serving_policies/muxserve.py FOLDER [SYSTEM ...]

FOLDER holds muxserve_latency_tune.csv (times by SM share) and muxserve_runs_tune.csv (placements, rates, requests, what
came of it). Each model sends as many requests as in the run, Poisson at its rate; throughput is requests over the time
until its last one ended, which is what the published figures are. Prints the total of each run beside what was
measured, and whether the best of the three systems is the measured best.

As in hao-ai-lab/MuxServe@2249cfa (benchmark/end_to_end, muxserve/muxsched):

    requests   first two turns of a conversation of ShareGPT V3, prompt <= 1,024, both <= 2,048 and >= 4 tokens, as in
               vLLM's benchmark, where 1,000 of them have 217 and 200 tokens on average (ADBS counts with 416). Turns of
               that data set are in distserve_requests.csv, counted by another tokenizer: these, scaled to the means
    decodes    the least share of the SMs that serves a model's rate alone, by the placement's own estimate; prompts 80
               to 100 %
    memory     80 GiB less weights, two processes and 6 GiB of activations for each model; spatial: half of it
    temporal   fcfs of their scheduler, one job at a time, at most 256 sequences of a model

Fitted: 3 ms of host time in every step, from the latency of lightly loaded models under spatial sharing.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from sm_table import SmTable, read_sm_tables

from windtunnel.studies.serving.multiplex.unit import Llm, LlmAnswer, UnitRequest, run_unit

PLANNED_PROMPT, PLANNED_ANSWER = 161.0, 337.0  # what the authors' placement plans with
QUOTA_TOKENS, BLOCK = 416, 32  # of one sequence, as ADBS counts it; tokens of a block
WEIGHTS_GB = {"llama-7b": 13.5, "llama-13b": 26.0, "llama-30b": 65.0, "llama-65b": 130.0}
SIZE_GB = {"llama-7b": 14.0, "llama-13b": 26.0, "llama-30b": 60.0, "llama-65b": 130.0}  # as the placement counts
LAYERS_HIDDEN = {"llama-7b": (32, 4096), "llama-13b": (40, 5120), "llama-30b": (60, 6656), "llama-65b": (80, 8192)}
SEQUENCE_S = {"llama-7b": 1e-4, "llama-13b": 8e-5, "llama-30b": 7e-5, "llama-65b": 7e-5}  # muxsched
PREFILL_SM = {"llama-7b": 80.0, "llama-13b": 90.0, "llama-30b": 100.0, "llama-65b": 100.0}
GPU_GB = 80.0
PLANNED_GB = (12 * 14 + 4 * 26 + 2 * 60 + 130 + 19 * 6) / 32  # KV of a GPU as shares are chosen
BANDWIDTH = 0.85 * 2.039e12  # A100-80G SXM, as kernels reach it
MEANS = (216.0, 200.0)  # tokens of a prompt and of an answer
STEP_S = 3e-3  # host time of a step
Row = dict[str, str]


def token_bytes(model: str) -> float:
    layers, hidden = LAYERS_HIDDEN[model]
    return 4.0 * layers * hidden


def turns() -> np.ndarray:
    """(prompt, answer) of many requests."""
    path = Path(__file__).parent / "distserve_requests.csv"
    said = np.loadtxt(path, delimiter=",", skiprows=1)[:, 1]  # the next turn of a conversation, of either speaker
    rng = np.random.default_rng(5)
    drawn = np.stack([np.round(rng.choice(said, 20_000) * mean / said.mean()) for mean in MEANS], axis=1)
    kept = (drawn.min(axis=1) >= 4) & (drawn[:, 0] <= 1024) & (drawn.sum(axis=1) <= 2048)
    return drawn[kept].astype(int)


def decode_share(table: SmTable, model: str, gpus: int, rate: float) -> float:
    """SM share of decodes: the least that serves the rate alone, as the authors' estimate has it; else the fastest."""
    most = PLANNED_GB * gpus * 2**30 // (token_bytes(model) * (PLANNED_PROMPT + PLANNED_ANSWER))
    best = (0.0, 0.0)
    for share in sorted(table.decode_ms):
        if share > 90:
            continue
        steps = {}
        for size, line in table.decode_ms[share].items():
            upto = [line[n] for n in sorted(line)][: sum(n <= PLANNED_ANSWER for n in line) + 1]
            means = np.cumsum(upto) / np.arange(1, len(upto) + 1)
            steps[size] = float(means.mean()) * 1e-3
        sizes = sorted(steps)
        low, high = 1.0, max(2.0, min(most, sizes[-1]))
        got = 0.0
        while high - low >= 1:
            batch = (low + high) / 2
            up = next(size for size in sizes if size >= batch)
            step = steps[up] + SEQUENCE_S[model] * batch
            prompts = table.prefill_ms[100].get(256 * up, 0.0) * 1e-3
            got = batch / (step * PLANNED_ANSWER + prompts)
            low, high = (low, batch) if got >= rate else (batch, high)
        if got + min(0.5, 0.1 * got) > rate:
            return float(share)
        best = max(best, (got, float(share)))
    return best[1]


def run(
    rows: list[Row], gpus: int, system: str, tables: dict[tuple[str, int], SmTable], lengths: np.ndarray
) -> list[LlmAnswer]:
    n = len(rows)
    if system == "spatial":
        pool = 0.5 * GPU_GB * 2**30
    else:
        pool = (GPU_GB - sum(SIZE_GB[r["model"]] for r in rows) / gpus - (1.6 + 6) * n) * 2**30
    wants = np.array([float(r["d_rate_req_per_s"]) * token_bytes(r["model"]) for r in rows])
    llms = []
    for row, share in zip(rows, wants / wants.sum(), strict=True):
        rng = np.random.default_rng([0, int(row["llm"].split("-")[1])])
        count, model = int(row["requests"]), row["model"]
        arrivals = np.cumsum(rng.exponential(1.0, count) / float(row["d_rate_req_per_s"]))
        picked = lengths[rng.integers(0, len(lengths), count)]
        asked = [
            UnitRequest(float(at), int(p), int(o), i)
            for i, (at, (p, o)) in enumerate(zip(arrivals, picked, strict=True))
        ]
        table, rate = tables[model, gpus], float(row["d_rate_req_per_s"])
        blocks = int(share * pool * gpus / token_bytes(model)) // BLOCK
        mux = system == "muxserve"
        llms.append(
            Llm(
                row["llm"],
                table,
                asked,
                PREFILL_SM[model] if mux else 100.0,
                decode_share(table, model, gpus, rate) if mux else 90.0,
                STEP_S,
                SEQUENCE_S[model],
                256 if system == "temporal" else blocks // (QUOTA_TOKENS // BLOCK),
                WEIGHTS_GB[model] * 1e9 / gpus,
                token_bytes(model) / gpus,
                BANDWIDTH,
            )
        )
    return run_unit(llms, "fcfs" if system == "temporal" else "adbs", pool)


def main() -> None:
    folder, systems = Path(sys.argv[1]), sys.argv[2:]
    tables, lengths = read_sm_tables(folder / "muxserve_latency_tune.csv"), turns()
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
