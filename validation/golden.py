"""About 200 questions over the verbs, and their answers byte by byte: what a change of structure must leave as it was.

    python validation/golden.py write DIR        answers, one file each, into a new folder
    python validation/golden.py check DIR        ask again and name every answer that differs; exit status 1 if one does

Values are unlike those of the tests. Captured folders are made once, by `write`, from the scripts in examples/, and
need torch; without torch those questions are left out. Errors and infeasible jobs are answers as well.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import itertools
import os
import random
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SCRIPTS = {
    "ddp": ("train_ddp.py", 24, ()),
    "fsdp": ("train_fsdp2.py", 48, ()),
    "tp": ("train_tp.py", 16, ("--tp", "4")),
    "3d": ("train_3d.py", 32, ("--pp", "4", "--tp", "2", "--batch", "32", "--micro-batches", "8")),
    "ep": ("train_ep.py", 16, ("--ep", "4")),
    "cp": ("train_cp.py", 8, ("--cp", "2")),
}
DENSE = (
    "llama-2-13b",
    "llama-3-8b",
    "qwen2.5-32b",
    "mistral-7b",
    "gpt3-175b",
    "bloom-176b",
    "mpt-30b",
    "nemotron-4-340b",
)
MIXED = ("mixtral-8x7b", "deepseek-v2-lite", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-20b")
MACHINES = ("a100-80gb", "a100-40gb", "h100-sxm", "h200", "b200", "gb200", "mi300x", "l40s", "tpu-v6e", "h800")
SLOW = (
    "gpu=5:1.31",
    "stage=0:1.07",
    "random=3%:1.4",
    "thermal=9:1.3:120",
    "link=node1.nic2:0.4",
    "lost=node0.nic1",
    "uplink=leaf0:0.6",
    "ecmp=3",
    "pause=1%:70ms",
    "noise=4%",
)


def planned() -> Iterator[tuple[str, ...]]:
    """Plans drawn over everything that a plan may say; some are illegal, some do not fit."""
    draw = random.Random(20261122)
    for number in range(110):
        model = draw.choice(DENSE if number % 3 else MIXED)
        gpus = draw.choice((8, 24, 48, 96, 192, 384, 768, 3072))
        words = [model, "--cluster", f"{draw.choice(MACHINES)}:{gpus}"]
        words += ["--framework", draw.choice(("megatron", "torchtitan", "fsdp", "nanotron", "pytorch", "megatron"))]
        words += ["--tp", str(draw.choice((1, 2, 4, 8)))]
        pp = draw.choice((1, 1, 2, 3, 4, 8))
        words += ["--pp", str(pp), "--cp", str(draw.choice((1, 1, 1, 2)))]
        words += ["--seq", str(draw.choice((1536, 3072, 6144, 12288)))]
        words += [
            "--micro-batch",
            str(draw.choice((1, 1, 2, 3))),
            "--global-batch",
            str(gpus * draw.choice((3, 6, 12))),
        ]
        if model in MIXED:
            words += ["--ep", str(draw.choice((1, 2, 4, 8)))]
            if draw.random() < 0.3:
                words += ["--router-load", f"zipf:{draw.choice((0.2, 0.7))}"]
        if draw.random() < 0.5:
            words += ["--zero-stage", str(draw.randrange(4))]
        if draw.random() < 0.4:
            words += ["--recompute", draw.choice(("full", "full:3", "selective:attention", "selective:mlp,norms"))]
        if pp > 1 and draw.random() < 0.5:
            words += ["--schedule", draw.choice(("gpipe", "zb-h1", "dualpipe", "interleaved", "zb-v"))]
            words += ["--virtual-stages", str(draw.choice((1, 2)))]
        if draw.random() < 0.4:
            words += ["--precision", draw.choice(("fp8", "fp16", "mxfp8", "nvfp4", "fp32"))]
        for _ in range(draw.choice((0, 0, 0, 1, 2))):
            words += ["--slow", draw.choice(SLOW)]
        if draw.random() < 0.15:
            words += ["--jitter", "2.5%", "--samples", "37", "--seed", str(number)]
        if draw.random() < 0.15:
            words += ["--set", draw.choice(("cluster.nic=130Gb/s", "model.layers=13", "cluster.gpu.memory=61GiB"))]
        yield ("predict", *words)
    base = ("predict", "qwen2.5-32b", "--cluster", "h100-sxm:96", "--tp", "4", "--pp", "2", "--seq", "3072")
    for slow in itertools.chain(SLOW, ("gpu=200:1.2", "gpu=3", "nothing=1")):
        yield (*base, "--global-batch", "72", "--slow", slow)
    yield (*base, "--global-batch", "71")
    yield ("predict", "no-such-model", "--cluster", "h100-sxm:8", "--global-batch", "8", "--seq", "128")


def captured(folder: Path) -> Iterator[tuple[str, ...]]:
    """Predictions of what was captured, healthy and disturbed."""
    for name, (_, world, _) in SCRIPTS.items():
        where = str(folder / "captured" / name)
        for machine in ("h100-sxm", "a100-40gb", "b200"):
            yield ("predict", where, "--cluster", f"{machine}:{world}")
        for slow in SLOW[:7]:
            yield ("predict", where, "--cluster", f"h100-sxm:{world}", "--slow", slow)
        yield ("predict", where, "--cluster", f"h100-sxm:{world}", "--jitter", "3%", "--samples", "21", "--seed", "5")
        yield ("predict", where, "--cluster", f"h100-sxm:{world}", "--set", "cluster.gpu.memory=1GiB")
        yield ("predict", where, "--cluster", f"h100-sxm:{world + 8}")


def others(folder: Path) -> Iterator[tuple[str, ...]]:
    """Traces, what-if questions on saved runs, comparisons, tables."""
    traces = os.environ.get("WINDTUNNEL_STRAGGLER_TRACES")
    if traces:
        for name in ("SE", "ST"):
            yield ("explain", f"{traces}/trace-{name}.parquet", "--no-save")
    yield ("validate", str(REPOSITORY / "validation" / "measurements.csv"), "--level", "A", "--no-write")
    yield ("explain", str(REPOSITORY / "README.md"), "--no-save")
    yield ("compare", "no-such-run", "neither")
    yield ("version",)


def answer(words: tuple[str, ...]) -> str:
    """What the command prints, JSON where it has any, without run folders; its exit status last."""
    from windtunnel.faces.cli import main

    if words[0] == "predict":
        words = (*words, "--json", "--no-save")
    elif words[0] == "explain":
        words = (*(word for word in words if word != "--no-save"), "--json")
    elif words[0] == "validate":
        words = (*(word for word in words if word != "--no-write"), "--json")
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            status: object = main(list(words))
        except Exception as fault:  # a fault of the product: an answer that is to go, and no reason to stop asking
            status = f"crash: {fault!r}"
    return f"{' '.join(words)}\n{out.getvalue()}\n{error.getvalue()}\nexit status {status}\n"


def capture_all(folder: Path) -> bool:
    """Capture the scripts of examples/ below `folder`; False where there is no torch."""
    try:
        import torch  # noqa: F401
    except ModuleNotFoundError:
        return False
    from windtunnel.faces.cli import main

    for name, (script, world, arguments) in SCRIPTS.items():
        where = folder / "captured" / name
        path = REPOSITORY / "examples" / "distributed" / script
        status = main(["capture", "--world-size", str(world), "--out", str(where), str(path), *arguments])
        assert status == 0, f"capturing {script} ended with {status}"
    return True


def main(verb: str, folder: Path) -> int:
    """`write` or `check`; returns the exit status."""
    os.chdir(folder if folder.exists() else folder.parent)
    if verb == "write":
        folder.mkdir(exist_ok=False)
        capture_all(folder)
    questions = [*planned(), *others(folder)]
    if (folder / "captured").exists():
        questions += captured(folder)
    different = 0
    scratch = re.compile(re.escape(str(folder)))
    for number, words in enumerate(questions):
        text, path = scratch.sub("DIR", answer(words)), folder / f"{number:03d}.txt"
        if verb == "write":
            path.write_text(text)
        elif (before := path.read_text()) != text:
            different += 1
            shown = list(
                difflib.unified_diff(before.splitlines(), text.splitlines(), "before", "after", lineterm="", n=0)
            )
            print(f"{number:03d} {' '.join(words)}", *(line[:200] for line in shown[:8]), sep="\n  ")
    print(f"{len(questions)} questions, {different} answers differ")
    return int(different > 0)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "check"):
        sys.exit(__doc__)
    if sys.argv[1] == "write":
        shutil.rmtree(sys.argv[2], ignore_errors=True)
    sys.exit(main(sys.argv[1], Path(sys.argv[2]).resolve()))
