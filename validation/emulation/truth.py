"""The truth: the same script on real gloo processes, each pinned to its own core, one thread each.

    python validation/emulation/truth.py ddp fsdp2 tp pp --steps 24

prints the median step of rank 0 for each. `compare.py` holds emulations against it.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

JOB = Path(__file__).with_name("job.py")


def pinned(core: int) -> list[str]:
    """The beginning of a command line that stays on one core."""
    return ["taskset", "-c", str(core)]


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun would set, one thread each."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    fixed = {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return {**os.environ, **fixed, **{name: str(value) for name, value in numbers.items()}}


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(processes: Sequence[subprocess.Popen[bytes]], what: str) -> None:
    """Until all have ended; all are ended when one fails."""
    try:
        for process in processes:
            if process.wait(900):
                raise SystemExit(f"{what} ended with status {process.returncode}")
    finally:
        for process in processes:
            process.terminate()


def run_truth(
    words: list[str], world: int = 2, cores: int = 2, started: list[subprocess.Popen[bytes]] | None = None
) -> list[dict[str, list[float]]]:
    """What each rank saw: begins, seconds and losses of its steps. Processes are added to `started`.

    With 0 `cores` they run on whichever is free.
    """
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        processes = [
            subprocess.Popen(
                [
                    *(pinned(rank % cores) if cores else ()),
                    sys.executable,
                    str(JOB),
                    *words,
                    "--times",
                    f"{folder}/{rank}.json",
                ],
                env=environment(rank, world, port),
            )
            for rank in range(world)
        ]
        if started is not None:
            started += processes
        wait_for(processes, f"a rank of {' '.join(words)}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(world)]


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kinds", nargs="+")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--skip", type=int, default=6)
    args = parser.parse_args()
    for kind in args.kinds:
        ranks = run_truth([kind, "--steps", str(args.steps)])
        steps = ranks[0]["seconds"][args.skip :]
        print(f"{kind}: {median(steps) * 1e3:.2f} ms median of {len(steps)} steps of rank 0")


if __name__ == "__main__":
    main()
