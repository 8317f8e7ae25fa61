"""A sweep killed with SIGKILL at random moments and resumed gives the bytes of one that nobody killed.

    python validation/planning/kills.py [--kills 20] [--seed 0]

Real predictions in two worker processes. Prints what each kill left in the journal, and whether the files are equal.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from windtunnel.studies.sweeps import sweep
from windtunnel.studies.sweeps.journal import read_journal

STUDY = {
    "fixed": {"model": "llama-3-8b", "cluster": "h100-sxm:64", "plan.global_batch": 128, "plan.seq_len": 4096},
    "grid": {"plan.tp": [1, 2, 4, 8], "plan.micro_batch": [1, 2], "plan.zero_stage": [0, 1, 9], "plan.pp": [1, 2, 4]},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        whole = sweep(STUDY, out=Path(folder, "whole.parquet"), executor="serial")
        out = Path(folder, "killed.parquet")
        journal = Path(folder, "killed.parquet.journal")
        code = (
            "from windtunnel.studies.sweeps import sweep\nif __name__ == '__main__':\n"
            f"    sweep({STUDY!r}, out={str(out)!r}, jobs=2)"
        )
        script = Path(folder, "run.py")
        script.write_text(code)
        moments = sorted(draw.sample(range(whole.points), arguments.kills))
        for moment in moments:
            process = subprocess.Popen([sys.executable, str(script)])
            while process.poll() is None and len(read_journal(journal)) <= moment:
                time.sleep(draw.uniform(0.0, 0.02))
            process.send_signal(signal.SIGKILL)
            process.wait()
            print(f"killed with {len(read_journal(journal))} of {whole.points} rows", flush=True)
        before = len(read_journal(journal)) if journal.exists() else whole.points
        last = sweep(STUDY, out=out, executor="serial")
        same = out.read_bytes() == whole.path.read_bytes()
        print(f"{arguments.kills} kills: {before} rows were there, {last.ran} ran then; equal bytes: {same}")
        raise SystemExit(not same)


if __name__ == "__main__":
    main()
