"""torchtitan's published step times and memory, predicted from torchtitan's own captured script.

    python validation/programs/torchtitan_rows.py --table training_tune.csv --work /tmp/rows

Each layout of the table's torchtitan rows is captured at its own number of ranks by `windtunnel capture -m
torchtitan.train ...` (no GPU), then priced on the cluster of the row. `--work` keeps the
captured folders.

Nothing is fitted here, but the pricing is not blind to these rows: `cost/calibration/training.yaml` names torchtitan
among the sources of `sustained` (bf16, fp8, attention_flash2) and `host.step_per_doubling_s`. So no figure of this
table is held out.

What differs between a row and its capture is said in its last column:
- torchtitan there was of December 2024 on a nightly build of PyTorch 2.6; here it is the version that is installed,
  on PyTorch 2.13.
- compile: rows with torch.compile are captured, and priced, eager. fp8: captured in bf16 (its conversion wants
  compile).
- async TP is not captured: the row is the same script as the one without.

Memory is what torchtitan printed: the most that the allocator had reserved.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from assets import write_torchtitan_assets

CLUSTER = "h100-sxm-96gb-hbm2e-500w"
SELECTIVE = ("--activation_checkpoint.mode", "selective", "--activation_checkpoint.selective_ac_option", "op")
FULL = ("--activation_checkpoint.mode", "full")


@dataclass(frozen=True)
class Layout:
    """What one capture stands for."""

    name: str
    gpus: int
    words: tuple[str, ...]


def layout_of(row: dict[str, str]) -> Layout:
    """torchtitan's arguments for a row of the table."""
    size = row["model"].removeprefix("Llama-3-")
    words = [
        "--model.flavor",
        size,
        "--training.seq_len",
        row["seq_len"],
        "--training.local_batch_size",
        row["micro_batch"],
    ]
    words += SELECTIVE if row["recompute"].startswith("selective") else FULL
    name = f"{size.lower()}-{row['n_gpus']}-{int(row['seq_len']) // 1024}k"
    for column, option in (("tp", "tensor"), ("cp", "context"), ("pp", "pipeline")):
        if int(row[column]) > 1:
            words += [f"--parallelism.{option}_parallel_degree", row[column]]
            name += f"-{column}{row[column]}"
    return Layout(name, int(row["n_gpus"]), tuple(words))


def captured(layout: Layout, work: Path, verify: int) -> tuple[Path, float]:
    """The captured folder, made unless it is there; seconds it took."""
    folder = work / layout.name
    if (folder / "captured.yaml").exists():
        return folder, 0.0
    begun = time.monotonic()
    place = write_torchtitan_assets(work / "assets")
    command = [sys.executable, "-m", "windtunnel", "capture", "--world-size", str(layout.gpus), "--verify", str(verify)]
    command += ["--out", str(folder), "-m", "torchtitan.train", *layout.words]
    quiet = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(command, cwd=place, env=quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{layout.name} was not captured:\n{done.stderr[-3000:]}")
    return folder, time.monotonic() - begun


def differences(row: dict[str, str]) -> str:
    """What the row had and its capture has not."""
    notes = row["notes"]
    found = ["compile"] if "torch.compile" in notes and "torch.compile: no" not in notes else []
    found += ["fp8"] if row["precision"] == "fp8" else []
    found += ["async TP"] if "AsyncTP yes" in notes else []
    return ", ".join(found) or "-"


def main() -> None:
    """Print the table."""
    from windtunnel.emulate.captured import predict_captured

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True, help="training_tune.csv")
    parser.add_argument("--work", type=Path, help="folder for what is captured (a temporary one)")
    parser.add_argument(
        "--verify", type=int, default=1, help="ranks drawn at random that must equal their representative"
    )
    parser.add_argument("--only", help="rows, with commas between them: titan-001,titan-004")
    given = parser.parse_args()
    with given.table.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["id"].startswith("titan-")]
    if given.only:
        rows = [row for row in rows if row["id"] in given.only.split(",")]
    with tempfile.TemporaryDirectory() as spare:
        work = given.work or Path(spare)
        work.mkdir(parents=True, exist_ok=True)
        print("| row | model | GPUs | seq | measured s | predicted s | error |", end="")
        print(" measured GiB | predicted GiB | error | not captured |")
        print("|---|---|---|---|---|---|---|---|---|---|---|")
        for row in rows:
            layout = layout_of(row)
            folder, _ = captured(layout, work, given.verify)
            result = predict_captured(folder, f"{CLUSTER}:{layout.gpus}")
            measured, gib = float(row["d_step_time_s"]), float(row["peak_mem_gib"])
            peak = max((stage.peak_reserved_bytes for stage in result.memory), default=0) / 2**30
            step = result.step_time_ns / 1e9 if result.step_time_ns else float("nan")
            print(
                f"| {row['id']} | {row['model']} | {layout.gpus} | {row['seq_len']} | {measured:.2f} | {step:.2f} |"
                f" {100 * (step / measured - 1):+.1f} % | {gib:.1f} | {peak:.1f} | {100 * (peak / gib - 1):+.1f} % |"
                f" {differences(row)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
