"""Whether a rank among virtual peers executes and allocates what it does in the real job.

    python validation/emulation/same.py ddp fsdp2 tp pp

For each kind: the ops and communications of a steady step of rank 0, in order, with shapes, dtypes, members and bytes;
and the events of the CPU allocator in a step, their sizes in order, and the peak.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from truth import environment, free_port

OBSERVED = Path(__file__).with_name("observed.py")
STEPS = ["--steps", "8"]


def observe(how: str, what: str, kind: str, words: list[str]) -> dict[str, Any]:
    """What rank 0 did. Virtual: both ranks run, each alone but for control messages."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        processes = []
        for rank in range(2):
            line = [sys.executable, str(OBSERVED), how, what, f"{folder}/{rank}.json", kind, *STEPS, *words]
            variables = {**environment(rank, 2, port), "TORCH_CPP_LOG_LEVEL": "ERROR"}
            if kind == "pp":
                variables["LETTERS"] = folder
            processes.append(
                subprocess.Popen(line, env=variables, stderr=subprocess.DEVNULL if what == "memory" else None)
            )
        status = [process.wait(600) for process in processes]
        if any(status):
            raise SystemExit(f"{how} {what} of {kind}: ranks ended with {status}")
        found: dict[str, Any] = json.loads(Path(folder, "0.json").read_text())
        return found


def differences(one: list[Any], other: list[Any], most: int = 12) -> list[str]:
    """Lines of a diff, as many as a person reads."""
    left, right = [json.dumps(row) for row in one], [json.dumps(row) for row in other]
    if left == right:
        return []
    lines = [
        line for line in difflib.unified_diff(left, right, "real", "virtual", lineterm="", n=0) if line[:1] in "+-"
    ]
    return lines[2 : 2 + most] + ([f"... {len(lines) - 2} lines"] if len(lines) > most + 2 else [])


def main() -> None:
    """Print what is equal and what is not."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+")
    parser.add_argument("--job", default="--dim 128 --layers 2 --ffn 256 --vocab 512 --seq 64")
    parser.add_argument("--only", choices=("ops", "memory"))
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for kind in args.kinds:
        words = args.job.split()
        if args.only != "memory":
            real, virtual = (observe(how, "ops", kind, words) for how in ("real", "virtual"))
            for what in ("ops", "calls"):
                found = differences(real[what], virtual[what])
                text = "equal" if not found else "DIFFERENT"
                print(f"{kind}: {len(real[what])} {what}: {text}", flush=True)
                print("".join(f"    {line[:400]}\n" for line in found), end="")
        if args.only != "ops":
            real, virtual = (observe(how, "memory", kind, words) for how in ("real", "virtual"))
            one, other = real["allocated_bytes"], virtual["allocated_bytes"]
            print(
                f"{kind}: peak {one:,} bytes real, {other:,} virtual ({other - one:+,}),"
                f" at {real['op']} and {virtual['op']}"
            )
            outside = [[size for size, whose in run["log"] if not whose] for run in (real, virtual)]
            inside = [sorted(size for size, whose in run["log"] if whose and size > 0) for run in (real, virtual)]
            found = differences(*outside)
            print(
                f"{kind}: {len(outside[0])} allocator events outside c10d: {'equal' if not found else 'DIFFERENT'}; "
                f"inside {sum(inside[0]):,} bytes in {len(inside[0])} real,"
                f" {sum(inside[1]):,} in {len(inside[1])} virtual",
                flush=True,
            )
            print("".join(f"    {line}\n" for line in found), end="")


if __name__ == "__main__":
    main()
