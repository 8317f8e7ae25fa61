"""Whole runs, request by request, held against what an engine stamped.

    python validation/serving/per_request.py FOLDER [--own-prices]

FOLDER holds `llmservingsim_runs_*.csv`, `_requests_*`, `_workloads_*` and the kernel tables beside them
(casys-kaist/LLMServingSim, bench/examples and profiler/perf). Each run goes through `windtunnel serve --requests
--requests-out`, from the machine's own kernel tables, or with `--own-prices` from windtunnel's. TTFT and E2E count from
when the engine queued a request, as the source's tables do. Printed: the ratio of means less one, and the mean over
requests of |predicted / measured - 1|.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

Stamps = dict[str, dict[str, float]]


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("folder", type=Path)
    words.add_argument("--own-prices", action="store_true")
    asked = words.parse_args()
    runs = _rows(_only(asked.folder, "llmservingsim_runs_*.csv"))
    requests = _rows(_only(asked.folder, "llmservingsim_requests_*.csv"))
    workloads = _rows(_only(asked.folder, "llmservingsim_workloads_*.csv"))
    for run in runs:
        measured = {row["request"]: _numbers(row) for row in requests if row["run"] == run["run"]}
        load = [row for row in workloads if row["workload"] == run["workload"]]
        predicted = _predicted(run, load, asked.folder, asked.own_prices)
        parts = []
        for name in ("tpot_s", "e2e_s", "ttft_s"):
            pairs = [(_measure(predicted[key], name), _measure(measured[key], name)) for key in measured]
            kept = [(ours, theirs) for ours, theirs in pairs if theirs > 0.0]
            means = statistics.fmean(ours for ours, _ in kept) / statistics.fmean(theirs for _, theirs in kept) - 1.0
            each = statistics.fmean(abs(ours / theirs - 1.0) for ours, theirs in kept)
            parts.append(f"{name} mean {means:+.1%}, each {each:.1%}")
        print(f"{run['run']}: {'; '.join(parts)}", flush=True)


def _predicted(run: dict[str, str], load: list[dict[str, str]], folder: Path, own: bool) -> Stamps:
    gpu = {"RTXPRO6000": "rtx-pro-6000"}.get(run["gpu"], run["gpu"].lower())
    with tempfile.TemporaryDirectory() as place:
        sent, out = Path(place, "sent.csv"), Path(place, "out.csv")
        with sent.open("w", newline="", encoding="utf-8") as file:
            lines = csv.DictWriter(file, list(load[0]))
            lines.writeheader()
            lines.writerows(load)
        command = [
            *(sys.executable, "-m", "windtunnel", "serve", run["model"].rpartition("/")[2].lower()),
            *("--cluster", f"{gpu}:{run['tp']}", "--tp", run["tp"]),
            *("--engine", f"{run['engine']}-{run['engine_version']}", "--max-num-seqs", run["max_num_seqs"]),
            *("--max-num-batched-tokens", run["max_num_batched_tokens"]),
            *("--requests", str(sent), "--rows", str(out), "--json"),
        ]
        if not own:
            command += ["--kernels", str(folder)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        output = {row["request"]: float(row["output_tokens"]) for row in load}
        return {row["request"]: {**_numbers(row), "output_tokens": output[row["request"]]} for row in _rows(out)}


def _measure(stamps: dict[str, float], name: str) -> float:
    if name == "ttft_s":
        return stamps["first_token_s"] - stamps["queued_s"]
    if name == "e2e_s":
        return stamps["last_token_s"] - stamps["queued_s"]
    return (stamps["last_token_s"] - stamps["first_token_s"]) / max(1.0, stamps["output_tokens"] - 1.0)


def _numbers(row: dict[str, str]) -> dict[str, float]:
    return {key: float(value) for key, value in row.items() if key not in ("run", "request") and value}


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise SystemExit(f"{folder} holds {len(found)} files like {pattern}; one is needed")
    return found[0]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
