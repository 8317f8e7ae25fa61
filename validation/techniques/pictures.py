"""The measured pictures of docs/techniques: one configuration of each technique, predicted and run, to one scale.

    sudo python validation/techniques/pictures.py [FOLDER] [--rate 400mbit]

The runs, the slow link and the predictions are those of `predicted_and_run.py`. While one run without and one with the
technique are made, what computes (sleeps), each collective and each copy notes when it began and ended on rank 0; what
nobody sleeps for (choosing chunks, arithmetic) is not drawn. FOLDER/NAME_measured.svg is written for each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import predicted_and_run as both
from lanes import Bar, lanes_svg
from slow_link import reason, slow_link

from windtunnel.studies.techniques.flat import Task, Timeline
from windtunnel.studies.techniques.offload.window import LayerTimes, timeline

# technique -> (page, arguments as in predicted_and_run)
SHOWN = {
    "lina": ("prioritised_all_to_all", (0.02, 0.4, 2.0, 3.0)),
    "sparse": ("sparse_gradients", (0.03, 2.0, 0.05)),
    "partition": ("collective_partitioning", ("gather", 4, 0.15)),
    "local": ("local_sgd", (0.04, 2.0, 4)),
    "offload": ("offload", (4, 40e6)),
}
LANES = {"fetch": "host to device", "gradients": "device to host", "update": "host update"}  # threads of offload
KINDS = {"fetch": "copy", "gradients": "copy", "update": "update"}


class Recorder:
    """Bars of what happens between `begin` and `end`, from any thread."""

    def __init__(self) -> None:
        self.bars: list[list] = []
        self.zero: float | None = None
        self.lock = threading.Lock()

    def note(self, lane: str, label: str, kind: str, begun: float) -> None:
        ended = time.perf_counter()
        with self.lock:
            if self.zero is not None:
                at = (round(1e9 * (begun - self.zero)), round(1e9 * (ended - self.zero)))
                self.bars.append([lane, max(0, at[0]), at[1], label, kind])

    def of(self, run: Callable[[], float]) -> list[list]:
        run()
        self.bars, self.zero = [], time.perf_counter()
        run()
        with self.lock:
            self.zero = None
        return self.bars

    def sleeping(self, sleep: Callable[[float], None]) -> Callable[[float], None]:
        def slept(seconds: float) -> None:
            begun = time.perf_counter()
            sleep(seconds)
            thread = threading.current_thread().name.split("_")[0]
            self.note(LANES.get(thread, "compute"), thread, KINDS.get(thread, "compute"), begun)

        return slept

    def calling(self, call: Callable, label: str, kind: str) -> Callable:
        def called(*arguments, **named):
            begun = time.perf_counter()
            work = call(*arguments, **named)
            if arguments[0].numel() == 1:  # the clock's own: both ranks agree on the seconds
                return work
            if work is None:
                self.note("link", label, kind, begun)
            else:
                work.get_future().add_done_callback(lambda _: self.note("link", label, kind, begun))
            return work

        return called


def rank_main(asked: argparse.Namespace) -> None:
    import real_runs
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    where = f"tcp://{os.environ['MASTER']}:29535"
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=2, timeout=timedelta(seconds=300))
    alone = real_runs.alone(tuple(dict.fromkeys(what for wanted in both.NEEDS.values() for what in wanted)))
    lines = {name: both.Line(points) for name, points in alone.items()}
    recorder, found = Recorder(), {}

    class Plain(torch.nn.parallel.DistributedDataParallel):
        """Its own all-reduce is not seen from Python, so without another hook it gets torch's equal one."""

        hooked = False

        def register_comm_hook(self, state, hook) -> None:
            self.hooked = True
            super().register_comm_hook(state, hook)

        def forward(self, *inputs):
            if not self.hooked:
                self.register_comm_hook(None, allreduce_hook)
            return super().forward(*inputs)

    torch.nn.parallel.DistributedDataParallel = Plain
    for name, kind in (
        ("all_reduce", "reduce"), ("all_to_all_single", "all_to_all"), ("all_gather_single", "gather"),
        ("all_gather_into_tensor", "gather"), ("reduce_scatter_single", "exchange"),
        ("reduce_scatter_tensor", "exchange"),
    ):  # fmt: skip
        if hasattr(dist, name):
            setattr(dist, name, recorder.calling(getattr(dist, name), name.replace("_", " "), kind))
    time.sleep = recorder.sleeping(time.sleep)

    def paired(rounds: int, without: Callable[[], float], after: Callable[[], float]) -> dict:
        return {"without": recorder.of(without), "with": recorder.of(after)}

    real_runs.paired = paired
    plain = real_runs.statistics.median
    for name, (_, arguments) in SHOWN.items():
        more = (both.order_of(lines, *arguments),) if name == "lina" else ()
        if name == "offload":
            # Its layers' own times come from the resident run, which here is a list of bars: two steps long.
            real_runs.statistics.median = lambda bars: max(bar[2] for bar in bars) / 2e9
        found[name] = getattr(real_runs, name)(1, *more, *arguments)
        real_runs.statistics.median = plain
        dist.barrier()
    if rank == 0:
        asked.answers.write_text(json.dumps({"alone": alone, "runs": found}))
    dist.destroy_process_group()


