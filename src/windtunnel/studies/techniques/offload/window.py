"""A working window of layers on the device, the rest in host memory (STRONGHOLD, SC 2022): timeline and window.

docs/techniques/offload.md has mechanism and formula. The timeline here has the copies too, as tasks on five lanes, and
two steps in a row, so that updates that last into the next step count.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from windtunnel.studies.techniques.flat.play import Lane, Timeline, play
from windtunnel.studies.techniques.flat.task import COMPUTE, Task, Tasks

IN, OUT, HOST, DRIVE, REDUCE = "host to device", "device to host", "host update", "nvme", "reduce"
STEPS = 3  # the first fills the pipeline; the time from the second to the third is a step


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of one layer."""

    forward: float
    backward: float
    fetch: float  # h
    gradients: float  # q
    update: float  # u, on the host
    resident_update: float  # on the device
    drive: float = 0.0  # read and write of a layer's state on a drive, both together
    reduce: float = 0.0  # of its gradients over data-parallel ranks


@dataclass(frozen=True, slots=True)
class WindowTimeline:
    """The timeline of a few steps."""

    tasks: tuple[Task, ...]
    played: Timeline
    step_s: float


def by_formula(times: LayerTimes, layers: int, window: int, ends_s: float = 0.0) -> float:
    """Seconds of a step, copies hidden behind compute where they are shorter than it."""
    w = min(window, layers)
    slowest = max(times.backward, times.fetch, times.gradients, times.update, times.drive)
    return (
        w * (times.forward + times.backward + times.resident_update)
        + (layers - w) * (max(times.forward, times.fetch) + slowest)
        + ends_s
    )


def timeline(
    times: LayerTimes, layers: int, window: int, *, micro_batches: int = 1, before_s: float = 0.0, after_s: float = 0.0,
    end_s: float = 0.0, updaters: int = 1, drive_layers: int = 0,
) -> WindowTimeline:  # fmt: skip
    """Steps with `window` of `layers` layers on the device.

    `before_s`, `after_s`: what runs before the first layer and between the last one's forward and backward pass;
    `end_s`: update of what is always on the device. `updaters`: layers updated at once, each at a share of the host's
    memory bandwidth. `drive_layers`: so many of the first layers have their state on a drive.
    """
    assert 1 <= window <= layers, f"a window of {window} of {layers} layers"
    tasks, away = Tasks(), layers - window
    updated: dict[int, int] = {}
    begins: list[int] = []
    last: tuple[int, ...] = ()

    def add(name: str, lane: str, seconds: float, *after: int, layer: int = -1, phase: str = "") -> int:
        return tasks.add(Task(name, lane, round(seconds * 1e9), tuple(after), block=layer, phase=phase))

    for _ in range(STEPS):
        begins.append(len(tasks.tasks))
        for micro in range(micro_batches):
            done = add("embedding", COMPUTE, before_s, *last, phase="forward")
            forward: list[int] = []
            for i in range(layers):
                wait = [forward[-1] if forward else done]
                if i < away:
                    after = [updated[i]] if i in updated and not micro else []
                    # Asked for before layer i - w runs, when what ran before that has given its buffer back.
                    after += [forward[i - window - 1]] if i > window else [done] if micro else []
                    wait.append(add(f"fetch {i}", IN, times.fetch, *after, layer=i))
                forward.append(add(f"forward {i}", COMPUTE, times.forward, *wait, layer=i, phase="forward"))
            done = add("head", COMPUTE, after_s, forward[-1], phase="backward")
            backward: dict[int, int] = {}
            for i in reversed(range(layers)):
                wait = [backward.get(i + 1, done)]
                if i < away:
                    wait.append(add(f"fetch {i}", IN, times.fetch, backward.get(i + window + 1, done), layer=i))
                backward[i] = add(f"backward {i}", COMPUTE, times.backward, *wait, layer=i, phase="backward")
                if i >= away:
                    continue
                out = add(f"gradients {i}", OUT, times.gradients, backward[i], layer=i)
                if micro < micro_batches - 1:
                    continue
                if times.reduce:
                    out = add(f"reduce {i}", REDUCE, times.reduce, out, layer=i)
                if i < drive_layers:
                    out = add(f"drive {i}", DRIVE, times.drive, out, layer=i)
                updated[i] = add(f"update {i}", HOST, times.update * updaters, out, layer=i, phase="backward")
            last = (backward[0],)
        resident = end_s + window * times.resident_update
        last = (add("update on the device", COMPUTE, resident, *last, phase="end"),)
    played = play(tasks.finish(), {HOST: Lane(servers=updaters)})
    starts = [played.start_ns[begin] for begin in begins]
    return WindowTimeline(tasks.finish(), played, ([b - a for a, b in pairwise(starts)][-1]) / 1e9)
