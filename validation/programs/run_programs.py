"""Run programs that are not ours, unmodified, under `windtunnel capture` and `windtunnel run`, for docs/support.md.

    python validation/programs/run_programs.py                    # all of them, into docs/support.md
    python validation/programs/run_programs.py --only torchtitan --no-large
    python validation/programs/run_programs.py --list

Each program is captured at a small and at a large number of ranks, on pretended GPUs, and run as one real CPU rank
where it can train on a CPU at all. Nothing is downloaded: tokenizer and text are made in a temporary folder
(assets.py). Programs whose packages are not installed are left out, and named.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
PAGE = REPOSITORY / "docs" / "support.md"
TITAN = ("-m", "torchtitan.train")
FETCHED = (  # by hand, with fetched.py
    ("nanoGPT 3adf61e, character model", "8", "yes, 27 s, 2 classes, 1.18 TFLOP a step"),
    ("nanoGPT 3adf61e, character model", "1,024", "yes, 98 s, 2 classes from 19 ranks"),
    ("Megatron-LM d98e8a6 `pretrain_gpt.py`, TP 2, PP 2", "8", "yes, 98 s, 4 classes"),
    ("DeepSpeed 0.19.8, ZeRO 2", "8", "yes, 53 s, 7 classes"),
    ("DeepSpeed 0.19.8, ZeRO 3 with `zero.Init`", "8", "yes, 55 s, 1 class"),
)
MARK = "<!-- written by validation/programs/run_programs.py -->"


@dataclass(frozen=True)
class Program:
    """One launch line, at two sizes."""

    name: str
    packages: tuple[str, ...]
    line: tuple[str, ...]
    small: int = 8
    large: int = 1024
    large_line: tuple[str, ...] | None = None  # where the large run is another one
    run_on_cpu: str = ""  # why not, or "" where it runs
    real_line: tuple[str, ...] | None = None


def _titan(name: str, *words: str, small: int = 8, large: int = 1024) -> Program:
    line = (*TITAN, "--training.steps", "10", *words)
    return Program(name, ("torchtitan",), line, small, large, run_on_cpu="torchtitan insists on an accelerator")


def _script(
    name: str, package: str, file: str, *words: str, small: int = 8, large: int = 1024, cpu: str = ""
) -> Program:
    return Program(name, (package,) if package else (), (str(HERE / file), *words), small, large, run_on_cpu=cpu)


def _example(file: str, *words: str, small: int = 8, large: int = 1024) -> Program:
    path = REPOSITORY / "examples" / "distributed" / file
    return Program(f"examples: {file} {' '.join(words)}".strip(), (), (str(path), *words), small, large)


_LLAMA_8B = ("--model.flavor", "8B", "--training.seq_len", "8192", "--training.local_batch_size", "1")
_OP = ("--activation_checkpoint.selective_ac_option", "op")
_FULL = ("--activation_checkpoint.mode", "full")
_MEGATRON_CPU = "megatron-core insists on CUDA"

PROGRAMS = (
    _titan("torchtitan: Llama 3 debug model, FSDP2"),
    _titan("torchtitan: Llama 3 debug model, HSDP", "--parallelism.data_parallel_replicate_degree", "2"),
    _titan("torchtitan: Llama 3 debug model, TP 2", "--parallelism.tensor_parallel_degree", "2"),
    _titan("torchtitan: Llama 3 debug model, PP 2, 1F1B", "--parallelism.pipeline_parallel_degree", "2"),
    _titan(
        "torchtitan: Llama 3 debug model, PP 2, interleaved",
        *("--parallelism.pipeline_parallel_degree", "2", "--parallelism.pipeline_parallel_schedule", "Interleaved1F1B"),
    ),
    _titan("torchtitan: Llama 3 debug model, CP 2", "--parallelism.context_parallel_degree", "2"),
    _titan("torchtitan: Llama 3 debug model, flex attention", "--model.flavor", "debugmodel_flex_attn"),
    _titan("torchtitan: Llama 3 debug model, torch.compile", "--compile.enable"),
    _titan("torchtitan: Llama 3 8B, FSDP2", *_LLAMA_8B, *_OP, large=128),
    _titan(
        "torchtitan: Llama 3 70B, FSDP2 x TP 8",
        *("--model.flavor", "70B", "--training.seq_len", "8192", "--training.local_batch_size", "1"),
        *("--parallelism.tensor_parallel_degree", "8", *_FULL),
        small=64,
        large=256,
    ),
    _titan(
        "torchtitan: Llama 3 405B, FSDP2 x TP 8 x PP 16",
        *("--model.flavor", "405B", "--training.seq_len", "8192", "--training.local_batch_size", "16", *_FULL),
        *("--parallelism.tensor_parallel_degree", "8", "--parallelism.pipeline_parallel_degree", "16"),
        small=256,
        large=8192,
    ),
    _titan(
        "torchtitan: DeepSeek-V3 debug model, EP 4",
        *("--model.name", "deepseek_v3", "--parallelism.expert_parallel_degree", "4"),
    ),
    _titan(
        "torchtitan: Llama 4 debug model, EP 4",
        *("--model.name", "llama4", "--parallelism.expert_parallel_degree", "4"),
    ),
    _script("transformers Trainer, DDP", "transformers", "hf_trainer.py"),
    _script("transformers Trainer, FSDP 1", "transformers", "hf_trainer.py", "--fsdp", "1"),
    _script("transformers Trainer, FSDP 2", "transformers", "hf_trainer.py", "--fsdp", "2"),
    _script("Lightning, DDP", "lightning", "lightning_trainer.py"),
    _script(
        "Lightning, FSDP", "lightning", "lightning_trainer.py", "--strategy", "fsdp", cpu="Lightning wants a GPU for it"
    ),
    _script("megatron-core GPT, TP 2", "megatron-core", "megatron_gpt.py", "--tp", "2", cpu=_MEGATRON_CPU),
    _script(
        "megatron-core GPT, PP 2, TP 2", "megatron-core", "megatron_gpt.py", "--pp", "2", "--tp", "2", cpu=_MEGATRON_CPU
    ),
    _script(
        *("megatron-core GPT, PP 2 interleaved", "megatron-core", "megatron_gpt.py", "--pp", "2", "--vpp", "2"),
        cpu=_MEGATRON_CPU,
    ),
    _script(
        *("megatron-core GPT, MoE, EP 4", "megatron-core", "megatron_gpt.py", "--ep", "4", "--experts", "8"),
        cpu=_MEGATRON_CPU,
    ),
    _script(
        *("megatron-core GPT, distributed optimizer", "megatron-core", "megatron_gpt.py", "--distributed-optimizer"),
        cpu=_MEGATRON_CPU,
    ),
    _example("train_ddp.py"),
    _example("train_fsdp2.py"),
    _example("train_tp.py", "--tp", "2"),
    _example("train_3d.py", "--pp", "2", "--micro-batches", "4"),
    _example("train_3d.py", "--pp", "2", "--schedule", "interleaved", "--micro-batches", "4"),
    _example("train_3d.py", "--pp", "2", "--schedule", "zbv", "--micro-batches", "4"),
    _example("train_cp.py", "--cp", "2"),
    _example("train_ep.py", "--ep", "2"),
)


def missing(program: Program) -> list[str]:
    """Packages of it that are not installed."""
    found = []
    for package in program.packages:
        try:
            version(package)
        except PackageNotFoundError:
            found.append(package)
    return found


def environment() -> dict[str, str]:
    """So that nothing asks the network."""
    return {**os.environ, "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


def launched(words: Iterable[str], place: Path, limit_s: float) -> tuple[int, str, str, float]:
    """(status, what it printed, its errors, seconds) of `windtunnel ...`."""
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "windtunnel", *words],
            cwd=place,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return 124, "", f"windtunnel: error: not done in {limit_s:.0f} s", time.monotonic() - begun
    return done.returncode, done.stdout, done.stderr, time.monotonic() - begun


def capture(program: Program, ranks: int, place: Path, limit_s: float, verify: int = 2) -> dict[str, object]:
    """Capture at this size: what came of it."""
    line = program.large_line if program.large_line is not None and ranks == program.large else program.line
    out = place / f"captured-{abs(hash((program.name, ranks)))}"
    words = [
        "capture",
        "--world-size",
        str(ranks),
        "--verify",
        str(verify),
        "--jobs",
        "1",
        "--json",
        "--out",
        str(out),
        *line,
    ]
    status, printed, errors, seconds = launched(words, place, limit_s)
    if status:
        return {"ok": False, "why": _why(errors), "seconds": seconds}
    document = json.loads(printed)
    return {
        "ok": True,
        "seconds": seconds,
        "classes": len(document["classes"]),
        "played": document["verification"]["played"],
        "one": document["seconds_of_one_rank"],
        "peak": document["peak_rss_bytes"],
        "folder": str(out),
    }


def real(program: Program, ranks: int, place: Path, limit_s: float) -> dict[str, object]:
    """Run as one real rank of so many."""
    words = ["run", "--world-size", str(ranks), "--rank", "0", "--cluster", f"h100-sxm:{ranks}", "--json"]
    status, printed, errors, seconds = launched([*words, *(program.real_line or program.line)], place, limit_s)
    if status:
        return {"ok": False, "why": _why(errors or printed), "seconds": seconds}
    return {"ok": True, "seconds": seconds, **json.loads(printed)}


def _why(errors: str) -> str:
    lines = [line for line in errors.strip().splitlines() if line.startswith("windtunnel: error:")]
    text = (lines or errors.strip().splitlines() or ["no message"])[-1].removeprefix("windtunnel: error: ")
    text = text.split("; the traceback")[0].replace("|", "/")
    text = re.sub(r"/\S*/(site-packages|validation)/", "", text)
    return text if len(text) < 220 else text[:220] + " ..."


def cell(found: dict[str, object] | None) -> str:
    """One result in the table."""
    if found is None:
        return "-"
    if not found["ok"]:
        return "**no**"
    peak = found.get("peak")
    text = f"yes, {float(found['seconds']):.0f} s"  # type: ignore[arg-type]
    if isinstance(peak, int):
        text += f", {found['played']} ranks run, {found['classes']} class{'es' if found['classes'] != 1 else ''}"
        text += f", {peak / 2**30:.2f} GiB"
    return text


def main() -> None:
    """Run and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="programs whose name holds this")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--no-large", action="store_true")
    parser.add_argument("--no-run", action="store_true")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for one run")
    parser.add_argument("--results", type=Path, help="a file that keeps what was found, and is added to (JSON lines)")
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    chosen = [p for p in PROGRAMS if given.only.lower() in p.name.lower()]
    if given.list:
        for program in chosen:
            print(program.name, "" if not missing(program) else f"(not installed: {', '.join(missing(program))})")
        return
    sys.path.insert(0, str(HERE))
    from assets import write_torchtitan_assets

    rows: dict[str, dict[str, object]] = {}
    if given.results and given.results.exists():
        rows = {row["name"]: row for row in map(json.loads, given.results.read_text().splitlines())}
    with tempfile.TemporaryDirectory(prefix="windtunnel-programs-") as folder:
        place = write_torchtitan_assets(Path(folder))
        for program in chosen:
            if missing(program):
                print(f"{program.name}: {', '.join(missing(program))} not installed", flush=True)
                continue
            small = capture(program, program.small, place, given.limit)
            large = capture(program, program.large, place, given.limit) if small["ok"] and not given.no_large else None
            emulated = None if given.no_run or program.run_on_cpu else real(program, program.small, place, given.limit)
            row = {"name": program.name, "small": small, "large": large, "run": emulated}
            before = rows.get(program.name, {})
            rows[program.name] = {**before, **{key: value for key, value in row.items() if value is not None}}
            print(f"{program.name}: {cell(small)}; {cell(large)}; {cell(emulated)}", flush=True)
            for found in (small, large, emulated):
                if found is not None and not found["ok"]:
                    print(f"    {found['why']}", flush=True)
            if given.results:
                given.results.write_text("".join(json.dumps(row) + "\n" for row in rows.values()))
    given.page.write_text(page(rows))


