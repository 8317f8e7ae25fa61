"""Techniques predicted and really run: gains on gloo ranks over real slow links, held against the simulator's.

    sudo python validation/techniques/predicted_and_run.py [--rounds 5] [--only lina] [--table TABLE.csv]

24 configurations: technique x layers x link x ranks (`CONFIGURATIONS`). Measured alone just before each of them, since
a shared machine is not the same a minute later, and what its prediction is made of: each collective at four sizes (a
straight line), by how much a sleep is too long, and for offload one layer's passes and update. It is played on these by
`techniques.flat.play` (or `offload.window.timeline`) without and with the technique, and run without and with it in
turns, every second time the other way round. Compute beside communication is played by sleeping, as kernels on a device
would: two busy cores would hide the effect. Printed, and written as a table: each gain predicted and measured, their
error, and whether the sign is right where it is above 5 %. `predicted_and_run.csv` is such a table, dated.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from slow_link import reason, slow_link

from windtunnel.studies.techniques.flat import Lane, Task, cut_tasks, play
from windtunnel.studies.techniques.flat.play import SHARED
from windtunnel.studies.techniques.offload.window import LayerTimes, timeline

LINK, MIB = "scale_out", 1 << 20
NEEDS = {  # what each one's prediction is made of
    "lina": ("sleep", "hand over", "all_to_all", "all_reduce"), "sparse": ("sleep", "all_reduce", "choose"),
    "partition": ("sleep", "all_gather", "reduce_scatter"), "local": ("sleep", "all_reduce"), "offload": (),
}  # fmt: skip
LAYERS = 5
# (technique, link, ranks, arguments). Arguments of
#   lina       compute s of each layer but the last, of that, all-to-all MiB, all-reduce MiB a layer
#   sparse     compute s, MiB a layer, ratio
#   partition  which, pieces, compute s
#   local      compute s, MiB, local steps
#   offload    window, bytes per s; rank 0 alone
CONFIGURATIONS: list[tuple[str, str, int, tuple]] = [
    ("lina", "400mbit", 2, (0.02, 0.4, 2.0, 2.0)),
    ("lina", "400mbit", 2, (0.02, 0.5, 1.0, 3.0)),
    ("lina", "400mbit", 2, (0.1, 0.1, 1.0, 2.0)),
    ("sparse", "400mbit", 2, (0.03, 2.0, 0.05)),
    ("sparse", "400mbit", 2, (0.03, 2.0, 0.25)),
    ("sparse", "400mbit", 2, (0.1, 2.0, 0.05)),
    ("partition", "400mbit", 2, ("gather", 4, 0.15)),
    ("partition", "400mbit", 2, ("scatter", 4, 0.15)),
    ("local", "400mbit", 2, (0.04, 2.0, 2)),
    ("offload", "400mbit", 2, (2, 40e6)),
    ("offload", "400mbit", 2, (4, 40e6)),
    ("offload", "400mbit", 2, (2, 15e6)),
    ("lina", "200mbit", 2, (0.02, 0.8, 2.0, 2.0)),
    ("sparse", "200mbit", 2, (0.03, 1.0, 0.1)),
    ("partition", "200mbit", 2, ("scatter", 8, 0.15)),
    ("local", "200mbit", 2, (0.15, 2.0, 4)),
    ("sparse", "1gbit", 2, (0.03, 4.0, 0.1)),
    ("partition", "1gbit", 2, ("gather", 2, 0.05)),
    ("local", "1gbit", 2, (0.04, 2.0, 8)),
    ("lina", "400mbit", 4, (0.02, 0.6, 2.0, 2.0)),
    ("sparse", "400mbit", 4, (0.03, 2.0, 0.1)),
    ("partition", "400mbit", 4, ("gather", 4, 0.15)),
    ("partition", "400mbit", 4, ("scatter", 4, 0.15)),
    ("local", "400mbit", 4, (0.04, 2.0, 4)),
]
MICRO = MIB // 2


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


class Line:
    """Seconds of a collective alone: latency + bytes / rate."""

    def __init__(self, points: list[tuple[float, float]]) -> None:
        (x0, y0), (x1, y1) = points[0], points[-1]
        self.per_byte = (y1 - y0) / (x1 - x0)
        self.latency = max(0.0, y0 - self.per_byte * x0)

    def task(self, name: str, size: float, *after: int, urgency: int = 0) -> Task:
        whole = ns(self.latency + size * self.per_byte)
        return Task(name, LINK, whole, after, name, urgency, size, ns(self.latency))


def slept(lines: dict[str, Line], seconds: float, *after: int) -> Task:
    """Compute that a sleep stands for: with what it is too long by, in one piece or in each of several."""
    more = lines["sleep"].latency
    return Task("compute", "compute", ns(seconds + more), after, latency_ns=ns(more))


def computes_of(short: float, long: float) -> list[float]:
    """Seconds of compute before each layer's all-to-all."""
    return [long if layer == LAYERS - 1 else short for layer in range(LAYERS)]


