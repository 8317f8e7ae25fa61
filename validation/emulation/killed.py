"""What is left when `windtunnel run --ranks` and `windtunnel capture` are ended at random moments.

    python validation/emulation/killed.py --moments 50

By turns Ctrl-C, SIGTERM and SIGKILL, each after a random time; of SIGKILL the next start cleans up. Counted are
moments after which a process lives that the command started, a temporary folder of windtunnel's is there, or the
user's file has changed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = """
import subprocess, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
subprocess.Popen(["sleep", "300"])
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10**6):
    model(torch.ones(4, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
COMMANDS = {
    "run": ["run", "--cluster", "h100-sxm:64", "--ranks", "0,8", "train.py"],
    "capture": ["capture", "--world-size", "64", "--device", "cpu", "--steps", "1000000", "--out", "job", "train.py"],
}
NEXT = {
    "run": ["run", "--cluster", "h100-sxm:8", "--ranks", "0,1", "--no-memory", "short.py"],
    "capture": ["capture", "--world-size", "2", "--device", "cpu", "--verify", "0", "--out", "short", "short.py"],
}


def started(mark: bytes) -> list[int]:
    """Processes whose environment has the mark."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (place / "environ").read_bytes() and int(place.name) != os.getpid():
                found.append(int(place.name))
        except OSError:
            continue
    return found


def left(mark: bytes, temporary: Path, user_file: Path, before: bytes) -> list[str]:
    """What should not be there, once it had five seconds to go."""
    until = time.monotonic() + 5.0
    while started(mark) and time.monotonic() < until:
        time.sleep(0.1)
    said = [f"process {pid}" for pid in started(mark)]
    said += [str(path) for path in temporary.glob("windtunnel-*")]
    return said + (["the user's file changed"] if user_file.read_bytes() != before else [])


def main() -> None:
    """Print each moment that left something, and how many did."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--longest", type=float, default=12.0, help="seconds until the signal")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance, bad, done = random.Random(args.seed), 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder, temporary = Path(name), Path(name, "tmp")
        temporary.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        (folder / "short.py").write_text(SCRIPT.replace("10**6", "3").replace('subprocess.Popen(["sleep", "300"])', ""))
        (folder / "user.txt").write_text("mine")
        variables = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        mark = f"TMPDIR={temporary}".encode()
        for moment in range(args.moments):
            verb = ("run", "capture")[moment % 2]
            number = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)[moment // 2 % 3]
            after = chance.uniform(0.1, args.longest)
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder, "env": variables}
            process = subprocess.Popen([sys.executable, "-m", "windtunnel", *COMMANDS[verb]], **quiet)  # type: ignore[call-overload]
            time.sleep(after)
            process.send_signal(number)
            process.wait(120)
            if number == signal.SIGKILL:
                subprocess.run([sys.executable, "-m", "windtunnel", *NEXT[verb]], **quiet, check=False)  # type: ignore[call-overload]
            found = left(mark, temporary, folder / "user.txt", b"mine")
            done += 1
            bad += bool(found)
            print(
                f"{verb} {signal.Signals(number).name} after {after:.1f} s: {', '.join(found) or 'nothing left'}",
                flush=True,
            )
            for pid in started(mark):
                os.kill(pid, signal.SIGKILL)
    print(f"{bad} of {done} moments left something")


if __name__ == "__main__":
    main()
