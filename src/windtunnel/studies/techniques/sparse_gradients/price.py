"""Threshold and sparse gradients: what is sent, what choosing costs, and where it breaks even.

    coarse (c > 1)   all-reduce of rho b bytes, + all-reduce of b 4 / (c w) bytes of norms      w: bytes per element
    single (c = 1)   each rank has its own indices: all-gather of N rho b (1 + 4 / w) bytes
    choosing         six times the gradient's bytes through device memory, on the compute stream

Mechanism and sources: docs/techniques/sparse_gradients.md. Convergence is not priced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from windtunnel.errors import LayoutError
from windtunnel.physics.cost.price import nanoseconds
from windtunnel.physics.model.operations import Transfer
from windtunnel.studies.techniques import constants
from windtunnel.studies.techniques.flat import FlatStep, Task, chained
from windtunnel.studies.techniques.flat.lower import collective_task
from windtunnel.studies.techniques.flat.task import COMPUTE
from windtunnel.studies.techniques.parameters import SparsePlan
from windtunnel.studies.training.pricing import Pricer

NORM_BYTES = INDEX_BYTES = 4.0


def rewrite(step: FlatStep, parameters: SparsePlan) -> FlatStep:
    """Every gradient reduction as: choose, norms, packed chunks. Raises LayoutError where gradients are not whole."""
    if step.layout.zero_stage > 1:
        raise LayoutError(
            f"sparse_gradients with zero_stage {step.layout.plan.zero_stage}: every pass reduces its own shards",
            "use zero_stage 0 or 1",
        )
    return step.rewritten(lambda tasks: sparse(tasks, step.pricer, parameters))


def sparse(tasks: Sequence[Task], pricer: Pricer, parameters: SparsePlan) -> tuple[Task, ...]:
    """The tasks with sparse reductions in place of whole ones.

    A reduction of what another has reduced, as where it is done by group, has the chunks that were chosen there.
    """
    width = pricer.layout.gradient_bytes

    def parts(task: Task) -> tuple[Task, ...]:
        if task.role != "reduce" or parameters.ratio >= 1.0:
            return (task,)
        group = "edp" if "expert" in task.name else "dp"
        elements = task.bytes_total / width
        divided = round((task.work_ns - task.latency_ns) * parameters.ratio)
        packed = replace(
            task, name=f"{task.name}, chosen chunks", work_ns=task.latency_ns + divided,
            bytes_total=task.bytes_total * parameters.ratio,
        )  # fmt: skip
        if any(tasks[number].role == "reduce" for number in task.after):
            return (packed,)
        # Its place among the backward's kernels: after what made the gradients, before what is launched next.
        choosing = nanoseconds(pricer.copied(task.bytes_total).scaled(constants.SELECT_PASSES / 2.0).seconds)
        choose = Task("choose chunks", COMPUTE, choosing, (), "choose", phase="backward")
        if parameters.chunk > 1:
            norms = Transfer("all_reduce", group, NORM_BYTES * elements / parameters.chunk)
            return choose, collective_task(pricer, "chunk norms", norms, (), "reduce"), packed
        ranks = pricer.layout.group(group).size
        gathered = Transfer("all_gather", group, ranks * parameters.ratio * elements * (width + INDEX_BYTES))
        return choose, collective_task(pricer, "chosen elements", gathered, (), "reduce")

    return chained(tasks, parts)


def break_even_ratio(step: FlatStep, parameters: SparsePlan) -> float:
    """The ratio up to which the exchange itself, with choosing, is shorter than a whole one; 0 if none is.

    T(rho) = choose + norms + latency + rho (T_whole - latency), straight in rho; single elements likewise.
    """
    reduces = [task for task in step.one_batch if task.role == "reduce"]
    whole = sum(task.work_ns for task in reduces)
    if not whole:
        return 0.0

    def total(ratio: float) -> float:
        roles = {"choose", "reduce"}
        changed = sparse(step.one_batch, step.pricer, replace(parameters, ratio=ratio))
        return float(sum(task.work_ns for task in changed if task.role in roles))

    low, high = total(1e-9), total(1.0 - 1e-9)
    if low >= whole:
        return 0.0
    return min(1.0, (whole - low) / (high - low)) if high > low else 1.0