def order_of(lines: dict[str, Line], *arguments: float) -> str:
    """The static order that the simulator emits: a for an all-to-all, r for a piece of an all-reduce."""
    made = _lina_tasks(lines, *arguments)[1]
    played = play(made, {LINK: Lane()})
    begins = sorted((played.start_ns[n], n) for n, task in enumerate(made) if task.lane == LINK)
    return "".join("a" if made[n].role == "all_to_all" else "r" for _, n in begins)


def predict_lina(lines: dict[str, Line], *arguments: float) -> tuple[float, float]:
    whole, made = _lina_tasks(lines, *arguments)
    without = play(whole, {LINK: SHARED}).makespan_ns
    return without / 1e9, play(made, {LINK: Lane()}).makespan_ns / 1e9


def _lina_tasks(
    lines: dict[str, Line], short: float, long: float, exchange: float, reduce: float
) -> tuple[list[Task], tuple[Task, ...]]:
    tasks: list[Task] = []
    last: tuple[int, ...] = ()
    for compute in computes_of(short, long):
        tasks.append(slept(lines, compute, *last))
        tasks.append(lines["all_to_all"].task("all_to_all", exchange * MIB, len(tasks) - 1))
        last = (len(tasks) - 1,)
        tasks.append(lines["all_reduce"].task("reduce", reduce * MIB, *last, urgency=1))
    pieces = round(reduce * MIB / MICRO)
    handed = ns(lines["hand over"].latency)  # of an operation to the communication thread, and back
    made = cut_tasks(tasks, lambda task: pieces if task.role == "reduce" else 1)
    return tasks, tuple(replace(task, work_ns=task.work_ns + handed) if task.lane == LINK else task for task in made)


def predict_sparse(lines: dict[str, Line], compute: float, size: float, ratio: float) -> tuple[float, float]:
    def one(parts: Callable[[int], list[Task]]) -> float:
        tasks: list[Task] = []
        for _ in range(LAYERS):
            # DDP's hook runs on the autograd thread: choosing and the norms hold up what is computed next.
            before = max((i for i, t in enumerate(tasks) if t.lane == "compute" or t.name == "norms"), default=-1)
            tasks.append(slept(lines, compute, *((before,) if before >= 0 else ())))
            tasks += parts(len(tasks))
        return play(tasks, {LINK: SHARED}).makespan_ns / 1e9

    reduce, choosing = lines["all_reduce"], lines["choose"]
    bytes_ = size * MIB
    whole = one(lambda at: [reduce.task("reduce", bytes_, at - 1)])
    made = one(
        lambda at: [
            Task("choose", "compute", ns(choosing.latency + choosing.per_byte * bytes_), (at - 1,)),
            reduce.task("norms", bytes_ / 256, at),  # on the link, beside the chunks of layers before
            reduce.task("chunks", bytes_ * ratio, at + 1),
        ]
    )
    return whole, made


def predict_partition(
    lines: dict[str, Line], which: str, pieces: int, compute: float, ranks: int = 2
) -> tuple[float, float]:
    kind = {"gather": "all_gather", "scatter": "reduce_scatter"}[which]

    def one(count: int) -> float:
        first = lines[kind].task("exchange", ROWS * COLUMNS * 4 * ranks)
        second = slept(lines, compute, 0)
        if which == "scatter":
            second, first = lines[kind].task("exchange", ROWS * COLUMNS * 4 * ranks, 0), slept(lines, compute)
        return play(cut_tasks([first, second], lambda _: count), {LINK: Lane()}).makespan_ns / 1e9

    return one(1), one(pieces)


def predict_local(lines: dict[str, Line], compute: float, size: float, steps: int) -> tuple[float, float]:
    reduce = lines["all_reduce"].latency + lines["all_reduce"].per_byte * size * MIB
    compute += lines["sleep"].latency
    return compute + reduce, compute + reduce / steps


