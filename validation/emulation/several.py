"""Several real ranks (`windtunnel run --ranks`) held against a real gloo job of as many processes, in paired turns.

    OMP_NUM_THREADS=1 taskset -c 0 windtunnel calibrate --out dev.yaml
    python validation/emulation/several.py --device dev.yaml ddp:2 fsdp2:2 ddp:4

All ranks are real on both sides. On the left PyTorch's gloo; on the right windtunnel's replay, priced by collectives
that are measured right before between as many processes, on sizes that the job has none of. Both jobs run at once, each
stopped while it is not its turn (`turns.py`). A turn of the truth and the one of the emulation after it are a pair:
printed are the median of the pairs' ratios and their spread. No process keeps to a core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from compare import COLLECTIVES, KEEP, START_S
from truth import JOB, run_truth, wait_for
from turns import Job, Pace, Started, in_turns

EVERY_TURN = 1e9  # counts, however slow the cores are: the pairs' spread says so


def run_emulation(words: list[str], ranks: int, device: str, started: Started) -> list[dict[str, Any]]:
    """Steps of each real rank as windtunnel tells them, and when the script began them."""
    with tempfile.TemporaryDirectory() as folder:
        real = ",".join(map(str, range(ranks)))
        line = [sys.executable, "-m", "windtunnel", "run", "--ranks", real, "--nproc-per-node", str(ranks)]
        line += ["--cluster", f"{device}:{ranks}", "--json", "--no-memory", str(JOB), *words]
        with open(f"{folder}/out", "wb") as out:
            process = subprocess.Popen([*line, "--times", f"{folder}/{{rank}}.json"], stdout=out)
        started.append(process)
        wait_for([process], f"the emulation of {' '.join(words)}")
        told = json.loads(Path(folder, "out").read_text())["ranks"]
        found = []
        for rank in range(ranks):
            script = json.loads(Path(folder, f"{rank}.json").read_text())
            steps = told[str(rank)]["step_s"]  # without the first, whose begin it did not see
            found.append({**script, "told": [None] * (len(script["seconds"]) - len(steps)) + steps})
        return found


def with_collectives(kind: str, device: str, ranks: int, budget_s: float, folder: str) -> str:
    """A copy of this calibrated device with the collectives of such a job measured now."""
    path = Path(folder) / f"{kind}-{ranks}.yaml"
    path.write_bytes(Path(device).read_bytes())
    line = [sys.executable, "-m", "windtunnel", "calibrate", "--collectives", "--world-size", str(ranks)]
    line += ["--budget", str(budget_s), "--out", str(path)]
    line += [word for collective in COLLECTIVES[kind] for word in ("--only", collective)]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
    return str(path)


def by_turn(job: Job, one: dict[str, Any], seconds: list[Any], skip: int) -> list[float | None]:
    """The median step of each turn; None where a turn has no whole step."""
    found: list[float | None] = []
    for low, high in job.turns:
        mine = [
            seconds[at]
            for at in range(skip, len(seconds))
            if seconds[at] is not None and low <= one["begun"][at] and one["begun"][at] + one["seconds"][at] <= high
        ]
        found.append(median(mine) if mine else None)
    return found


def block(kind: str, ranks: int, device: str, args: argparse.Namespace) -> None:
    """Truth and emulation in turns; a line."""
    words = [kind, "--steps", str(args.steps), *args.job.split()]
    jobs = [
        Job(lambda started: run_truth(words, world=ranks, cores=0, started=started)),
        Job(lambda started: run_emulation(words, ranks, device, started)),
    ]
    in_turns(jobs, Pace(), limit=EVERY_TURN, turn_s=args.turn, start_s=START_S, patience_s=0.0)
    truth, made = (job.result for job in jobs)
    same = truth[0]["losses"] == made[0]["losses"]
    pairs = [
        (true, emulated)
        for true, emulated in zip(
            by_turn(jobs[0], truth[0], truth[0]["seconds"], args.skip),
            by_turn(jobs[1], made[0], made[0]["told"], args.skip),
            strict=False,
        )
        if true is not None and emulated is not None
    ]
    if len(pairs) < 4:
        print(f"{kind} of {ranks}: only {len(pairs)} pairs of turns with whole steps; give longer --turn, more --steps")
        return
    ratios = sorted(emulated / true for true, emulated in pairs)
    tenths = quantiles(ratios, n=10)
    print(
        f"{kind} of {ranks} real ranks: truth {median(true for true, _ in pairs) * 1e3:.1f} ms, emulated"
        f" {median(one for _, one in pairs) * 1e3:.1f} ms; of {len(pairs)} pairs the ratio is {median(ratios):.3f},"
        f" p10 {tenths[0]:.3f}, p90 {tenths[-1]:.3f}; losses {'the same' if same else 'DIFFER'}",
        flush=True,
    )


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("jobs", nargs="+", help="KIND:RANKS")
    parser.add_argument("--device", required=True)
    parser.add_argument("--calibrated", action="store_true", help="--device holds the collectives to use")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for collectives before each")
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--skip", type=int, default=12)
    parser.add_argument("--turn", type=float, default=6.0)
    parser.add_argument("--job", default="--seq 120", help="more words for job.py")
    args = parser.parse_args()
    os.environ |= KEEP | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        for job in args.jobs:
            kind, _, ranks = job.partition(":")
            given = (kind, args.device, int(ranks), args.budget, folder)
            device = args.device if args.calibrated else with_collectives(*given)
            block(kind, int(ranks), device, args)


if __name__ == "__main__":
    main()
