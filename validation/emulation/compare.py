"""Emulations of one rank held against the truth: real gloo processes, each pinned to its own core.

    OMP_NUM_THREADS=1 taskset -c 0 windtunnel calibrate --out dev.yaml
    python validation/emulation/compare.py --device dev.yaml ddp fsdp2 tp pp

Blocks, as machines drift: each calibrates the collectives anew (`windtunnel calibrate --collectives --pinned`, on a
copy of dev.yaml, on sizes of its own and no model at all; `--calibrated` takes those of dev.yaml), then runs truth and
emulation of each kind, in turn which of them goes first. The truth runs both ranks; the emulation runs rank 0 among
virtual peers on core 0, and an independent emulation of rank 1 keeps the other core as busy as the truth does
(not with `--alone`): cores of one CPU share caches, memory bandwidth and power, GPUs do not. The stages of a pipeline
are two classes: both ranks are emulated twice, the second time each with what the other one computed in the first.

Sequences are 120 long (`--job`): activations then have no size that `calibrate` measures, nor have parameters.

All of these processes tell glibc to keep what it has (`MALLOC_MMAP_MAX_`, `MALLOC_TRIM_THRESHOLD_`). Else 0 to 3,000
pages a step are handed out anew, by how chunks happen to lie: two ranks of one job differ by that much, as does an
emulation, and on a virtual machine a page costs 0.6 to 4 us. `--malloc default` shows that.

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
import shutil
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
from truth import JOB, pinned, run_truth, wait_for

WAIT_S = 60.0
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}


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
        self._out = np.empty_like(self._one)
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
                    np.exp(self._one, out=self._out)  # one thread, no new pages
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
    """An emulation of one rank, pinned; its report goes to FOLDER/RANK.out, what it computed to FOLDER/RANK.times."""
    line = [
        *(*pinned(core), sys.executable, "-m", "windtunnel", "run", "--rank", str(rank), "--world-size", "2"),
        *("--nproc-per-node", "2", "--cluster", f"{device}:2", "--json", "--no-memory", *options),
        *("--write-times", f"{folder}/{rank}.times"),
        *(str(JOB), *words, "--times", f"{folder}/{rank}.json"),
    ]
    out = open(f"{folder}/{rank}.out", "wb")  # noqa: SIM115 - the child keeps it
    return subprocess.Popen(line, stdout=out, env={**os.environ, "OMP_NUM_THREADS": "1"})


def emulated(words: list[str], device: str, options: dict[int, list[str]], folder: str) -> None:
    """Emulations of these ranks at once, each on its core with its own options."""
    runs = [emulation(words, rank, device, own, rank, folder) for rank, own in options.items()]
    wait_for(runs, f"the emulation of {' '.join(words)}")


def run_emulation(words: list[str], device: str, options: list[str], beside: bool) -> dict[str, Any]:
    """Steps of rank 0 as its script timed them, and what windtunnel reported."""
    with tempfile.TemporaryDirectory() as folder:
        if "--captured" in options:
            emulated(words, device, dict.fromkeys((0, 1), options), folder)
            for rank in (0, 1):
                shutil.copy(f"{folder}/{rank}.times", f"{folder}/peer_of_{1 - rank}.times")
            per_rank = {rank: [*options, "--peer-times", f"{folder}/peer_of_{rank}.times"] for rank in (0, 1)}
        else:
            per_rank = dict.fromkeys((0, 1), options)
        emulated(words, device, per_rank if beside else {0: per_rank[0]}, folder)
        report = json.loads(Path(folder, "0.out").read_text())
        return {**json.loads(Path(folder, "0.json").read_text()), "report": report}


def with_collectives(device: str, budget_s: float, folder: str) -> str:
    """A copy of this calibrated device with its collectives measured now."""
    path = shutil.copy(device, Path(folder) / "device.yaml")
    line = [sys.executable, "-m", "windtunnel", "calibrate", "--collectives", "--pinned", "--world-size", "2"]
    line += ["--budget", str(budget_s), "--out", str(path)]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return str(path)


def captured(words: list[str], folder: str) -> str:
    """The captured job of a pipeline: ranks of the other stages."""
    path = Path(folder) / f"captured_{words[0]}"
    if not path.exists():
        line = [sys.executable, "-m", "windtunnel", "capture", "--world-size", "2", "--device", "cpu"]
        subprocess.run([*line, "--out", str(path), str(JOB), *words], check=True, stdout=subprocess.DEVNULL)
    return str(path)


def main() -> None:
    """Print a table, and keep everything in --out."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+")
    parser.add_argument("--device", required=True)
    parser.add_argument("--calibrated", action="store_true", help="--device holds the collectives to use")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for collectives in each block")
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--skip", type=int, default=12)
    parser.add_argument("--foreign", type=float, default=0.03)
    parser.add_argument("--pace", type=float, default=0.05)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--alone", dest="beside", action="store_false")
    parser.add_argument("--malloc", choices=("keep", "default"), default="keep")
    parser.add_argument("--options", default="", help="of windtunnel run")
    parser.add_argument("--job", default="--seq 120", help="more words for job.py")
    parser.add_argument("--out", default="emulation.json")
    args = parser.parse_args()
    found: dict[str, Any] = {kind: {"truth": [], "emulated": [], "told": [], "blocks": []} for kind in args.kinds}
    pace = Pace()
    if args.malloc == "keep":
        os.environ |= KEEP  # children have it
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.blocks):
            device = args.device if args.calibrated else with_collectives(args.device, args.budget, folder)
            for kind in args.kinds:
                block(kind, device, folder, args, pace, found[kind])
    for kind in args.kinds:
        summarise(kind, found[kind])
    Path(args.out).write_text(json.dumps(found, indent=1))


