"""Programs that are no packages, captured unmodified: they are fetched at a commit, never kept here. For a nightly run.

    pip install einops pybind11 triton deepspeed hjson msgpack ninja psutil py-cpuinfo tqdm
    python validation/programs/fetched.py FOLDER            # clones into FOLDER, captures at 8 ranks; one line each
    python validation/programs/fetched.py FOLDER --world-size 1024 --only nanoGPT

Exit status 1 where one is not captured. What each gave, with its date, stands in docs/support.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIMIT_S = 900


@dataclass(frozen=True)
class Fetched:
    """A repository at a commit, and a launch line in it."""

    name: str
    repository: str
    commit: str
    line: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda folder: None
    environment: tuple[tuple[str, str], ...] = ()


def _random_text(folder: Path) -> None:
    """nanoGPT's data set of characters, drawn at random: 65 of them."""
    import numpy

    place = folder / "data" / "shakespeare_char"
    drawn = numpy.random.RandomState(0)
    for name, count in (("train", 100_000), ("val", 10_000)):
        drawn.randint(0, 65, count).astype(numpy.uint16).tofile(place / f"{name}.bin")


def _helpers(folder: Path) -> None:
    """Megatron-LM compiles these with its first start."""
    subprocess.run(["make", "-C", str(folder / "megatron" / "core" / "datasets")], check=True)


_MEGATRON = (
    *("pretrain_gpt.py", "--mock-data", "--num-layers", "4", "--hidden-size", "256", "--num-attention-heads", "4"),
    *("--seq-length", "256", "--max-position-embeddings", "256", "--micro-batch-size", "1", "--train-iters", "5"),
    *("--lr", "1e-4", "--bf16", "--tokenizer-type", "NullTokenizer", "--vocab-size", "1023", "--eval-iters", "0"),
    *("--eval-interval", "1000", "--transformer-impl", "local", "--attention-backend", "unfused"),
    *("--no-gradient-accumulation-fusion", "--no-persist-layer-norm", "--no-masked-softmax-fusion"),
    *("--no-bias-swiglu-fusion", "--no-bias-gelu-fusion", "--no-rope-fusion", "--no-bias-dropout-fusion"),
)


def _megatron(name: str, *words: str) -> Fetched:
    commit = "d98e8a64ddf34856e74b24714e3bedb2f5a39553"
    line = (*_MEGATRON, *words)
    limit = (("CUDA_DEVICE_MAX_CONNECTIONS", "1"),)
    return Fetched(name, "https://github.com/NVIDIA/Megatron-LM", commit, line, _helpers, limit)


PROGRAMS = (
    Fetched(
        "nanoGPT",
        "https://github.com/karpathy/nanoGPT",
        "3adf61e154c3fe3fca428ad6bc3818b27a3b8291",
        ("train.py", "config/train_shakespeare_char.py", "--eval_iters=2", "--gradient_accumulation_steps=1024"),
        _random_text,
    ),
    _megatron("Megatron-LM, TP 2, PP 2", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"),
    *(
        Fetched(f"DeepSpeed, ZeRO {words}", "", "", (str(HERE / "deepspeed_zero.py"), *words.split()))
        for words in ("2", "2 fp16", "3", "3 init")
    ),
)


def capture(program: Fetched, place: Path, world_size: int) -> tuple[bool, str]:
    """Whether it is captured, and the seconds or the last line of what was said."""
    folder = place / program.repository.rpartition("/")[2] if program.repository else place
    if program.repository and not folder.exists():
        subprocess.run(["git", "clone", "--quiet", program.repository, str(folder)], check=True)
        subprocess.run(["git", "-C", str(folder), "checkout", "--quiet", program.commit], check=True)
        program.prepare(folder)
    out = place / "captured" / program.name.replace(" ", "_").replace(",", "")
    out.parent.mkdir(exist_ok=True)
    batch = ("--global-batch-size", str(world_size)) if program.line[0] == "pretrain_gpt.py" else ()
    words = [sys.executable, "-m", "windtunnel", "capture", "--world-size", str(world_size), "--out", str(out)]
    begun = time.monotonic()
    done = subprocess.run(
        [*words, *program.line, *batch],
        cwd=folder,
        env={**os.environ, **dict(program.environment)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    if done.returncode:
        return False, (done.stderr.strip().splitlines() or ["no word"])[-1]
    return True, f"{time.monotonic() - begun:.0f} s"


def main() -> int:
    """Capture all, or those whose name begins so."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--world-size", type=int, default=8)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    all_are = True
    for program in PROGRAMS:
        if program.name.startswith(given.only):
            is_captured, said = capture(program, given.folder.resolve(), given.world_size)
            all_are = all_are and is_captured
            print(f"{program.name}, {given.world_size:,} ranks: {'yes' if is_captured else 'NO'}, {said}", flush=True)
    return 0 if all_are else 1


if __name__ == "__main__":
    sys.exit(main())
