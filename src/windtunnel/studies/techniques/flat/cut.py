"""Cutting tasks into pieces: micro-operations of collectives, and compute that is tied to them.

A task of b bytes and time T = latency + b / B becomes k tasks of latency + b / (k B), so cutting costs (k - 1)
latencies. Where a task and what it waits for are cut into as many pieces, piece i waits for piece i alone: that is the
pipeline. Otherwise every piece waits for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from windtunnel.studies.techniques.flat.task import COMPUTE, Task


def chained(tasks: Sequence[Task], parts: Callable[[Task], Sequence[Task]]) -> tuple[Task, ...]:
    """Each task as a chain of others; where there are none, what waited for it waits for what it waited for."""
    new_tasks: list[Task] = []
    ends: list[tuple[int, ...]] = []  # of each old task
    for task in tasks:
        after = tuple(sorted({other for number in task.after for other in ends[number]}))
        for part in parts(task):
            new_tasks.append(replace(part, after=after))
            after = (len(new_tasks) - 1,)
        ends.append(after)
    return tuple(new_tasks)


def cut_tasks(tasks: Sequence[Task], pieces: Callable[[Task], int], launch_ns: int = 0) -> tuple[Task, ...]:
    """The same tasks, each in as many pieces as `pieces` says (1: whole); pieces of compute take `launch_ns` more."""
    new_tasks: list[Task] = []
    where: list[tuple[int, ...]] = []  # old index -> its pieces
    for task in tasks:
        count = max(1, pieces(task))
        indices = []
        for number in range(count):
            after: list[int] = []
            for earlier in task.after:
                other = where[earlier]
                after += [other[number]] if len(other) == count else other
            divided = max(0, task.work_ns - task.latency_ns)
            share = (divided * (number + 1)) // count - (divided * number) // count
            share += launch_ns if task.lane == COMPUTE else 0
            indices.append(len(new_tasks))
            new_tasks.append(
                replace(
                    task,
                    name=task.name if count == 1 else f"{task.name} {number + 1}/{count}",
                    work_ns=task.latency_ns + share if count > 1 else task.work_ns,
                    bytes_total=task.bytes_total / count,
                    after=tuple(after),
                )
            )
        where.append(tuple(indices))
    return tuple(new_tasks)