def block(kind: str, device: str, folder: str, args: argparse.Namespace, pace: Pace, into: dict[str, Any]) -> None:
    """Truth and emulation, in turn which goes first; steps and medians are added to `into`."""
    words = [kind, "--steps", str(args.steps), *args.job.split()]
    options = args.options.split()
    if kind == "pp":
        options += ["--captured", captured(words, folder)]
    runs: list[Callable[[], Any]] = [
        partial(run_truth, words),
        partial(run_emulation, words, device, options, args.beside),
    ]
    results: list[Any] = [None, None]
    for which in (0, 1) if len(into["blocks"]) % 2 == 0 else (1, 0):
        results[which] = undisturbed(runs[which], args, pace, into)
    (truth, *_), made = results
    true_s, made_s = truth["seconds"][args.skip :], made["seconds"][args.skip :]
    told_s = made["report"]["step_s"][args.skip :]
    into["truth"] += true_s
    into["emulated"] += made_s
    into["told"] += told_s
    into["blocks"].append((median(true_s), median(made_s)))
    one, other = into["blocks"][-1]
    print(
        f"  {kind}: truth {one * 1e3:.2f} ms, emulated {other * 1e3:.2f} ms ({other / one - 1:+.2%}), "
        f"windtunnel says {median(told_s) * 1e3:.2f} ms",
        flush=True,
    )


def summarise(kind: str, found: dict[str, Any]) -> None:
    """All blocks of a kind in one line."""
    one, other, told = (median(found[name]) for name in ("truth", "emulated", "told"))
    truths = [true for true, _ in found["blocks"]]
    found |= {
        "truth_s": one,
        "emulated_s": other,
        "error": other / one - 1,
        "error_told": told / one - 1,
        "error_of_pairs": median(emulated / true for true, emulated in found["blocks"]) - 1,
    }
    print(
        f"{kind}: truth {one * 1e3:.2f} ms, emulated {other * 1e3:.2f} ms, error {found['error']:+.2%} "
        f"({found['error_told']:+.2%} as windtunnel says), in the median of blocks {found['error_of_pairs']:+.2%}; "
        f"the truth's blocks differ by {max(truths) / min(truths) - 1:.1%} among themselves; "
        f"{found['runs']} runs for {2 * len(truths)}, others took {max(found['foreign']):.1%} at most, "
        f"cores were {max(found['slower']):.1%} slower than ever at most",
        flush=True,
    )


if __name__ == "__main__":
    main()
