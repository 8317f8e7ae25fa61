"""Published serving runs that no constant was fitted on, predicted and compared.

    python validation/serving/unseen.py [--only TEXT] [--rows OUT.csv] [--worst 20] [--jobs 1]

`unseen.csv`: facts from pages that each row cites. GPUStack's performance lab (Apache-2.0; `vllm bench serve`, all
requests there at once or a few in flight), NVIDIA's page for NIM, and latency tests of vLLM's own continuous
integration (a fixed batch, offline). Totals of input and output tokens are what the client counted.

`lengths`: `fixed`: each request has the mean. `sharegpt`: the first 1,000 (or 100) of the usual file, whose list is not
published with the runs: exponential lengths with the published means, cut at 1,024 prompt tokens, as the client does.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np

from windtunnel import Deployment, Workload, serve
from windtunnel.evidence.accuracy.serving.models import model_named
from windtunnel.evidence.accuracy.serving.rows import gpu_of
from windtunnel.studies.serving import load_engine

TABLE = Path(__file__).with_name("unseen.csv")
LONGEST_PROMPT = 1024
MEASURES = ("output_tokens_per_s", "tpot_ms", "ttft_ms")
GROUPS = ("source", "engine", "gpu", "model", "weights", "lengths")
OPTIONS = {
    "max_num_batched_tokens": int,
    "max_model_len": int,
    "gpu_memory_utilization": float,
    "chunked_prefill": lambda text: text == "1",
}


@dataclass(frozen=True)
class Found:
    """What is predicted of a row; `reason` where nothing is."""

    values: Mapping[str, float]
    band: float = 0.0
    reason: str = ""


def exponential(count: int, total: int, longest: int, seed: int) -> np.ndarray:
    """`count` lengths of mean `total / count`, at their quantiles, in random order, none above `longest`."""
    shares = (np.arange(count) + 0.5) / count
    shape = -np.log1p(-shares)
    scale = total / count
    for _ in range(20):  # the cut takes from the mean
        values = np.clip(shape * scale, 1, longest)
        scale *= total / values.sum()
    return np.random.default_rng(seed).permutation(np.rint(values).astype(np.int64))


def workload_of(row: Mapping[str, str]) -> Workload:
    """The row's client."""
    count, prompts, outputs = (int(row[name]) for name in ("requests", "input_tokens", "output_tokens"))
    if row["lengths"] == "sharegpt":
        given = exponential(count, prompts, LONGEST_PROMPT, 1), exponential(count, outputs, 2 * LONGEST_PROMPT, 2)
    else:
        given = (np.full(count, max(1, round(total / count))) for total in (prompts, outputs))
    sent, answered = given
    if row["concurrency"]:
        return Workload(sent, answered, concurrency=int(row["concurrency"]))
    return Workload(sent, answered, arrival_ns=np.zeros(count, dtype=np.int64))


def predicted(row: Mapping[str, str]) -> Found:
    """Output tokens/s, and means of TPOT and TTFT in ms."""
    options = dict(one.split("=") for one in row["options"].split(";") if one)
    planned = options.pop("async_scheduling", "") == "1"
    tp, pp, ep = (int(row[name]) for name in ("tp", "pp", "ep"))
    deployment = Deployment(
        engine=f"{row['engine']}-{row['release']}",
        tp=tp,
        pp=pp,
        moe_tp=tp // ep if ep > 1 else None,
        moe_ep=ep if ep > 1 else None,
        weights=row["weights"],
        expert_weights=row["expert_weights"] or None,
        **{name: OPTIONS[name](text) for name, text in options.items()},
    )
    profile = load_engine(deployment.engine)
    if planned:
        profile = replace(profile, asynchronous=True, delay_steps=1)
    model = model_named(row["model"])
    result = serve(model, gpu_of(row["gpu"], deployment.gpus), deployment, workload_of(row), profile=profile)
    if not result.feasible or result.tpot is None or result.ttft is None:
        return Found({}, 0.0, result.reason or result.refusal)
    values = (result.output_tokens_per_s, 1e3 * result.tpot.mean, 1e3 * result.ttft.mean)
    reason = f"{result.refused} refused: {result.refusal}" if result.refused else ""
    return Found(dict(zip(MEASURES, values, strict=True)), result.band, reason)


