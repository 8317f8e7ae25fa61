"""Maximum throughput of TensorRT-LLM deployments against its authors' own tables.

    python validation/serving/offline_throughput.py [--model NAME] [--gpu NAME] [--rows OUT.csv] [--jobs 2]

`offline_throughput.csv`: total output tokens/s with all requests there at once, as published in TensorRT-LLM's
performance overview (docs/source/performance/perf-overview.md of v0.20 and v1.0, Apache-2.0): H100, H200, B200, GB200,
RTX PRO 6000, FP8 and NVFP4, 1 to 8 GPUs, tensor and pipeline parallel, ten pairs of lengths. Mixtures of experts ran
with attention data parallelism.

A row says neither batch nor budget: `trtllm-bench` computes both from memory (tensorrt_llm/bench/build/tuning.py), and
decode batches are padded to the graphs that its options list, up to the largest batch
(_torch/pyexecutor/model_engine.py). Both rules are here, as are the numbers of requests. Two constants of 1.0 were
read off rows of mixtures: `uneven_exchange_hop`, and that Grace hosts take twice as long.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import numpy as np

from windtunnel import Deployment, Model, Workload, load_model, serve
from windtunnel.studies.serving import load_engine

TABLE = Path(__file__).with_name("offline_throughput.csv")
REQUESTS = {
    **{(128, 128): 30000, (128, 2048): 3000, (128, 4096): 1500, (500, 2000): 3000, (1000, 1000): 3000},
    **{(1000, 2000): 1500, (2048, 128): 3000, (2048, 2048): 1500, (5000, 500): 1500, (20000, 2000): 1000},
}
GRAPHS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 384, 512, 1024, 2048, 4096, 8192)
MEMORY_GIB = {"h100-sxm": 79.6, "h200-sxm": 140.3, "b200-sxm": 179.1, "gb200": 185.1, "rtx-pro-6000": 95.5}
WEIGHT_BYTES = {"fp8": 1.0, "nvfp4": 0.5}
CACHE_BYTES = 1.0  # fp8, as the checkpoints say
CACHE_SHARE = 0.95
# "In many cases" 0.95, says the page, and 0.90 or lower where memory ran out; which row had which is not said. 0.90,
# the default, for mixtures: their requests went round in as many waves as 0.90 leaves room for, not 0.95.
CACHE_SHARE_OF_MIXTURES = 0.90
# Llama 4's picture tower and projector, which the models here leave out: every rank has them, in 4 bytes, since they
# are made in torch's default format (_torch/models/modeling_llama.py, Llama4VisionEncoder).
TOWER_PARAMETERS = 34 * 23.81e6 + 1.6e6 + 39.9e6 + 21.0e6  # layers, patches, adapter, projector
TOWER_BYTES = 4.0 * TOWER_PARAMETERS


def limits(model: Model, gpu: str, tp: int, pp: int, weights: str, prompt: int, output: int) -> tuple[int, int]:
    """(sequences, tokens) of a step, per stage: `calc_engine_setting` and `finetune_setting` of trtllm-bench."""
    attention = model.layers[0].attention
    per_token = 2 * len(model.layers) * max(tp, attention.kv_heads) * attention.head_dim * CACHE_BYTES / 2**30
    free = MEMORY_GIB[gpu] * tp * pp - model.parameters * WEIGHT_BYTES[weights] / 2**30
    most = free * CACHE_SHARE / (per_token * (prompt + output))
    sequences = min(most, 4096) / pp
    tokens = min(sequences * (1 + prompt / output), 32768)
    step = 128 if sequences < 1024 else 256
    largest = max(64, 32 * math.ceil(sequences / 32)) if sequences < 256 else step * math.ceil(sequences / step)
    if tokens < 4096:
        return largest, max(2048, 256 * math.ceil(tokens / 256))
    step = 512 if tokens < 8192 else 1024
    return largest, step * math.ceil(tokens / step)


def graphs(largest: int) -> tuple[int, ...]:
    """Decode batches that are captured: those listed up to the largest, and the largest."""
    listed = [size for size in GRAPHS if size <= largest]
    return tuple(listed if listed[-1] == largest else [*listed, largest])


def predicted(row: Mapping[str, str]) -> tuple[float, float]:
    """(output tokens/s, logarithmic half-width of the band) of a row."""
    model, gpu = load_model(row["model"]), row["gpu"]
    tp, pp, prompt, output = (int(row[name]) for name in ("tp", "pp", "isl", "osl"))
    largest, budget = limits(model, gpu, tp, pp, row["weights"], prompt, output)
    routed = any(layer.feed_forward.kind == "moe" for layer in model.layers)
    deployment = Deployment(
        engine=f"trtllm-{row['release']}",
        tp=1 if routed else tp,
        attn_dp=tp if routed else 1,
        moe_tp=1 if routed else None,
        moe_ep=tp if routed else None,
        pp=pp,
        weights=row["weights"],
        kv="fp8",
        max_num_seqs=largest,
        max_num_batched_tokens=budget,
        gpu_memory_utilization=CACHE_SHARE_OF_MIXTURES if routed else CACHE_SHARE,
    )
    captured = {"graph_sizes": graphs(min(largest, budget)), "graph_limit": GRAPHS[-1]}
    # No attention_dp_config was given, and its enable_balance is off by default: ranks do not wait for prompts.
    profile = load_engine(deployment.engine)
    beside = profile.reserved_bytes + (TOWER_BYTES if row["model"].startswith("llama-4") else 0.0)
    profile = replace(profile, gather_steps=0, reserved_bytes=beside, **captured)
    count = REQUESTS[prompt, output]
    lengths = {"input_tokens": np.full(count, prompt), "output_tokens": np.full(count, output)}
    at_once = Workload(**lengths, arrival_ns=np.zeros(count, dtype=np.int64))
    found = serve(model, f"{gpu}:{tp * pp}", deployment, at_once, profile=profile)
    return found.output_tokens_per_s, found.band


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--gpu")
    parser.add_argument("--rows", type=Path, help="write each row with what is predicted")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    with TABLE.open() as file:
        rows = [row for row in csv.DictReader(file) if _asked(row, arguments)]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        found = list(pool.map(predicted, rows, chunksize=4))
    ratios = [rate / float(row["output_tokens_per_s"]) for row, (rate, _) in zip(rows, found, strict=True)]
    groups: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[f"{row['model']} {row['gpu']} {row['weights']} tp{row['tp']} pp{row['pp']} {row['release']}"].append(
            place
        )
    for name, places in groups.items():
        _say(name, [ratios[place] for place in places])
    dense = [ratio for row, ratio in zip(rows, ratios, strict=True) if not _routed(row["model"])]
    _say("dense", dense)
    _say("mixtures of experts", [ratio for row, ratio in zip(rows, ratios, strict=True) if _routed(row["model"])])
    _say("all", ratios)
    inside = [abs(math.log(ratio)) <= band for ratio, (_, band) in zip(ratios, found, strict=True)]
    print(f"in band {mean(inside):.1%}")
    if arguments.rows is not None:
        with arguments.rows.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*rows[0], "predicted"])
            writer.writerows([*row.values(), f"{rate:.6g}"] for row, (rate, _) in zip(rows, found, strict=True))


def _asked(row: Mapping[str, str], arguments: argparse.Namespace) -> bool:
    return arguments.model in (None, row["model"]) and arguments.gpu in (None, row["gpu"])


def _routed(name: str) -> bool:
    return any(layer.feed_forward.kind == "moe" for layer in load_model(name).layers)


def _say(name: str, ratios: list[float]) -> None:
    if ratios:
        errors = [abs(ratio - 1) for ratio in ratios]
        middle = math.exp(mean(map(math.log, ratios)))
        print(f"{name:52s} {len(ratios):4d} rows {mean(errors):6.1%} median {median(errors):6.1%} ratio {middle:.2f}")


if __name__ == "__main__":
    main()
