"""Random `kill -9` against a real job: are the losses the same bits, is nothing left behind, how long did it stand
still?

    python validation/resilience/kills.py --ranks 4 --kills 50 --pairs 0.2

One job is never killed and gives the expected losses. Then jobs of the same length are killed at random moments, one
rank or two at once, until so many kills are done. Before each of them the same ranks are started afresh, without a
standby and without forks, to their first step: that is the full relaunch its downtimes are held against. It leaves
out what torchrun spends on itself, which is told beside it once, with DistributedDataParallel (`ddp.py`). Needs torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "resilience" / "train.py"


class Killer:
    """Kills ranks at random moments; `warm`: only while as many standbys are warm as are killed."""

    def __init__(self, seed: int, kills: int, pairs: float, mean_s: float, warm: bool, servers: float) -> None:
        self.warm, self.servers = warm, servers
        self.random, self.left, self.pairs, self.mean_s = random.Random(seed), kills, pairs, mean_s
        self.done = 0
        self.at = float("inf")
        self.seen: set[int] = set()

    def __call__(self, pids: dict[str, int], members: tuple[str, ...], warm: tuple[str, ...]) -> None:
        self.seen |= set(pids.values())
        if "" in members or not all(name in pids for name in members):
            return
        if self.warm and not warm:
            self.at = float("inf")
            return
        now = time.time()
        if self.at == float("inf"):
            self.at = now + self.random.expovariate(1 / self.mean_s)
        if now < self.at or self.left <= 0:
            return
        number = 2 if self.random.random() < self.pairs and len(members) > 2 and self.left > 1 else 1
        if self.warm:
            number = min(number, len(warm))
        for name in self.random.sample(members, number):
            os.kill(pids[name], signal.SIGKILL)
        if "server" in pids and self.random.random() < self.servers:
            with suppress(ProcessLookupError):
                os.kill(pids["server"], signal.SIGKILL)
        self.left -= number
        self.done += number
        self.at = now + self.random.expovariate(1 / self.mean_s)


def job(ranks: int, standbys: int, steps: int, pause: float, killer: Killer | None, afresh: bool):
    from windtunnel.real.survive import launch

    with tempfile.TemporaryDirectory() as folder:
        losses = Path(folder) / "losses.json"
        words = [sys.executable, str(SCRIPT), "--steps", str(steps), "--pause", str(pause), "--losses", str(losses)]
        told = launch(words, ranks, standbys, watching=killer, afresh=afresh)
        return told, json.loads(losses.read_text()) if losses.exists() else []


def relaunch_s(ranks: int) -> float:
    """Seconds until the first step of so many ranks that are started afresh, as torchrun starts them."""
    told, _ = job(ranks, 0, 1, 0.0, None, afresh=True)
    return told.start_s


def torchrun_s(ranks: int) -> float:
    """The same by torchrun itself, which loads torch before it starts a rank."""
    words = ["--nproc-per-node", str(ranks), str(Path(__file__).with_name("ddp.py"))]
    began = time.time()
    command = [sys.executable, "-m", "torch.distributed.run", *words]
    return float(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout) - began


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--standbys", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pairs", type=float, default=0.2, help="share of kills that take two ranks at once")
    parser.add_argument("--servers", type=float, default=0.0, help="share of kills that take the fork server too")
    parser.add_argument("--each", type=int, default=10, help="kills of one job")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--pause", type=float, default=0.01)
    parser.add_argument("--mean", type=float, default=6.0, help="mean seconds between kills")
    parser.add_argument("--warm", action="store_true", help="kill only while a standby is warm")
    parser.add_argument("--afresh", action="store_true", help="no forks: each process is started by itself")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch_s = torchrun_s(asked.ranks)
    told, expected = job(asked.ranks, asked.standbys, asked.steps, asked.pause, None, asked.afresh)
    print(f"torchrun and DistributedDataParallel to the first step: {torch_s:.2f} s")
    print(f"uninterrupted: start {told.start_s:.2f} s, {len(expected)} steps", flush=True)
    done = wrong = orphans = 0
    ratios, downtimes, relaunches, starts = [], [], [], []
    while done < asked.kills:
        kills = min(asked.each, asked.kills - done)
        killer = Killer(asked.seed + done, kills, asked.pairs, asked.mean, asked.warm, asked.servers)
        relaunches.append(relaunch_s(asked.ranks))
        told, losses = job(asked.ranks, asked.standbys, asked.steps, asked.pause, killer, asked.afresh)
        same = losses == expected
        left = [pid for pid in killer.seen if alive(pid)]
        done += killer.done
        wrong += not same
        orphans += len(left)
        times = [one.downtime_s for one in told.replacements if one.downtime_s is not None]
        downtimes += times
        ratios += [one / relaunches[-1] for one in times]
        starts += [told.start_s] if told.start_s is not None else []
        waits = " ".join(f"{one:.2f}" for one in times)
        print(
            f"{killer.done} kills ({done} in all): status {told.status} {told.reason}, bit-identical {same}, orphans"
            f" {len(left)}, relaunch {relaunches[-1]:.2f} s, start {told.start_s:.2f} s, downtimes {waits}",
            flush=True,
        )
        if not killer.done:
            print("the job ended before it was killed once: give more --steps")
            return 1
    print(
        f"{done} kills: wrong results {wrong}, orphans {orphans}; downtime median {statistics.median(downtimes):.3f} s,"
        f" worst {max(downtimes):.3f} s; of a full relaunch ({statistics.median(relaunches):.2f} s) median"
        f" {statistics.median(ratios):.3f}, worst {max(ratios):.3f}; over 1/5: {sum(one > 0.2 for one in ratios)} of"
        f" {len(ratios)}; this launcher's own start takes {statistics.median(starts):.2f} s (median)"
    )
    return int(bool(wrong or orphans))


if __name__ == "__main__":
    sys.exit(main())
