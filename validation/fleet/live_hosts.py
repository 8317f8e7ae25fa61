"""20 jobs on three hosts, the scheduler killed ten times: all done, no step lost or done twice, times as simulated.

    sudo python validation/fleet/live_hosts.py [--kills 10] [--policy fifo-skip]

Hosts are network namespaces with agents of their own (`--host "ip netns exec a"`). Each job takes steps of .2 s and
writes each one down; it has a process on each of its hosts, and the first of them takes the steps. The scheduler is
started again half a second after each kill. What a start costs is measured first.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STEP_S, SLOTS = 0.2, 4
WORKER = """
import os, sys, time
folder, steps = os.environ["WINDTUNNEL_FOLDER"], int(sys.argv[1])
path = os.path.join(folder, "steps")
if os.environ.get("WINDTUNNEL_NODE", "0") != "0":
    while not os.path.exists(os.path.join(folder, "over")):
        time.sleep(0.05)
    sys.exit()
done = len(open(path).readlines()) if os.path.exists(path) else 0
while done < steps:
    time.sleep(STEP_S)
    done += 1
    with open(path, "a") as file:
        file.write(f"{done}\\n")
open(os.path.join(folder, "over"), "w").close()
""".replace("STEP_S", str(STEP_S))


def alone(worker: Path, folder: Path, steps: int) -> float:
    folder.mkdir()
    began = time.monotonic()
    subprocess.run([sys.executable, str(worker), str(steps)], check=True, env={"WINDTUNNEL_FOLDER": str(folder)})
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--policy", default="fifo-skip")
    parser.add_argument("--seed", type=int, default=3)
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    spaces = [f"wt{os.getpid()}h{at}" for at in range(3)]
    for space in spaces:
        subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(Path(folder), spaces, asked, draw)
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def run(here: Path, spaces: list[str], asked: argparse.Namespace, draw: random.Random) -> None:
    worker = here / "worker.py"
    worker.write_text(WORKER)
    short, longer = (alone(worker, here / f"alone-{steps}", steps) for steps in (1, 31))
    step_s = (longer - short) / 30
    start_s = short - step_s
    rows = [(f"job-{at}", draw.uniform(0, 40), draw.choice([1, 2, 4, 6]), draw.randint(50, 200)) for at in range(20)]
    (here / "jobs.yaml").write_text(
        "\n".join(
            f"- {{job: {name}, submit_s: {submit:.2f}, gpus: {gpus}, duration_s: {start_s + steps * step_s:.3f},"
            f" command: '{sys.executable} {worker} {steps}'}}"
            for name, submit, gpus, steps in rows
        )
    )
    words = [sys.executable, "-m", "windtunnel", "fleet", "live", str(here / "jobs.yaml"), "--out", str(here / "out")]
    words += ["--cluster", f"gpu:3x{SLOTS}", "--policy", asked.policy, "--restart", f"{start_s:.3f}", "--json"]
    for space in spaces:
        words += ["--host", f"ip netns exec {space}"]
    for _ in range(asked.kills):
        scheduler = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        time.sleep(draw.uniform(2.0, 10.0))
        scheduler.send_signal(signal.SIGKILL)
        scheduler.wait()
        time.sleep(0.5)
    answer = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    wrong = 0
    for name, _, _, steps in rows:
        said = collections.Counter((here / "out" / name / "steps").read_text().split())
        wrong += said != collections.Counter(str(step + 1) for step in range(steps))
    done = sum(row["state"] == "completed" for row in answer["jobs"])
    real, simulated = answer["jct_mean_s"], answer["simulated_jct_mean_s"]
    print(
        f"{asked.policy}, {asked.kills} kills of the scheduler: {done} of {len(rows)} done, {wrong} with steps lost or"
        f" repeated, {sum(row['deaths'] for row in answer['jobs'])} deaths; mean JCT {real:.2f} s, simulated"
        f" {simulated:.2f} s ({real / simulated - 1:+.1%})"
    )


if __name__ == "__main__":
    main()
