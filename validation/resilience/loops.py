"""Thirteen loops of the kind that people have, under `windtunnel.survive.standby`: killed, are they the same bits?

    python validation/resilience/loops.py --ranks 4 --kills 2 [ddp fsdp2 ... hf_trainer]

Each script of `loops/` runs plainly, then under the launcher while ranks are killed at random moments, standbys, hosts
and the fork server among them; with every fourth seed, or `--early`, from the start of the processes on. Losses and
weights of all ranks are held bit by bit against the plain run. A relaunch is the script itself under torchrun for one
step, with its start and end. With `--moments 20` no moment is left to chance: ranks in turn die before the first
communication of one call, the second of a later one, and so on. `--rows FILE` adds a row a job (`kills.csv`). Needs
torch, and `hf_trainer` (not run unless named) transformers and accelerate, which its fork server imports beforehand.
"""

from __future__ import annotations

import argparse
import csv
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

HERE = Path(__file__).with_name("loops")
NAMES = "ddp fsdp2 tp_dp pp compiled amp clip ema lora accumulation two_loaders between"


class Killer:
    """Kills members, standbys, hosts and the server, once at random moments.

    An early one begins with the first process, so before the first step; others once all members have begun.
    """

    def __init__(self, seed: int, kills: int, mean_s: float, first_s: float, early: bool) -> None:
        self.random, self.left, self.mean_s, self.first_s = random.Random(seed), kills, mean_s, first_s
        self.early, self.at, self.seen, self.killed = early, None, set(), []

    def __call__(self, pids: dict[str, int], members: tuple[str, ...], warm: tuple[str, ...]) -> None:
        self.seen |= set(pids.values())
        playing = [name for name in members if name in pids]
        if self.early and self.killed and len(pids) == 1:  # the server imports: it was killed once
            return
        if self.at is None and (self.early or (members and len(playing) == len(members))):
            self.at = time.time() + self.random.uniform(0.0, self.first_s)
        if self.at is None or time.time() < self.at or self.left <= 0 or not pids:
            return
        hosts = [name for name in pids if name.startswith("host")]
        if any(name.startswith("host") for name in self.killed):  # one has to be left
            pids, hosts = {name: pid for name, pid in pids.items() if name not in hosts}, []
        name = self.random.choice(playing) if playing and self.random.random() < 0.8 else self.random.choice(list(pids))
        name = self.random.choice(hosts) if hosts and len(self.killed) == 1 else name  # the second is a whole host
        with suppress(ProcessLookupError):
            os.kill(pids[name], signal.SIGKILL)
            self.killed.append(name)
            self.left -= 1
        self.at = time.time() + self.random.expovariate(1 / self.mean_s)


def results(folder: Path, ranks: int) -> list[object]:
    paths = [folder / f"{rank}.json" for rank in range(ranks)]
    return [json.loads(path.read_text()) if path.exists() else None for path in paths]


def relaunch(name: str, ranks: int, folder: Path) -> float:
    """Seconds that torchrun takes for one step: starts, imports, the end."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(HERE / f"{name}.py"), "--steps", "1", "--out", str(folder)]
    for _ in range(3):  # PyTorch's own threads abort a process at its end now and then
        began = time.time()
        ended = subprocess.run(command, env={**os.environ, "PLAIN": "1"}, stderr=subprocess.PIPE, text=True)
        if ended.returncode == 0:
            return time.time() - began
    raise RuntimeError(f"{name} under torchrun: {ended.stderr}")


def plain(name: str, ranks: int, steps: int, folder: Path, **environment: str) -> str:
    """What it said, where it failed."""
    folder.mkdir()
    words = [str(HERE / f"{name}.py"), "--steps", str(steps), "--out", str(folder)]
    command = [sys.executable, str(HERE / "plain.py"), str(ranks), *words]
    ended = subprocess.run(command, env=os.environ | environment, stderr=subprocess.PIPE, text=True)
    return ended.stderr if ended.returncode else ""


def offloaded(names: list[str], ranks: int, steps: int) -> int:
    """Each script with its layers on the host, against the same without."""
    wrong = 0
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            plain(name, ranks, steps, Path(folder) / "plain")
            said = plain(name, ranks, steps, Path(folder) / "offload", OFFLOAD="1")
            expected, got = (results(Path(folder) / one, ranks) for one in ("plain", "offload"))
            error = said.strip().rpartition("\n")[2]
            same = None not in expected and got == expected
            refused = "windtunnel.errors." in error and not any(got)
            wrong += not same and not refused
            print(f"{name}: {'refused' if refused else f'same bits {same}'} {error}", flush=True)
    return wrong


COLUMNS = ["date", "script", "ranks", "hosts", "killed", "status", "same_bits", "orphans", "downtimes_s", "relaunch_s"]


def summary(path: Path) -> int:
    """What the rows of `--rows` say together."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    killed = [name for row in rows for name in row["killed"].split()]
    whole, servers = killed.count("host"), killed.count("server")
    wrong = sum((row["same_bits"], row["status"], row["orphans"]) != ("True", "0", "0") for row in rows)
    ratios = [float(one) / float(row["relaunch_s"]) for row in rows for one in row["downtimes_s"].split()]
    processes = len(killed) - servers - 2 * whole  # a host is two words
    print(
        f"{processes + servers + whole} kills ({processes} ranks and standbys, {servers} fork servers, {whole} hosts)"
        f" in {len(rows)} jobs of {len({row['script'] for row in rows})} scripts: {wrong} wrong; of a relaunch median"
        f" {statistics.median(ratios):.3f}, worst {max(ratios):.3f}, over 1/5 {sum(one > 0.2 for one in ratios)} of"
        f" {len(ratios)}"
    )
    return int(bool(wrong))


