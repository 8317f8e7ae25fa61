"""Lina (ATC 2023, arXiv 2210.17223): all-to-all before all-reduce in micro-operations, pipelined with packed experts.

The rewrite is of one rank's tasks (`flat`); packing changes the plan and lowers it again. By Lina's own rule it
doubles p until the experts' compute on one micro-operation takes as long as its all-to-all. docs/techniques has the
rest.

Placement for inference: the path of a token over the last layers tells about the next expert; n_e = N P(e) devices for
expert e, the small ones packed first fit decreasing, at most `most` on a device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from windtunnel.errors import LayoutError, SpecError
from windtunnel.studies.techniques import constants
from windtunnel.studies.techniques.flat import FlatStep, Lane, Task, cut_tasks
from windtunnel.studies.techniques.flat.task import SCALE_OUT, SCALE_UP
from windtunnel.studies.techniques.parameters import LinaPlan

PIECES = (1, 2, 4, 8)  # of an all-to-all and its experts
MOST_MICRO_OPS = 4096  # of one collective
ONE_BY_ONE = {lane: Lane() for lane in (SCALE_UP, SCALE_OUT)}  # the most urgent first


def rewrite(step: FlatStep, parameters: LinaPlan) -> tuple[FlatStep, int]:
    """The step with priorities and pieces, and in how many pieces experts run: those of the shortest step."""
    exchanges = any(task.role == "all_to_all" for task in step.one_batch)
    counts = PIECES if parameters.pipeline and parameters.micro_op and exchanges else (1,)
    steps = {
        count: step.rewritten(partial(in_pieces, parameters=parameters, experts=count), lanes_of(parameters))
        for count in counts
    }
    best = min(counts, key=lambda count: steps[count].seconds())
    return steps[best], best


def checked(step: FlatStep, parameters: LinaPlan) -> None:
    """Raise LayoutError where there is nothing to put first, SpecError on a number that cannot be."""
    if not any(task.role == "all_to_all" for task in step.one_batch):
        raise LayoutError(
            "prioritised_all_to_all (lina) without an all-to-all: no experts, or ep 1",
            "use a model with experts and --ep 2 or more",
        )
    if parameters.packing is not None and step.layout.plan.ep % parameters.packing:
        raise SpecError("packing", parameters.packing, f"give a divisor of ep {step.layout.plan.ep}, or auto")


def lanes_of(parameters: LinaPlan) -> dict[str, Lane]:
    """How links serve their transfers."""
    return dict(ONE_BY_ONE) if parameters.priority else {}


def in_pieces(tasks: Sequence[Task], parameters: LinaPlan, experts: int) -> tuple[Task, ...]:
    """Gradients and gathered parameters in micro-operations; all-to-alls and what is between in `experts` pieces."""

    def pieces(task: Task) -> int:
        if task.role in ("reduce", "gather") and parameters.micro_op:
            count = max(1, math.ceil(task.bytes_total / parameters.micro_op))
            if count > MOST_MICRO_OPS:
                least = math.ceil(task.bytes_total / MOST_MICRO_OPS)
                raise SpecError(
                    "micro_op", parameters.micro_op, f"{count:,} pieces of {task.name}: give {least:,} or more"
                )
            return count
        return experts if task.role in ("all_to_all", "expert") else 1

    return cut_tasks(tasks, pieces, round(constants.CUT_LAUNCH_S * 1e9))


def packing_by_rule(steps: Mapping[int, FlatStep]) -> int:
    """The packing that Lina's rule stops at, of steps at each packing."""
    return choose_packing(lambda p: work(steps[p], "expert"), lambda p: work(steps[p], "all_to_all"), max(steps))


def work(step: FlatStep, role: str) -> float:
    """Seconds of all tasks of a role in a forward pass."""
    return sum(task.work_ns for task in step.one_batch if task.role == role and task.phase == "forward") / 1e9


def figures(step: FlatStep) -> dict[str, float]:
    """What is told of a step's exchange of tokens: of one micro-batch, the last.

    `all_to_all_s`: time in flight of all its pieces, summed; `backward`: of the backward pass alone; `slowdown`: that
    over the time alone; `pipelining`: share of the time from a layer's first dispatch to its
    last combine in which its experts compute.
    """
    played, tasks = step.play(), step.one_batch
    total = backward = alone = 0
    windows: dict[tuple[int, str], list[int]] = {}
    busy: dict[tuple[int, str], int] = {}
    for number, task in enumerate(tasks):
        took = played.end_ns[number] - played.start_ns[number]
        if task.role == "all_to_all":
            total += took
            if task.phase == "backward":
                backward += took
                alone += task.work_ns
    for number, task in enumerate(tasks):
        key = (task.block, task.phase)
        if task.role == "all_to_all":
            windows.setdefault(key, []).extend((played.start_ns[number], played.end_ns[number]))
        if task.role == "expert":
            busy[key] = busy.get(key, 0) + played.end_ns[number] - played.start_ns[number]
    open_ns = sum(max(span) - min(span) for span in windows.values())
    return {
        "all_to_all_s": total / 1e9,
        "all_to_all_backward_s": backward / 1e9,
        "slowdown_backward": backward / alone if alone else 1.0,
        "pipelining": sum(busy.get(key, 0) for key in windows) / open_ns if open_ns else 1.0,
    }


def choose_packing(compute_s: Callable[[int], float], exchange_s: Callable[[int], float], experts: int) -> int:
    """The packing by the rule above; the callables give seconds of one micro-operation at packing p."""
    p = 1
    while p * 2 <= experts and compute_s(p) < exchange_s(p):
        p *= 2
    return p