def ratios(rows: Iterable[Mapping[str, str]], found: Iterable[Found], measure: str) -> list[float]:
    """Predicted over measured, where both are."""
    pairs = zip(rows, found, strict=True)
    return [one.values[measure] / float(row[measure]) for row, one in pairs if row[measure] and one.values]


def group_of(row: Mapping[str, str], name: str) -> str:
    if name == "source":
        return row["source"].partition("@")[0].partition("#")[0]
    if name == "weights":
        return row["expert_weights"] or row["weights"]
    if name == "lengths":
        return f"{row['lengths']}, {'closed loop' if row['concurrency'] else 'at once'}"
    return row[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose line contains this")
    parser.add_argument("--rows", type=Path, help="write each row with what is predicted")
    parser.add_argument("--worst", type=int, default=0, help="show so many of the worst")
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    with TABLE.open() as file:
        rows = [row for row in csv.DictReader(file) if arguments.only in ",".join(row.values())]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        found = list(pool.map(predicted, rows, chunksize=4))
    for name in GROUPS:
        groups: dict[str, list[int]] = defaultdict(list)
        for place, row in enumerate(rows):
            groups[group_of(row, name)].append(place)
        for title, places in groups.items():
            _say(f"{name}: {title}", [rows[place] for place in places], [found[place] for place in places])
    _say("all", rows, found)
    for row, one in zip(rows, found, strict=True):
        if one.reason:
            print(f"{row['id']} {row['model']} {row['gpu']} {row['engine']}: {one.reason}")
    if arguments.worst:
        _worst(rows, found, arguments.worst)
    if arguments.rows is not None:
        with arguments.rows.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*rows[0], *(f"predicted_{name}" for name in MEASURES), "band", "reason"])
            for row, one in zip(rows, found, strict=True):
                values = [f"{one.values[name]:.6g}" if one.values else "" for name in MEASURES]
                writer.writerow([*row.values(), *values, f"{one.band:.4g}", one.reason])


def _say(title: str, rows: list[Mapping[str, str]], found: list[Found]) -> None:
    text = f"{title:74s} {len(rows):4d}"
    for measure in MEASURES:
        values = ratios(rows, found, measure)
        if not values:
            text += " " * 32
            continue
        errors = [abs(value - 1.0) for value in values]
        bias = math.exp(fmean(math.log(value) for value in values))
        text += f" | {fmean(errors):7.1%} median {median(errors):6.1%} x {bias:.2f}"
    inside = [
        abs(math.log(one.values[MEASURES[0]] / float(row[MEASURES[0]]))) <= one.band
        for row, one in zip(rows, found, strict=True)
        if one.values
    ]
    print(text + (f" | in band {fmean(inside):.0%}" if inside else ""))


def _worst(rows: list[Mapping[str, str]], found: list[Found], count: int) -> None:
    pairs = [(row, one) for row, one in zip(rows, found, strict=True) if one.values]
    pairs.sort(key=lambda pair: -abs(math.log(pair[1].values[MEASURES[0]] / float(pair[0][MEASURES[0]]))))
    for row, one in pairs[:count]:
        shown = " ".join(f"{one.values[name] / float(row[name]):.2f}" for name in MEASURES if row[name])
        lengths = f"{row['lengths']} {row['requests']} x {row['input_tokens']}/{row['output_tokens']}"
        print(
            f"{row['id']} {row['model']} {row['gpu']} {row['engine']} {row['weights']} tp{row['tp']} {lengths}: {shown}"
        )


if __name__ == "__main__":
    main()
