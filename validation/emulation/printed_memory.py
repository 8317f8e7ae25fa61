"""The peak of memory that `windtunnel run` prints, held against a tracker of storages in the same script.

    python validation/emulation/printed_memory.py ddp fsdp2 tp pp

Two real ranks of eight (pp: both stages of two), on tracked_job.py; a line for each rank.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

JOB = Path(__file__).with_name("tracked_job.py").resolve()


def main() -> None:
    """Print printed and tracked bytes, and how far they are apart."""
    for kind in sys.argv[1:] or ("ddp", "fsdp2", "tp", "pp"):
        world = 2 if kind == "pp" else 8
        with tempfile.TemporaryDirectory() as folder:
            line = [
                sys.executable,
                "-m",
                "windtunnel",
                "run",
                "--json",
                "--cluster",
                f"h100-sxm:{world}",
                "--ranks",
                "0,1",
            ]
            done = subprocess.run(
                [*line, str(JOB), kind, f"{folder}/{{rank}}.json"],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"{kind}: run ended with {done.returncode}")
            found = json.loads(done.stdout)["ranks"]
            for rank in (0, 1):
                printed = found[str(rank)]["memory"]["allocated_bytes"]
                tracked = max(json.loads(Path(folder, f"{rank}.json").read_text()))
                apart = f"{printed / tracked - 1:+.3%}"
                print(f"{kind} rank {rank} of {world}: printed {printed:,}, tracked {tracked:,}, {apart}", flush=True)


if __name__ == "__main__":
    main()