def page(rows: dict[str, dict[str, object]]) -> str:
    """docs/support.md."""
    lines = [
        "# Programs that run",
        "",
        MARK,
        "",
        "Unmodified programs under `windtunnel capture` (pretended GPUs, tensors without data) and `windtunnel run`",
        "(one real CPU rank, all others virtual). The table is produced by running them:",
        "`python validation/programs/run_programs.py`.",
        "",
        f"Versions: {', '.join(_versions())}; Python {platform.python_version()}, {os.cpu_count()} cores.",
        "Tokenizer and text are made locally: torchtitan's own test assets are not in its wheel.",
        "",
        "Columns: ranks, then seconds for the whole command, ranks that were run, classes found, and the most memory",
        "that one rank took on this machine.",
        "",
        "| program | captured at | captured large | one real rank |",
        "|---|---|---|---|",
    ]
    reasons = []
    for program in PROGRAMS:
        row = rows.get(program.name)
        if row is None:
            continue
        cells = []
        for key, ranks in (("small", program.small), ("large", program.large), ("run", program.small)):
            found = row.get(key)
            text = cell(found)  # type: ignore[arg-type]
            if key == "run" and found is None and program.run_on_cpu:
                text = f"not on a CPU ({program.run_on_cpu})"
            elif found is not None:
                text = f"{ranks:,}: {text}"
                if not found["ok"]:  # type: ignore[index]
                    reasons.append(f"- {program.name}, {key}: {found['why']}")  # type: ignore[index]
            cells.append(text)
        lines.append(f"| {program.name} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Fetched programs",
        "",
        "Programs that are no packages, fetched at a commit and captured unmodified:",
        "`python validation/programs/fetched.py FOLDER` names versions and commands (2026-11-24, torch 2.13.0+cpu,",
        "Python 3.11, two busy cores: CPU seconds).",
        "",
        "| program | ranks | captured |",
        "|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in FETCHED),
        "",
        "Megatron-LM's main needs Python 3.12 for `typing.override`: here a `sitecustomize.py` gave 3.11 one.",
        "DeepSpeed 0.19.8 was unpacked from its sdist. ZeRO-2's flat buffers are cut at other places on each rank:",
        "they do not fold.",
    ]
    lines += ["", "## What does not run, and why", "", *(reasons or ["Everything in the table runs."])]
    lines += [
        "",
        "- torchtitan 0.3.0 is made for a newer PyTorch: its trainer calls `torch.distributed.set_timeout`, which",
        "  2.13.0 has not; its default `spmd_types` backend shards plain tensors with `fully_shard(dp_mesh_dims=...)`,",
        "  which 2.13.0 refuses; and it replays CUDA graphs. It is captured (Llama 3 debug model, 8 ranks: 2 are run,",
        "  1 class, 807 ops) with a script that adds the one function,",
        "",
        "      import torch.distributed as dist",
        "      from torchtitan.train import main",
        '      if not hasattr(dist, "set_timeout"):',
        "          dist.set_timeout = lambda timeout, group=None: None",
        "      main()",
        "",
        "  as `windtunnel capture --world-size 8 titan.py --module llama3 --config llama3_debugmodel",
        "  --parallelism.spmd_backend partial_dtensor --training.disable_cuda_graphs`. 0.2.2 runs as it is.",
        "- Hugging Face's `datasets` writes its cache from Python and reads it from C++, where what a capture keeps",
        "  aside is not seen: load the data set once before, so that its cache is there.",
        "- torchao 0.18 cannot be imported with Triton 3.9; Triton 3.8 works.",
        "- `torch.compile`: the script's graphs are not built; the same code is captured as eager ops, and `predict`",
        "  fuses them.",
        "- `flex_attention` is captured as one fused causal attention; a document mask costs less than that.",
        "- CUDA graphs are refused: what they replay is never seen by PyTorch's dispatcher.",
        "- Triton kernels that a program launches itself are not run: one op that touches all the tensors it is given.",
        "- Kernels of its own in CUDA need to be registered as custom ops with a fake form.",
        "- megatron-core 0.16.1 names `te_general_gemm` in its MoE router without defining it where Transformer Engine",
        "  is missing: `megatron_gpt.py` defines it.",
        "",
    ]
    return "\n".join(lines)


def _versions() -> list[str]:
    found = []
    for package in (
        "torch",
        "torchtitan",
        "transformers",
        "accelerate",
        "lightning",
        "megatron-core",
        "datasets",
        "torchao",
        "triton",
    ):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main()
