"""Fifty injected faults in one running job of real processes: is the culprit named, nobody else, and soon enough?

    python validation/resilience/culprits.py [--ranks 4] [--cases 50] [--overhead]

Each rank logs segments (input, forward, copy, link, garbage collection) and its all-reduce. Faults are real: a slow
read, a busy loop, a large copy, a late send, collections of a large heap, SIGSTOP, a loop that comes to no
collective. Clean windows in between must accuse nobody. `--overhead` measures what watching costs a step, in paired
turns of 20 steps with log, beat and garbage watch and 20 without: CPU time of the process, which other work on the
machine does not move, and wall time of a whole step. Needs torch.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing as mp
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

SLOW = ("input", "forward", "copy", "link", "garbage collection")
EXTRA_S = 0.04
TURN = 20  # steps


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def child(rank: int, world: int, port: int, folder: str, turns: int) -> None:
    import numpy as np
    import torch
    from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

    from windtunnel.process import die_with_parent
    from windtunnel.real.survive import RankLog

    die_with_parent(os.getppid())
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False)
    log = RankLog.create(Path(folder) / f"{rank}.log", rank, {"dp": range(world)})
    log.start_beat()
    log.watch_garbage()
    gc.collect()
    gc.freeze()
    gc.disable()  # collections happen where a case asks for them
    group = ProcessGroupGloo(PrefixStore("dp", store), rank, world, timedelta(seconds=600))
    large, target = np.ones(24 << 20, np.uint8), np.ones(24 << 20, np.uint8)
    heap: list[object] = []
    flags = torch.zeros(16)
    step = 0
    on = True
    turn = (time.perf_counter(), time.process_time())
    taken: list[tuple[float, float]] = []  # wall and CPU seconds of a step, by turn
    while True:
        fault = json.loads(store.get("fault").decode()) if store.check(["fault"]) else {}
        mine = fault.get("kind") if fault.get("rank") == rank else None
        logged = (lambda name: log.segment(name)) if on else (lambda name: nullcontext())
        with logged("input"):
            time.sleep(0.01 + (EXTRA_S if mine == "input" else 0.0))
        with logged("forward"):
            busy(0.005 + (EXTRA_S if mine == "forward" else 0.0))
        with logged("copy"):
            done = time.thread_time()
            np.copyto(target[: 1 << 20], large[: 1 << 20])
            while mine == "copy" and time.thread_time() - done < EXTRA_S:
                np.copyto(target, large)
        with logged("link"):
            time.sleep(0.005 + (EXTRA_S if mine == "link" else 0.0))  # a send that the wire holds up
        if mine == "garbage collection":
            if not heap:
                heap = [[n] for n in range(400_000)]
            gc.collect()
        elif heap:
            heap = []
        if mine == "loop":
            while store.check(["fault"]) and json.loads(store.get("fault").decode()).get("kind") == "loop":
                time.sleep(0.02)
        with log.collective("dp") if on else nullcontext():
            group.allreduce([flags]).wait()
        step += 1
        if rank == 0:
            store.set("step", str(step))
        if turns and step % TURN == 0:
            before, turn = turn, (time.perf_counter(), time.process_time())
            taken.append(((turn[0] - before[0]) / TURN, (turn[1] - before[1]) / TURN))
            on = not on
            if on:
                log.rows[0, 2] = 0.0
                log.start_beat()
                log.watch_garbage()
            else:
                log.end()
            if step == turns:
                if rank == 0:
                    store.set("times", json.dumps(taken))
                return


def ask(store, rank: int, kind: str) -> None:
    store.set("fault", json.dumps({"rank": rank, "kind": kind}))


def steps_on(store, count: int) -> None:
    until = int(store.get("step").decode()) + count
    while int(store.get("step").decode()) < until:
        time.sleep(0.05)


def started(world: int, folder: str, turns: int = 0):
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300))
    context = mp.get_context("spawn")
    processes = [context.Process(target=child, args=(r, world, store.port, folder, turns)) for r in range(world)]
    for process in processes:
        process.start()
    return store, processes


def cases(store, processes, folder: Path, asked) -> int:
    from windtunnel.real.survive.watch.log import read_logs
    from windtunnel.real.survive.watch.verdict import verdict

    rng = random.Random(asked.seed)
    kinds = [*SLOW, "stop", "loop"]
    plan = [kinds[i % len(kinds)] for i in range(asked.cases)]
    rng.shuffle(plan)
    right = accused = false = 0
    late: list[float] = []
    for at, kind in enumerate(plan):
        rank = rng.randrange(asked.ranks)
        ask(store, -1, "none")
        steps_on(store, 4)
        if at % 5 == 0:  # a clean window
            began = time.time()
            steps_on(store, asked.window)
            clean = verdict(read_logs(folder), time.time(), asked.patience, began).culprits
            false += len(clean)
            if clean:
                print("clean window:", "; ".join(one.sentence for one in clean), flush=True)
        began = time.time()
        if kind in SLOW:
            ask(store, rank, kind)
            steps_on(store, 2)
            since = time.time()
            steps_on(store, asked.window)
            found = verdict(read_logs(folder), time.time(), asked.patience, since).culprits
            hit = {(one.rank, one.where) for one in found} == {(rank, kind)}
        else:
            time.sleep(rng.random() * 0.2)
            began = time.time()
            if kind == "stop":
                os.kill(processes[rank].pid, signal.SIGSTOP)
            else:
                ask(store, rank, "loop")
            found = ()
            while not found and time.time() - began < asked.patience + 30:
                found = verdict(read_logs(folder), time.time(), asked.patience).culprits
                found = tuple(one for one in found if one.kind == "silent")
                time.sleep(0.1)
            late.append(time.time() - began - asked.patience)
            hit = {one.rank for one in found} == {rank}
            os.kill(processes[rank].pid, signal.SIGCONT)
        ask(store, -1, "none")
        right += hit
        accused += bool(found)
        false += sum(one.rank != rank for one in found)
        said = "; ".join(one.sentence for one in found) or "nothing"
        print(f"{at + 1:3} {kind:18} rank {rank}: {'ok ' if hit else 'NOT'} {said}", flush=True)
    print(
        f"{asked.cases} cases: recall {right / asked.cases:.3f}, precision {right / max(right + false, 1):.3f};"
        f" hung rank named {max(late, default=0):.2f} s after the patience at most"
    )
    return int(right < 0.98 * asked.cases or false > 0.02 * asked.cases)


def event_cost() -> None:
    """CPU time of logging one segment, against not logging it, in turns."""
    from windtunnel.real.survive import RankLog

    with tempfile.TemporaryDirectory() as folder:
        log = RankLog.create(Path(folder) / "0.log", 0)

        def turn(on: bool) -> float:
            began = time.thread_time()
            for _ in range(2000):
                with log.segment("input") if on else nullcontext():
                    pass
            return (time.thread_time() - began) / 2000

        cost = statistics.median(turn(True) - turn(False) for _ in range(30))
    print(f"{1e6 * cost:.2f} us of CPU an event: five of them are {5 * cost / 0.02:.2%} of a step of 20 ms")


def overhead(asked) -> int:
    event_cost()
    with tempfile.TemporaryDirectory() as folder:
        store, processes = started(2, folder, turns=TURN * (2 * asked.turns + 2))
        store.wait(["times"], timedelta(seconds=900))
        taken = json.loads(store.get("times").decode())[2:]  # first-time costs are in the first two
        for process in processes:
            process.join()
    pairs = list(zip(taken[0::2], taken[1::2], strict=True))  # on, off
    step_s = statistics.median(off[0] for _, off in pairs)
    cpu = sorted((on[1] - off[1]) / step_s for on, off in pairs)
    wall = sorted((on[0] - off[0]) / step_s for on, off in pairs)
    for name, found in (("CPU time", cpu), ("wall time", wall)):
        middle, quarters = statistics.median(found), statistics.quantiles(found, n=4)
        turns = f"{len(found)} paired turns of {TURN} steps of {1e3 * step_s:.1f} ms, {name}"
        print(f"{turns}: median {middle:+.2%} of a step (quartiles {quarters[0]:+.2%} to {quarters[2]:+.2%})")
    return int(statistics.median(cpu) > 0.01)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--window", type=int, default=25, help="steps looked at")
    parser.add_argument("--patience", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--turns", type=int, default=50, help="paired turns of --overhead")
    asked = parser.parse_args()
    if asked.overhead:
        return overhead(asked)
    with tempfile.TemporaryDirectory() as folder:
        store, processes = started(asked.ranks, folder)
        store.wait(["step"], timedelta(seconds=300))
        try:
            return cases(store, processes, Path(folder), asked)
        finally:
            for process in processes:
                process.kill()
                process.join()


if __name__ == "__main__":
    sys.exit(main())
