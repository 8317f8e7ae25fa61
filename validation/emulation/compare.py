"""Emulations of one rank held against the truth: real gloo processes, each pinned to its own core.

    OMP_NUM_THREADS=1 taskset -c 0 windtunnel calibrate --out dev.yaml
    python validation/emulation/compare.py --device dev.yaml ddp fsdp2 tp pp

Blocks, as machines drift: each calibrates the collectives of a kind anew (`windtunnel calibrate --collectives
--pinned`, on a copy of dev.yaml, on sizes of its own and no model at all; `--calibrated` takes those of dev.yaml),
then runs truth and emulation of it. The truth runs both ranks; the emulation runs rank 0 among virtual peers on core
0, and an independent emulation of rank 1 keeps the other core as busy as the truth does (not with `--alone`): cores
of one CPU share caches, memory bandwidth and power, GPUs do not. The stages of a pipeline are two classes: both ranks
are emulated twice, the second time each with what the other one computed in the first.

Sequences are 120 long (`--job`): activations then have no size that `calibrate` measures, nor have parameters.

All of these processes tell glibc to keep what it has (`MALLOC_MMAP_MAX_`, `MALLOC_TRIM_THRESHOLD_`). Else 0 to 3,000
pages a step are handed out anew, by how chunks happen to lie: two ranks of one job differ by that much, as does an
emulation, and on a virtual machine a page costs 0.6 to 4 us. `--malloc default` shows that.

Truth and emulation run at once, in turns of seconds (`turns.py`): each is stopped while the other runs, so that what
makes the machine slower for minutes is in both. A turn begins when both cores are as fast as they usually are, by
exponentials of an array (`--pace`: how far off these may be); steps count that lie in a turn after which they still
are, while both jobs make steps. On a shared machine others are not seen otherwise. The truth of a pipeline makes three
times as many steps, as the second emulation begins when the first has ended. A turn must be some steps long: of turns
of a second only steps that were short and begun at once would count, were they 0.7 s.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from truth import JOB, pinned, run_truth, wait_for
from turns import Job, Pace, Started, in_turns

START_S = 15.0  # of a job's turns until its steps begin: these wait for nothing
FEWEST = 8  # steps of a block that count
# Of a step, by the way of parallelism.
COLLECTIVES = {
    "ddp": ("all_reduce",),
    "fsdp2": ("all_gather", "reduce_scatter"),
    "tp": ("all_reduce",),
    "pp": ("send_recv",),
}
KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}


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


def emulated(words: list[str], device: str, options: dict[int, list[str]], folder: str, started: Started) -> None:
    """Emulations of these ranks at once, each on its core with its own options."""
    runs = [emulation(words, rank, device, own, rank, folder) for rank, own in options.items()]
    started += runs
    wait_for(runs, f"the emulation of {' '.join(words)}")


def run_emulation(words: list[str], device: str, options: list[str], beside: bool, started: Started) -> dict[str, Any]:
    """Steps of rank 0 as its script timed them, and what windtunnel reported."""
    with tempfile.TemporaryDirectory() as folder:
        if "--captured" in options:
            emulated(words, device, dict.fromkeys((0, 1), options), folder, started)
            for rank in (0, 1):
                shutil.copy(f"{folder}/{rank}.times", f"{folder}/peer_of_{1 - rank}.times")
            per_rank = {rank: [*options, "--peer-times", f"{folder}/peer_of_{rank}.times"] for rank in (0, 1)}
        else:
            per_rank = dict.fromkeys((0, 1), options)
        emulated(words, device, per_rank if beside else {0: per_rank[0]}, folder, started)
        report = json.loads(Path(folder, "0.out").read_text())
        return {**json.loads(Path(folder, "0.json").read_text()), "report": report}


def with_collectives(kind: str, device: str, budget_s: float, folder: str) -> str:
    """A copy of this calibrated device with the collectives of such a job measured now."""
    path = shutil.copy(device, Path(folder) / "device.yaml")
    line = [sys.executable, "-m", "windtunnel", "calibrate", "--collectives", "--pinned", "--world-size", "2"]
    line += ["--budget", str(budget_s), "--out", str(path)]
    line += [word for collective in COLLECTIVES[kind] for word in ("--only", collective)]
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
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--skip", type=int, default=12)
    parser.add_argument("--pace", type=float, default=0.1)
    parser.add_argument("--turn", type=float, default=3.0, help="seconds of truth and of emulation in turn: some steps")
    parser.add_argument(
        "--patience", type=float, default=300.0, help="seconds to wait for a usual machine before a turn"
    )
    parser.add_argument("--alone", dest="beside", action="store_false")
    parser.add_argument("--malloc", choices=("keep", "default"), default="keep")
    parser.add_argument("--options", default="", help="of windtunnel run")
    parser.add_argument("--job", default="--seq 120", help="more words for job.py")
    parser.add_argument("--out", default="emulation.json")
    args = parser.parse_args()
    found: dict[str, Any] = {
        kind: {"truth": [], "emulated": [], "told": [], "blocks": [], "in_vain": 0} for kind in args.kinds
    }
    pace = Pace()
    if args.malloc == "keep":
        os.environ |= KEEP  # children have it
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.blocks):
            for kind in args.kinds:
                device = args.device if args.calibrated else with_collectives(kind, args.device, args.budget, folder)
                block(kind, device, folder, args, pace, found[kind])
    for kind in args.kinds:
        if found[kind]["blocks"]:
            summarise(kind, found[kind])
    Path(args.out).write_text(json.dumps(found, indent=1))


def block(kind: str, device: str, folder: str, args: argparse.Namespace, pace: Pace, into: dict[str, Any]) -> None:
    """Truth and emulation in turns; steps and medians are added to `into`."""
    words = [kind, "--steps", str(args.steps), *args.job.split()]
    options, true_words = args.options.split(), words
    if kind == "pp":
        options += ["--captured", captured(words, folder)]
        true_words = [kind, "--steps", str(3 * args.steps), *args.job.split()]  # goes on beside both emulations
    jobs = [
        Job(lambda started: run_truth(true_words, started=started)[0]),
        Job(lambda started: run_emulation(words, device, options, args.beside, started)),
    ]
    into["in_vain"] += in_turns(
        jobs, pace, limit=args.pace, turn_s=args.turn, start_s=START_S, patience_s=args.patience
    )
    truth, made = (job.result for job in jobs)
    both = max(one["begun"][args.skip] for one in (truth, made)), min(one["begun"][-1] for one in (truth, made))
    true_at, made_at = (
        [at for at in job.counts(one["begun"], one["seconds"], args.skip) if both[0] <= one["begun"][at] <= both[1]]
        for job, one in zip(jobs, (truth, made), strict=True)
    )
    if min(len(true_at), len(made_at)) < FEWEST:
        print(f"  {kind}: {len(true_at)} steps of the truth and {len(made_at)} of the emulation were as usual: too few")
        return
    true_s, made_s = ([one["seconds"][at] for at in which] for one, which in ((truth, true_at), (made, made_at)))
    told = made["report"]["step_s"]  # without the first, whose begin it did not see
    told_s = [told[at - len(made["seconds"])] for at in made_at]
    into["truth"] += true_s
    into["emulated"] += made_s
    into["told"] += told_s
    into["blocks"].append((median(true_s), median(made_s)))
    one, other = into["blocks"][-1]
    print(
        f"  {kind}: truth {one * 1e3:.2f} ms, emulated {other * 1e3:.2f} ms ({other / one - 1:+.2%}), "
        f"windtunnel says {median(told_s) * 1e3:.2f} ms, of {len(true_s)} and {len(made_s)} steps",
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
        f"{found['in_vain']} turns were waited for in vain",
        flush=True,
    )


if __name__ == "__main__":
    main()
