"""Emulations of one rank held against the truth: real gloo processes, each pinned to its own core.

    OMP_NUM_THREADS=1 taskset -c 0 windtunnel calibrate --out dev.yaml
    OMP_NUM_THREADS=1 windtunnel calibrate --collectives --pinned --world-size 2 --out dev.yaml
    python validation/emulation/compare.py --device dev.yaml ddp fsdp2 tp pp

For each kind, blocks of truth and of emulation in turn, as machines drift: the truth runs both ranks; the emulation
runs rank 0 among virtual peers on core 0. `--beside` keeps the other core as busy as the truth does, by an independent
emulation of rank 1: cores of one CPU share caches, memory bandwidth and power, GPUs do not. Collectives cost what
`windtunnel calibrate` measured, on sizes of its own and no model at all.

A block counts only where the rest of the machine left both cores alone (`--foreign`: share of their time that others
may take) and where both cores were as fast as they ever were, before and after, by exponentials of an array (`--pace`:
how much longer these may take): on a shared machine others are not seen otherwise. Else it is run again, and the report
says how often. The error is given of all steps together, and as the median over blocks of each truth and the emulation
right after it: what makes the machine slower for minutes is in both.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from truth import JOB, pinned, run_truth

WAIT_S = 600.0


def busy_s() -> float:
    """Seconds that all cores together were busy since the machine started."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    idle = float(fields[3]) + float(fields[4])
    return (sum(map(float, fields[:8])) - idle) / os.sysconf("SC_CLK_TCK")


def own_s() -> float:
    """Seconds of processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def wait_for_idle(share: float, most_s: float) -> None:
    """Return when others took at most this share of the cores for two seconds, or after `most_s`."""
    until = time.monotonic() + most_s
    while time.monotonic() < until:
        busy, begun = busy_s(), time.monotonic()
        time.sleep(2.0)
        if (busy_s() - busy) / (2 * (time.monotonic() - begun)) <= share:
            return


class Pace:
    """How fast the two cores are, against the fastest that they were seen."""

    def __init__(self) -> None:
        self._one = np.random.default_rng(0).standard_normal((512, 512), dtype=np.float32)
        self._best = float("inf")

    def slower(self) -> float:
        """How many times longer than ever it takes now on the slower core, less one."""
        mine, slowest = os.sched_getaffinity(0), 0.0
        for core in (0, 1):
            os.sched_setaffinity(0, {core})
            seconds = []
            for _ in range(12):
                begun = time.perf_counter()
                for _ in range(40):
                    np.exp(self._one)  # one thread
                seconds.append(time.perf_counter() - begun)
            slowest = max(slowest, median(seconds))
            self._best = min(self._best, median(seconds))
        os.sched_setaffinity(0, mine)
        return slowest / self._best - 1


def undisturbed(run: Callable[[], Any], args: argparse.Namespace, pace: Pace, log: dict[str, Any]) -> Any:
    """Run until others took little of two cores meanwhile, seen or not; the quietest run otherwise."""
    best, least = None, (float("inf"), float("inf"))
    for _ in range(args.tries):
        wait_for_idle(args.foreign, WAIT_S)
        slower, begun, busy, own = pace.slower(), time.monotonic(), busy_s(), own_s()
        found = run()
        share = max(0.0, busy_s() - busy - (own_s() - own)) / (2 * (time.monotonic() - begun))
        slower = max(slower, pace.slower())
        log["runs"] = log.get("runs", 0) + 1
        if max(share / args.foreign, slower / args.pace) < max(least[0] / args.foreign, least[1] / args.pace):
            best, least = found, (share, slower)
        if share <= args.foreign and slower <= args.pace:
            break
    log.setdefault("foreign", []).append(round(least[0], 4))
    log.setdefault("slower", []).append(round(least[1], 4))
    return best


def emulation(
    words: list[str], rank: int, device: str, options: list[str], core: int, folder: str
) -> subprocess.Popen[bytes]:
    """An emulation of one rank, pinned; its report goes to FOLDER/RANK.out."""
    line = [
        *(*pinned(core), sys.executable, "-m", "windtunnel", "run", "--rank", str(rank), "--world-size", "2"),
        *("--nproc-per-node", "2", "--cluster", f"{device}:2", "--json", "--no-memory", *options),
        *(str(JOB), *words, "--times", f"{folder}/{rank}.json"),
    ]
    out = open(f"{folder}/{rank}.out", "wb")  # noqa: SIM115 - the child keeps it
    return subprocess.Popen(line, stdout=out, env={**os.environ, "OMP_NUM_THREADS": "1"})


def run_emulation(words: list[str], device: str, options: list[str], beside: bool) -> dict[str, Any]:
    """Steps of rank 0 as its script timed them, and what windtunnel reported."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [emulation(words, rank, device, options, rank, folder) for rank in ((0, 1) if beside else (0,))]
        try:
            for process in runs:
                if process.wait(900):
                    raise SystemExit(f"the emulation of {' '.join(words)} ended with status {process.returncode}")
        finally:
            for process in runs:
                process.terminate()
        report = json.loads(Path(folder, "0.out").read_text())
        return {**json.loads(Path(folder, "0.json").read_text()), "report": report}


