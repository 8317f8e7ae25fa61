"""torchtitan's published step times and memory, predicted from torchtitan's own captured script.

    python validation/programs/torchtitan_rows.py --table training_tune.csv --work /tmp/rows --page docs/torchtitan.md

Each layout of the table's torchtitan rows is captured at its own number of ranks by `windtunnel capture -m
torchtitan.train ...` (no GPU), then priced on the cluster of the row. `--work` keeps the
captured folders.

Nothing is fitted here, but the pricing is not blind to these rows: `cost/calibration/training.yaml` names torchtitan
among the sources of `sustained` (bf16, fp8, attention_flash2) and `host.step_per_doubling_s`. So no figure of this
table is held out.

As the benchmarks were run (their page, and torchtitan's source of December 2024): `torch.compile` of each layer, the
loss not compiled; float8 for all linear layers but the last, with float8 all-gather and scales computed once a step;
expandable segments, which torchtitan's launch script asks for.

FSDP is laid over the model as torchtitan did then (`torchtitan_2024.py`); the rest is the version that is installed, on
PyTorch 2.13, not a nightly build of 2.6. What else differs between a row and its capture is said in its last column:
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assets import write_torchtitan_assets

CLUSTER = "h100-sxm-96gb-hbm2e-500w"
SELECTIVE = ("--activation_checkpoint.mode", "selective", "--activation_checkpoint.selective_ac_option", "op")
FULL = ("--activation_checkpoint.mode", "full")
THEN = ("--experimental.custom_import", "torchtitan_2024")
COMPILE = ("--compile.enable", "--compile.components", "model")
FLOAT8 = (
    *("--model.converters", "quantize.linear.float8"),
    *("--quantize.linear.float8.enable_fsdp_float8_all_gather",),
    *("--quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp",),
    *("--quantize.linear.float8.filter_fqns", "output"),
)


@dataclass(frozen=True)
class Layout:
    """What one capture stands for."""

    name: str
    gpus: int
    words: tuple[str, ...]


def compiles(row: dict[str, str]) -> bool:
    """Whether the row's layers were compiled."""
    return "torch.compile" in row["notes"] and "torch.compile: no" not in row["notes"]


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
    if compiles(row):
        words += COMPILE
        name += "-compile"
    if row["precision"] == "fp8":
        words += FLOAT8
        name += "-fp8"
    return Layout(name, int(row["n_gpus"]), tuple(words))


def captured(layout: Layout, work: Path, verify: int) -> tuple[Path, float]:
    """The captured folder, made unless it is there; seconds it took."""
    folder = work / layout.name
    if (folder / "captured.yaml").exists():
        return folder, 0.0
    begun = time.monotonic()
    place = write_torchtitan_assets(work / "assets")
    command = [sys.executable, "-m", "windtunnel", "capture", "--world-size", str(layout.gpus), "--verify", str(verify)]
    command += ["--out", str(folder), "-m", "torchtitan.train", *THEN, *layout.words]
    path = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    quiet = {
        **os.environ,
        "PYTHONPATH": path,
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
    }
    done = subprocess.run(command, cwd=place, env=quiet, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{layout.name} was not captured:\n{done.stderr[-3000:]}")
    return folder, time.monotonic() - begun


def differences(row: dict[str, str]) -> str:
    """What the row had and its capture has not."""
    return "async TP" if "AsyncTP yes" in row["notes"] else "-"


HEAD = (
    *("row", "model", "GPUs", "seq", "precision", "measured s", "predicted s", "error", "op by op"),
    *("measured GiB", "predicted GiB", "error", "op by op", "not captured"),
)


def figures(row: dict[str, str], layout: Layout, folder: Path) -> list[str]:
    """A line of the table. "Op by op": the same capture as if nothing had been compiled."""
    from windtunnel.emulate.captured import load, predict_captured

    job = load(folder)
    measured, gib = float(row["d_step_time_s"]), float(row["peak_mem_gib"])
    step, peak = _predicted(predict_captured(job, f"{CLUSTER}:{layout.gpus}", expandable_segments=True))
    cells = [row["id"], row["model"], f"{layout.gpus}", row["seq_len"], row["precision"]]
    before = ["-", "-"]
    if compiles(row):
        programs = {
            rank: replace(program, ops=tuple(replace(op, compiled=0) for op in program.ops))
            for rank, program in job.programs.items()
        }
        eager = predict_captured(replace(job, programs=programs), f"{CLUSTER}:{layout.gpus}", expandable_segments=True)
        before = [_error(value, true) for value, true in zip(_predicted(eager), (measured, gib), strict=True)]
    cells += [f"{measured:.2f}", f"{step:.2f}", _error(step, measured), before[0]]
    return [*cells, f"{gib:.1f}", f"{peak:.1f}", _error(peak, gib), before[1], differences(row)]


def _predicted(result: Any) -> tuple[float, float]:
    peak = max((stage.peak_reserved_bytes for stage in result.memory), default=0) / 2**30
    return result.step_time_ns / 1e9 if result.step_time_ns else float("nan"), peak


def _error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.1f} %"


