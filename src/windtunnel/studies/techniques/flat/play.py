"""Plays a list of tasks: lanes that run one task at a time, and links that concurrent transfers share.

    serial lane   at most `servers` at once; of those that are ready the most urgent, then the earliest in the list.
                  What has begun is not taken off (NCCL's and gloo's collectives cannot be pre-empted), so its size
                  bounds how long something urgent waits
    shared lane   all that are ready at once, each at 1 / (how many there are): fair sharing of one link

Compute beside a transfer takes 1 + `compute_slowdown` times as long. Integer nanoseconds; a task's end is rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from windtunnel.studies.techniques.flat.task import COMPUTE, SCALE_OUT, SCALE_UP, Task


@dataclass(frozen=True, slots=True)
class Lane:
    """How one lane serves its tasks."""

    servers: int = 1
    shared: bool = False


SHARED = Lane(shared=True)


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each task began and ended."""

    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]

    @property
    def makespan_ns(self) -> int:
        """How long all of it takes."""
        return max(self.end_ns, default=0)


def play(tasks: Sequence[Task], lanes: Mapping[str, Lane], compute_slowdown: float = 0.0) -> Timeline:
    """The timeline of the tasks; a lane that `lanes` does not name is serial."""
    n = len(tasks)
    waits = [len(set(task.after)) for task in tasks]
    followers: list[list[int]] = [[] for _ in tasks]
    for number, task in enumerate(tasks):
        for earlier in set(task.after):
            followers[earlier].append(number)
    start, end = [0] * n, [0] * n
    left: dict[int, float] = {}  # running -> nanoseconds of work still to do, alone
    running: dict[str, set[int]] = {}
    ready: dict[str, list[tuple[int, int]]] = {}
    serial = Lane()

    def begin(lane: str, now: int) -> None:
        """Start what may start on a lane."""
        how, queue, busy = lanes.get(lane, serial), ready.get(lane, []), running.setdefault(lane, set())
        while queue:
            if not how.shared and len(busy) >= how.servers:
                return
            _, number = heappop(queue)
            busy.add(number)
            left[number] = float(tasks[number].work_ns)
            start[number] = now

    def release(number: int) -> str:
        task = tasks[number]
        heappush(ready.setdefault(task.lane, []), (task.urgency, number))
        return task.lane

    now, finished = 0, 0
    for lane in {release(number) for number in range(n) if not waits[number]}:
        begin(lane, now)
    while left:
        transfers = any(running.get(lane) for lane in (SCALE_UP, SCALE_OUT))
        rates: dict[str, float] = {}
        for lane, busy in running.items():
            if busy:
                shared = lanes.get(lane, serial).shared
                rates[lane] = 1.0 / len(busy) if shared else 1.0
        if transfers and COMPUTE in rates:
            rates[COMPUTE] /= 1.0 + compute_slowdown
        step = min(left[number] / rates[tasks[number].lane] for number in left)
        then = now + max(0, -int(-step // 1))
        over = []
        for number in left:
            left[number] -= (then - now) * rates[tasks[number].lane]
            if left[number] <= 0.5:
                over.append(number)
        now = then
        touched: set[str] = set()
        for number in over:
            task = tasks[number]
            del left[number]
            running[task.lane].discard(number)
            end[number] = now
            finished += 1
            touched.add(task.lane)
            for follower in followers[number]:
                waits[follower] -= 1
                if not waits[follower]:
                    touched.add(release(follower))
        for lane in sorted(touched):
            begin(lane, now)
    assert finished == n, f"{n - finished} of {n} tasks never became ready"
    return Timeline(tuple(start), tuple(end))
