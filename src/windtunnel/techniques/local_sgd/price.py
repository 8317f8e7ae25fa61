"""Local SGD (DiLoCo-like): gradients are reduced in no step, weights averaged once in K of them.

    step = step without gradient reduction + (all-reduce of the weights) / K

Only time is priced: K against the loss is a matter of the data. The learning rate's decay (two-dimensional: over
rounds and over local steps) costs no time.
"""

from __future__ import annotations

from dataclasses import replace

from windtunnel.errors import LayoutError, SpecError
from windtunnel.model.operations import Transfer
from windtunnel.techniques.flat import FlatStep, Task
from windtunnel.techniques.local_sgd.parameters import LocalPlan
from windtunnel.training.pricing import parameter_bytes


def rewrite(step: FlatStep, asked: LocalPlan) -> FlatStep:
    """The step without its reductions. Raises LayoutError where replicas are not whole."""
    if asked.local_steps < 1:
        raise SpecError("local_steps", asked.local_steps, "give 1 or more")
    if step.layout.plan.zero_stage:
        raise LayoutError(
            f"local_sgd with zero_stage {step.layout.plan.zero_stage}: each rank trains a replica of its own",
            "use zero_stage 0",
        )
    return step.rewritten(without_reductions)


def without_reductions(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """The tasks less those that reduce gradients; what waited for them waits for what they waited for."""
    made: list[Task] = []
    new: dict[int, tuple[int, ...]] = {}
    for number, task in enumerate(tasks):
        after = tuple(sorted({other for one in task.after for other in new[one]}))
        if task.role == "reduce":
            new[number] = after
            continue
        new[number] = (len(made),)
        made.append(replace(task, after=after))
    return tuple(made)


def averaging_s(step: FlatStep) -> float:
    """Seconds of averaging all weights of a rank over its replicas."""
    pricer, width = step.pricer, parameter_bytes(step.layout.plan)
    total = 0.0
    for group, count in (
        ("dp", sum(block.dense_parameters for block in step.blocks)),
        ("edp", sum(block.expert_parameters for block in step.blocks)),
    ):
        if count and step.layout.group(group).size > 1:
            total += pricer.transfer(Transfer("all_reduce", group, count * width))[0].seconds
    return total


def seconds(step: FlatStep, asked: LocalPlan) -> float:
    """A step with the technique, its share of averaging included."""
    return rewrite(step, asked).seconds() + averaging_s(step) / asked.local_steps