PAGE = """# torchtitan's published benchmarks, from its own captured script

Written by `python validation/programs/torchtitan_rows.py --page docs/torchtitan.md`; do not edit.

torchtitan's benchmarks of December 2024 (Llama 3 on H100 with 96 GB HBM2e and a limit of 500 W,
`benchmarks/llama3_h100_202412_torchtitan.md`), each captured at its own number of ranks without a GPU by `windtunnel
capture -m torchtitan.train ...` (version {version}, PyTorch {torch}) and priced on that GPU. FSDP and float8 tensor
parallelism are laid over the model as torchtitan did then: `validation/programs/torchtitan_2024.py`. *Op by op*: the
error of the same capture as if nothing had been compiled. Constants are those of every prediction; `cost/calibration`
names these rows among the sources of some, so the table is no held-out test. {differences}

"""


CAUSES = """
What is known of the rest:

- Kernels cost what they cost in every prediction; for these runs that is a few per cent too much where they are
  compiled. Without compilation PyTorch of that time ran RMSNorm as a chain of kernels, which now is one.
- Context parallelism: attention costs the same per FLOP at every degree. In the published runs two ranks attend a tenth
  faster per FLOP than one does, four and eight a quarter slower.
- 70B: memory is largest in the loss, which is sharded over the vocabulary. The published run without async TP has more,
  the one with it about as much.
"""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=Path, required=True, help="training_tune.csv")
    parser.add_argument("--work", type=Path, help="folder for what is captured (a temporary one)")
    parser.add_argument(
        "--verify", type=int, default=1, help="ranks drawn at random that must equal their representative"
    )
    parser.add_argument("--only", help="rows, with commas between them: titan-001,titan-004")
    parser.add_argument("--page", type=Path, help="write the table here as well")
    given = parser.parse_args()
    with given.table.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["id"].startswith("titan-")]
    if given.only:
        rows = [row for row in rows if row["id"] in given.only.split(",")]
    text = [HEAD, ("---",) * len(HEAD)]
    print(_line(HEAD), _line(text[1]), sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as spare:
        work = given.work or Path(spare)
        work.mkdir(parents=True, exist_ok=True)
        for row in rows:
            layout = layout_of(row)
            folder, _ = captured(layout, work, given.verify)
            text.append(tuple(figures(row, layout, folder)))
            print(_line(text[-1]), flush=True)
    if given.page:
        from importlib.metadata import version

        titles = {
            "version": version("torchtitan"),
            "torch": version("torch"),
            "differences": "Async TP is not captured: its\nrow is the same script as the one without.",
        }
        given.page.write_text(PAGE.format(**titles) + "\n".join(map(_line, text)) + "\n" + CAUSES)


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