def main() -> int:
    from windtunnel.real.survive import launch

    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=NAMES.split())
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--standbys", type=int, default=1)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.05)
    parser.add_argument("--mean", type=float, default=1.5)
    parser.add_argument("--first", type=float, default=6.0)
    parser.add_argument("--hosts", nargs="*", default=[], help="what to put before each host's agent; '' for here")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--relaunch", type=float, default=0.0, help="seconds, measured before")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--moments", type=int, default=0, help="no random kills: before so many communications of a call"
    )
    parser.add_argument("--early", action="store_true", help="every job is killed from its first process on")
    parser.add_argument("--rows", type=Path, help="CSV to which each job adds a row")
    parser.add_argument("--summary", type=Path, help="no job: what such a CSV says")
    parser.add_argument("--offload", action="store_true", help="no kills: with and without offload.apply")
    asked = parser.parse_args()
    if asked.summary:
        return summary(asked.summary)
    if asked.offload:
        return offloaded(asked.names, asked.ranks, asked.steps)
    wrong = kills = 0
    ratios: list[float] = []
    for name in asked.names:
        with tempfile.TemporaryDirectory() as folder:
            relaunch_s = asked.relaunch or relaunch(name, asked.ranks, Path(folder) / "one")
            said = plain(name, asked.ranks, asked.steps, Path(folder) / "plain")
            expected = results(Path(folder) / "plain", asked.ranks)
            if None in expected:
                raise RuntimeError(f"{name} fails as it is: {said}")
            for turn in range(asked.repeat):
                out = Path(folder) / f"killed{turn}"
                out.mkdir()
                seed = asked.seed + turn
                strikes = [f"{3 + 2 * one}:{(one + turn) % asked.ranks}:{one + 1}" for one in range(asked.moments)]
                os.environ["STRIKE"] = " ".join(strikes)
                asked.kills = 0 if strikes else asked.kills
                killer = Killer(seed, asked.kills, asked.mean, asked.first, early=asked.early or seed % 4 == 3)
                words = ["--steps", str(asked.steps), "--pause", str(asked.pause), "--out", str(out)]
                command = [sys.executable, str(HERE / f"{name}.py"), *words]
                where = {"hosts": asked.hosts, "address": asked.address}
                where["preload"] = ["transformers.trainer"] if name == "hf_trainer" else []
                told = launch(command, asked.ranks, asked.standbys, watching=killer, **where)
                time.sleep(0.2)
                left = [pid for pid in killer.seen if Path(f"/proc/{pid}").exists()]
                killer.killed += [one for one in strikes if (out / one).exists()]
                same = results(out, asked.ranks) == expected
                times = [one.downtime_s for one in told.replacements if one.downtime_s is not None]
                ratios += [one / relaunch_s for one in times]
                kills += len(killer.killed)
                wrong += not same or bool(left) or told.status != 0
                waits = " ".join(f"{one:.2f}" for one in times)
                if asked.rows:
                    row = [time.strftime("%Y-%m-%d"), name, asked.ranks, len(asked.hosts) or 1, " ".join(killer.killed)]
                    row += [told.status, same, len(left), waits, f"{relaunch_s:.2f}"]
                    begun = asked.rows.exists()
                    with asked.rows.open("a", newline="") as file:
                        csv.writer(file).writerows([row] if begun else [COLUMNS, row])
                print(
                    f"{name}: killed {' '.join(killer.killed)}: status {told.status} {told.reason}, same bits {same},"
                    f" orphans {len(left)}, downtimes {waits} s of a relaunch of {relaunch_s:.2f} s",
                    flush=True,
                )
    median = f"{statistics.median(ratios):.3f}" if ratios else "none"
    print(f"{kills} kills, {wrong} jobs wrong; downtime over relaunch: median {median}, {len(ratios)} of them")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
