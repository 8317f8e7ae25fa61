"""Unusual scripts through `windtunnel capture`, `predict FOLDER` and `run`, on a CPU.

    python validation/emulation/unusual.py [NAME ...] [--out unusual.jsonl]

A line for each script (`unusual_scripts.py`): whether each command did what is stated there, in one message where it
refuses, and whether any of the user's files changed. Names that FILE holds already are not run again.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from unusual_scripts import FILES, SCRIPTS, Script

CLUSTER, WORLD = "h100-sxm:8", "8"
OURS = ("captured", "tmp", "runs")  # what capture writes, and where predict keeps what it said


def tree(folder: Path) -> dict[str, str]:
    """Every file and folder of the user's, and what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
        if path.relative_to(folder).parts[0] not in OURS
    }


def windtunnel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in the user's folder."""
    known = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    variables = {name: value for name, value in os.environ.items() if name not in known}
    variables |= {"TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, "-m", "windtunnel", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env=variables,
        timeout=600,
        check=False,
    )


def prepared(script: Script, folder: Path) -> None:
    """The user's folder."""
    (folder / "tmp").mkdir()
    (folder / "train.py").write_text(script.whole)
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def message(done: subprocess.CompletedProcess[str]) -> str:
    """What windtunnel says of what it cannot do."""
    return next((line for line in done.stderr.splitlines() if line.startswith("windtunnel: error:")), "")


def capture_is_as_stated(script: Script, folder: Path) -> list[str]:
    """What is wrong with the capture, and with the prediction of what it wrote."""
    before, wrong = tree(folder), []
    done = windtunnel(folder, "capture", "--world-size", WORLD, *script.options, "train.py")
    said = message(done)
    if script.captured:
        if done.returncode != 2 or script.captured not in said:
            wrong.append(f"capture: status {done.returncode}, {said or done.stderr[-600:]!r}")
    elif done.returncode:
        wrong.append(f"capture: status {done.returncode}, {said or done.stderr[-600:]!r}")
    else:
        predicted = windtunnel(folder, "predict", "captured", "--cluster", CLUSTER, "--json")
        if predicted.returncode or not json.loads(predicted.stdout)["step_time_s"] > 0:
            wrong.append(f"predict: status {predicted.returncode}, {message(predicted) or predicted.stderr[-600:]!r}")
    after = tree(folder)
    wrong += [
        f"capture changed {name}" for name in sorted(before.keys() | after) if before.get(name) != after.get(name)
    ]
    return wrong + [f"left {path.name}" for path in (folder / "tmp").glob("windtunnel-*")]


def run_is_as_stated(script: Script, folder: Path) -> list[str]:
    """What is wrong with one real rank."""
    before, wrong = tree(folder), []
    done = windtunnel(folder, "run", "--cluster", CLUSTER, "--json", "train.py")
    said = message(done)
    if script.ran.startswith("exit "):
        if done.returncode != int(script.ran.split()[1]) or said:
            wrong.append(f"run: status {done.returncode}, {said!r}")
    elif script.ran:
        if done.returncode == 0 or script.ran not in said:
            wrong.append(f"run: status {done.returncode}, {said or done.stderr[-600:]!r}")
    elif done.returncode:
        wrong.append(f"run: status {done.returncode}, {said or done.stderr[-600:]!r}")
    elif (json.loads(done.stdout)["steps"] > 0) != script.steps:
        wrong.append(f"run: {json.loads(done.stdout)['steps']} steps")
    after = tree(folder)
    wrong += [
        f"run changed {name}"
        for name in sorted(before.keys() | after)
        if before.get(name) != after.get(name) and Path(name).parts[0] not in script.writes
    ]
    return wrong + [f"left {path.name}" for path in (folder / "tmp").glob("windtunnel-*")]


def found(script: Script, verbs: tuple[str, ...] = ("capture", "run")) -> list[str]:
    """What is wrong, in a fresh folder for each command."""
    wrong: list[str] = []
    for verb, check in (("capture", capture_is_as_stated), ("run", run_is_as_stated)):
        if verb in verbs:
            with tempfile.TemporaryDirectory() as name:
                prepared(script, Path(name))
                wrong += check(script, Path(name))
    return wrong


def main() -> None:
    """Print each script, and how many are as stated."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=list(SCRIPTS))
    parser.add_argument("--out", type=Path, default=Path("unusual.jsonl"), help="what was found; a rerun goes on there")
    args = parser.parse_args()
    known = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    done = {one["name"]: one["wrong"] for one in known}
    for name in args.names:
        script = SCRIPTS[name]
        if name in done or (script.needs and importlib.util.find_spec(script.needs) is None):
            continue
        done[name] = found(script)
        with args.out.open("a") as file:
            file.write(json.dumps({"name": name, "wrong": done[name]}) + "\n")
        print(f"{name}: {'; '.join(done[name]) or 'as stated'}", flush=True)
    bad = sum(bool(wrong) for wrong in done.values())
    print(f"{len(done) - bad} of {len(done)} scripts are as stated", flush=True)


if __name__ == "__main__":
    main()