ROWS, COLUMNS = 1024, 512  # of one rank's rows: 2 MiB


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--link", default="")
    parser.add_argument("--answers", type=Path)
    asked = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(asked)
        return
    lacks = reason()
    if lacks:
        print(f"skipped: {lacks}")
        return
    found: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        for rate, ranks in dict.fromkeys(one[1:3] for one in chosen(asked.only)):
            answers = Path(folder) / "answers.json"
            words = [sys.executable, __file__, "--answers", str(answers), "--rounds", str(asked.rounds), "--only",
                     asked.only, "--link", rate]  # fmt: skip
            with slow_link(rate, ranks) as link:
                link.run(words, timeout_s=1500)
            found += json.loads(answers.read_text())
    rows = report(found)
    if asked.table:
        with asked.table.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def chosen(only: str) -> list[tuple[str, str, int, tuple]]:
    return [one for one in CONFIGURATIONS if not only or one[0] == only]


def report(found: list[dict]) -> list[dict]:
    """Prints each configuration and what all of them come to; the rows of the table."""
    errors, signs, rows = [], [], []
    for one in found:
        name, arguments = one["name"], one["arguments"]
        lines = {name: Line(points) for name, points in one["alone"].items()}
        if name == "offload":
            times = LayerTimes(**one["times"])
            gone = timeline(times, one["layers"], arguments[0], before_s=one["ends"], end_s=one["end"])
            stay = timeline(times, one["layers"], one["layers"], before_s=one["ends"], end_s=one["end"])
            without, after = stay.step_s, gone.step_s
        elif name == "partition":
            without, after = predict_partition(lines, *arguments, one["ranks"])
        else:
            without, after = globals()[f"predict_{name}"](lines, *arguments)
        predicted = without / after
        measured = statistics.median(a / b for a, b in zip(one["without"], one["with"], strict=True))
        errors.append(abs(predicted / measured - 1.0))
        if abs(measured - 1.0) > 0.05:
            signs.append((predicted > 1.0) == (measured > 1.0))
        run = [1e3 * statistics.median(one[which]) for which in ("without", "with")]
        rows.append({
            "technique": name, "link": one["rate"], "ranks": one["ranks"], "arguments": " ".join(map(str, arguments)),
            "predicted_without_ms": f"{1e3 * without:.1f}", "predicted_with_ms": f"{1e3 * after:.1f}",
            "run_without_ms": f"{run[0]:.1f}", "run_with_ms": f"{run[1]:.1f}",
            "predicted_gain": f"{predicted:.3f}", "run_gain": f"{measured:.3f}",
            "error_percent": f"{100 * (predicted / measured - 1.0):.1f}", "date": time.strftime("%Y-%m-%d"),
        })  # fmt: skip
        alone = ", ".join(
            f"{what} {1e3 * line.latency:.1f}+{1e3 * line.per_byte * MIB:.1f}" for what, line in lines.items()
        )
        print(
            f"{name:10} {one['rate']:>7} x{one['ranks']} {arguments!s:28} predicted {1e3 * without:6.0f} ->"
            f" {1e3 * after:6.0f} ms gain {predicted:5.2f}, run {run[0]:6.0f} -> {run[1]:6.0f} ms gain {measured:5.2f},"
            f" error {predicted / measured - 1.0:+6.1%}  [{alone}: ms + ms a MiB]"
        )
    print(
        f"{len(errors)} configurations: mean error of the gain {statistics.mean(errors):.1%}, worst {max(errors):.1%};"
        f" sign right in {sum(signs)} of {len(signs)} where the measured gain is above 5 %"
    )
    return rows


def rank_main(asked: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    where = f"tcp://{os.environ['MASTER']}:29531"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=ranks, timeout=timedelta(seconds=300))
    import real_runs

    runs = []
    for name, rate, size, arguments in chosen(asked.only):
        if (rate, size) != (asked.link, ranks):
            continue
        alone = real_runs.alone(NEEDS[name])  # the same on all ranks: each time is that of the slowest
        lines = {what: Line(points) for what, points in alone.items()}
        more = (order_of(lines, *arguments),) if name == "lina" else ()
        found = getattr(real_runs, name)(asked.rounds, *more, *arguments)
        runs.append({"name": name, "rate": rate, "ranks": ranks, "arguments": list(arguments), "alone": alone, **found})
        dist.barrier()
    if rank == 0:
        asked.answers.write_text(json.dumps(runs))
    dist.destroy_process_group()


def paired(rounds: int, without: Callable[[], float], after: Callable[[], float]) -> dict:
    """Seconds of both, in turns, the first turn left out; every second turn the other way round, so no drift helps."""
    found = {"without": [], "with": []}
    turns = (("without", without), ("with", after))
    for number in range(rounds + 1):
        for name, run in turns if number % 2 else turns[::-1]:
            seconds = run()
            if number:
                found[name].append(seconds)
    return found


if __name__ == "__main__":
    main()