def main() -> None:
    """Print a table, and keep everything in --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+")
    parser.add_argument("--device", required=True)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--skip", type=int, default=12)
    parser.add_argument("--foreign", type=float, default=0.03)
    parser.add_argument("--pace", type=float, default=0.05)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--alone", dest="beside", action="store_false")
    parser.add_argument("--options", default="", help="of windtunnel run")
    parser.add_argument("--job", default="", help="more words for job.py")
    parser.add_argument("--captured", help="folder with captured_KIND of pipelines; captured here where there is none")
    parser.add_argument("--out", default="emulation.json")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    pace = Pace()
    for kind in args.kinds:
        words = [kind, "--steps", str(args.steps), *args.job.split()]
        options = args.options.split()
        if kind == "pp":
            folder = Path(args.captured or tempfile.mkdtemp()) / f"captured_{kind}"
            if not folder.exists():
                line = [
                    sys.executable,
                    "-m",
                    "windtunnel",
                    "capture",
                    "--world-size",
                    "2",
                    "--device",
                    "cpu",
                    "--out",
                    str(folder),
                ]
                subprocess.run([*line, str(JOB), *words], check=True, stdout=subprocess.DEVNULL)
            options += ["--captured", str(folder)]
        log: dict[str, Any] = {}
        true_s: list[float] = []
        emulated_s: list[float] = []
        blocks = []
        for _ in range(args.blocks):
            truth = undisturbed(partial(run_truth, words), args, pace, log)
            made = undisturbed(partial(run_emulation, words, args.device, options, args.beside), args, pace, log)
            true_s += truth[0]["seconds"][args.skip :]
            emulated_s += made["seconds"][args.skip :]
            blocks.append((median(truth[0]["seconds"][args.skip :]), median(made["seconds"][args.skip :])))
            one, other = blocks[-1]
            print(
                f"  {kind}: truth {one * 1e3:.2f} ms, emulated {other * 1e3:.2f} ms ({other / one - 1:+.2%})",
                flush=True,
            )
        one, other = median(true_s), median(emulated_s)
        truths = [block[0] for block in blocks]
        paired = median(emulated / true for true, emulated in blocks) - 1
        found[kind] = {
            "truth_s": one,
            "emulated_s": other,
            "error": other / one - 1,
            "error_of_pairs": paired,
            "blocks": blocks,
            **log,
            "report": {k: v for k, v in made["report"].items() if k not in ("step_s", "blocked_s")},
        }
        print(
            f"{kind}: truth {one * 1e3:.2f} ms, emulated {other * 1e3:.2f} ms, error {other / one - 1:+.2%}, "
            f"in the median of blocks {paired:+.2%}; "
            f"the truth's blocks differ by {max(truths) / min(truths) - 1:.1%} among themselves; "
            f"{log['runs']} runs for {2 * args.blocks} blocks, others took {max(log['foreign']):.1%} at most, "
            f"cores were {max(log['slower']):.1%} slower than ever at most",
            flush=True,
        )
    Path(args.out).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
