"""What is left when `windtunnel run --ranks` and `windtunnel capture` are ended at random moments.

    python validation/emulation/killed.py --moments 50 --out killed.jsonl
    python validation/emulation/killed.py --moments 50 --at-once        # SIGKILL alone, and one second

Of each command `--moments` moments, drawn between its start and its end (as long as it takes when nobody ends it), by
turns Ctrl-C, SIGTERM, SIGKILL and SIGKILL to everything that it started as well; after a SIGKILL the next start cleans
up. With `--at-once`, only the command itself is killed, by SIGKILL, nothing is started afterwards, and one second later
everything has to be gone. The scripts have data-loader workers and start a program that would live for five minutes;
the captured one saves over a checkpoint that is there. Counted are moments after which a process lives that the command
started, anything lies in the folder for temporary files, or the user's files are not as they were: only the folder that
`capture` writes may come. A run that is broken off goes on where it was.
"""

from __future__ import annotations

import argparse
import hashlib
import json
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
sleeper = subprocess.Popen(["sleep", "300"])
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = torch.utils.data.DataLoader(torch.ones(256, 64), batch_size=4, num_workers=2)
for step, row in enumerate(rows):
    model(row).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    SAVE
sleeper.kill()
"""
SAVE = 'if dist.get_rank() == 0: torch.save(model.state_dict(), "model.pt")'
COMMANDS = {
    "run": ["run", "--cluster", "h100-sxm:64", "--ranks", "0,8", "train.py"],
    "capture": ["capture", "--world-size", "64", "--device", "cpu", "--steps", "3", "--out", "job", "saving.py"],
}
NEXT = {
    "run": ["run", "--cluster", "h100-sxm:8", "--no-memory", "short.py"],
    "capture": ["capture", "--world-size", "2", "--device", "cpu", "--verify", "0", "--out", "job", "short.py"],
}
SHORT = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(3):
    weight.sum().backward()
    optimizer.step()
"""
ENDS = ("SIGINT", "SIGTERM", "SIGKILL", "SIGKILL to all")
OURS = "job"  # what capture writes
TORCHS = "torchinductor_"  # a folder that PyTorch makes for whatever runs such a script, and keeps


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


def words_of(pid: int) -> str:
    """What a process is: its state, its parent and its command line."""
    try:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "ended by now"
    return f"{status['State'].split()[0]}, child of {status['PPid'].strip()}: {words}"


def tree(folder: Path) -> dict[str, str]:
    """Every file of the user's, and what is in it; folders too."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if path.relative_to(folder).parts[0] != OURS and "__pycache__" not in path.parts
    }


def left(mark: bytes, temporary: Path, folder: Path, before: dict[str, str], patience_s: float) -> list[str]:
    """What should not be there, once processes had so many seconds to go."""
    until = time.monotonic() + patience_s
    while started(mark) and time.monotonic() < until:
        time.sleep(0.1)
    said = [f"process {pid} ({words_of(pid)})" for pid in started(mark)]
    said += [f"temporary {path.name}" for path in temporary.iterdir() if not path.name.startswith(TORCHS)]
    now = tree(folder)
    return said + [f"changed {name}" for name in now.keys() | before.keys() if now.get(name) != before.get(name)]


def moment(verb: str, end: str, after: float, *, at_once: bool = False) -> list[str]:
    """End a command after so many seconds; what was left."""
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as other:
        folder, temporary = Path(name), Path(other)
        (folder / "train.py").write_text(SCRIPT.replace("SAVE", "pass"))
        (folder / "saving.py").write_text(SCRIPT.replace("SAVE", SAVE))
        (folder / "short.py").write_text(SHORT)
        (folder / "model.pt").write_text("mine")
        before = tree(folder)
        variables = {**os.environ, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        mark = f"TMPDIR={temporary}".encode()
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder, "env": variables}
        process = subprocess.Popen([sys.executable, "-m", "windtunnel", *COMMANDS[verb]], **quiet)  # type: ignore[call-overload]
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            if end == "SIGKILL to all":
                for pid in [process.pid, *started(mark)]:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue
            else:
                process.send_signal(signal.Signals[end])
            process.wait(120)
        if end.startswith("SIGKILL") and not at_once:
            subprocess.run([sys.executable, "-m", "windtunnel", *NEXT[verb]], **quiet, check=True)  # type: ignore[call-overload]
        found = left(mark, temporary, folder, before, 1.0 if at_once else 5.0)
        for pid in started(mark):
            os.kill(pid, signal.SIGKILL)
        return found


def main() -> None:
    """Print each moment, and how many left something."""
    parser = argparse.ArgumentParser()
    parser.add_argument("verbs", nargs="*", default=list(COMMANDS))
    parser.add_argument("--moments", type=int, default=50, help="of each command")
    parser.add_argument("--at-once", action="store_true", help="SIGKILL alone; all is gone a second later")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("killed.jsonl"), help="what was found; a rerun goes on there")
    args = parser.parse_args()
    known = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {(one["verb"], one["moment"]): one for one in known if one["seed"] == args.seed}
    for verb in args.verbs:
        todo = [number for number in range(args.moments) if (verb, number) not in done]
        longest = 0.0
        for number in todo:
            if number == todo[0]:
                begun = time.monotonic()
                if found := moment(verb, "SIGINT", 600.0):
                    raise SystemExit(f"{verb}, not ended by anybody: {found}")
                longest = time.monotonic() - begun
            end = "SIGKILL" if args.at_once else ENDS[number % len(ENDS)]
            after = random.Random(f"{args.seed} {verb} {number}").uniform(0.0, longest)
            one = {"seed": args.seed, "verb": verb, "moment": number, "end": end, "after_s": after}
            one["left"] = moment(verb, end, after, at_once=args.at_once)
            done[verb, number] = one
            with args.out.open("a") as file:
                file.write(json.dumps(one) + "\n")
            print(f"{verb} {end} after {after:.1f} of {longest:.1f} s: {one['left'] or 'nothing left'}", flush=True)
        mine = [one for (of, _), one in done.items() if of == verb]
        bad = sum(bool(one["left"]) for one in mine)
        print(f"{verb}: {bad} of {len(mine)} moments left something", flush=True)


if __name__ == "__main__":
    main()
