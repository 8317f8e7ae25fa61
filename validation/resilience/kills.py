"""Random `kill -9` against a real job: are the losses the same bits, is nothing left behind, how long did it stand
still?

    python validation/resilience/kills.py --ranks 4 --kills 50 --pairs 0.2

One job is never killed and gives the expected losses. Then jobs of the same length are killed at random moments, one
rank or two at once, until so many kills are done. A kill may come while no standby is warm, or in the middle of a
recovery. Downtime is held against what starting the very same job took, in the same run. Needs torch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "resilience" / "train.py"


class Killer:
    """Kills ranks at random moments; `warm`: only while as many standbys are warm as are killed."""

    def __init__(self, seed: int, kills: int, pairs: float, mean_s: float, warm: bool) -> None:
        self.warm = warm
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
        self.left -= number
        self.done += number
        self.at = now + self.random.expovariate(1 / self.mean_s)


def job(ranks: int, standbys: int, steps: int, pause: float, killer: Killer | None):
    from windtunnel.survive import launch

    with tempfile.TemporaryDirectory() as folder:
        losses = Path(folder) / "losses.json"
        words = [sys.executable, str(SCRIPT), "--steps", str(steps), "--pause", str(pause), "--losses", str(losses)]
        told = launch(words, ranks, standbys, watching=killer)
        return told, json.loads(losses.read_text()) if losses.exists() else []


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
    parser.add_argument("--each", type=int, default=10, help="kills of one job")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--pause", type=float, default=0.01)
    parser.add_argument("--mean", type=float, default=6.0, help="mean seconds between kills")
    parser.add_argument("--warm", action="store_true", help="kill only while a standby is warm")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    told, expected = job(asked.ranks, asked.standbys, asked.steps, asked.pause, None)
    print(f"uninterrupted: start {told.start_s:.2f} s, {len(expected)} steps", flush=True)
    done = wrong = orphans = 0
    ratios, downtimes = [], []
    while done < asked.kills:
        killer = Killer(asked.seed + done, min(asked.each, asked.kills - done), asked.pairs, asked.mean, asked.warm)
        told, losses = job(asked.ranks, asked.standbys, asked.steps, asked.pause, killer)
        same = losses == expected
        left = [pid for pid in killer.seen if alive(pid)]
        done += killer.done
        wrong += not same
        orphans += len(left)
        times = [one.downtime_s for one in told.replacements if one.downtime_s is not None]
        downtimes += times
        ratios += [one / told.start_s for one in times if told.start_s]
        print(
            f"{killer.done} kills ({done} in all): status {told.status} {told.reason}, bit-identical {same}, orphans"
            f" {len(left)}, start {told.start_s:.2f} s, downtimes {' '.join(f'{one:.2f}' for one in times)}",
            flush=True,
        )
        if not killer.done:
            print("the job ended before it was killed once: give more --steps")
            return 1
    beyond = sum(one > 0.2 for one in ratios)
    print(
        f"{done} kills: wrong results {wrong}, orphans {orphans}; {len(downtimes)} recoveries, downtime median"
        f" {statistics.median(downtimes):.3f} s, worst {max(downtimes):.3f} s; of a relaunch in the same run median"
        f" {statistics.median(ratios):.3f}, worst {max(ratios):.3f}, {beyond} above 1/5"
    )
    return int(bool(wrong or orphans))


if __name__ == "__main__":
    sys.exit(main())