def predicted(name: str, lines: dict[str, both.Line], arguments: tuple, run: dict) -> list[list[Bar]]:
    """The timelines without and with the technique that the prediction is made of."""
    if name == "offload":
        times = LayerTimes(**run["times"])
        resident, windowed = (timeline(times, run["layers"], w) for w in (run["layers"], arguments[0]))
        two = round(2e9 * resident.step_s)
        return [
            [bar for bar in drawn(resident.tasks, resident.played) if bar.end_ns <= two],
            drawn(windowed.tasks, windowed.played),
        ]
    if name == "local":
        compute, size, steps = arguments
        compute += lines["sleep"].latency
        reduce = round(1e9 * (lines["all_reduce"].latency + lines["all_reduce"].per_byte * size * both.MIB))
        every, seldom, at = [], [], 0
        for step in range(steps):
            end = at + both.ns(compute)
            every += [Bar("compute", at, end, "compute", "compute"), Bar("link", end, end + reduce, "", "reduce")]
            first, at = step * both.ns(compute), end + reduce
            seldom.append(Bar("compute", first, first + both.ns(compute), "compute", "compute"))
        whole = steps * both.ns(compute)
        return [every, [*seldom, Bar("link", whole, whole + reduce, "all-reduce", "reduce")]]
    played: list[list[Bar]] = []
    keep = both.play

    def kept(tasks, lanes) -> Timeline:
        answer = keep(tasks, lanes)
        played.append(drawn(tasks, answer))
        return answer

    both.play = kept
    try:
        getattr(both, f"predict_{name}")(lines, *arguments)
    finally:
        both.play = keep
    return played


def drawn(tasks: list[Task] | tuple[Task, ...], played: Timeline) -> list[Bar]:
    kinds = {"exchange": "gather", "norms": "reduce", "chunks": "reduce"}
    found = []
    for number, task in enumerate(tasks):
        lane = "link" if task.lane == both.LINK else task.lane
        kind = task.role or ("compute" if lane == "compute" else "update" if "update" in lane else "copy")
        at = played.start_ns[number], played.end_ns[number]
        found.append(Bar(lane, *at, task.name, kinds.get(task.name, kinds.get(kind, kind))))
    return [bar for bar in found if bar.end_ns > bar.start_ns]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=Path(__file__).parents[2] / "docs" / "techniques")
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--answers", type=Path)
    asked = parser.parse_args()
    if "RANK" in os.environ:
        rank_main(asked)
        return
    if lacks := reason():
        print(f"skipped: {lacks}")
        return
    with tempfile.TemporaryDirectory() as folder, slow_link(asked.rate) as link:
        answers = Path(folder) / "answers.json"
        link.run([sys.executable, __file__, "--answers", str(answers)], timeout_s=600)
        told = json.loads(answers.read_text())
    lines = {name: both.Line(points) for name, points in told["alone"].items()}
    for name, (page, arguments) in SHOWN.items():
        run = told["runs"][name]
        parts = {}
        for word, ours in zip(("without", "with"), predicted(name, lines, arguments, run), strict=True):
            parts[f"predicted, {word}"] = sorted(ours, key=lambda bar: bar.lane)
            parts[f"run, {word}"] = sorted((Bar(*bar) for bar in run[word]), key=lambda bar: bar.lane)
        path = asked.folder / f"{page}_measured.svg"
        path.write_text(lanes_svg(parts))
        print(path)


if __name__ == "__main__":
    main()
