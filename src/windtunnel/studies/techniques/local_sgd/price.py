"""Local SGD (DiLoCo-like): gradients are reduced in no step, weights averaged once in K of them.

    step = step without gradient reduction + (all-reduce of the weights) / K

Only time is priced: K against the loss is a matter of the data. The learning rate's decay (two-dimensional: over
rounds and over local steps) costs no time.
"""

from __future__ import annotations

from windtunnel.errors import LayoutError
from windtunnel.physics.model.operations import Transfer
from windtunnel.studies.techniques.flat import FlatStep, chained
from windtunnel.studies.training.pricing import parameter_bytes


def rewrite(step: FlatStep) -> FlatStep:
    """The step without its reductions. Raises LayoutError where replicas are not whole."""
    if step.layout.plan.zero_stage:
        raise LayoutError(
            f"local_sgd with zero_stage {step.layout.plan.zero_stage}: each rank trains a replica of its own",
            "use zero_stage 0",
        )
    return step.rewritten(lambda tasks: chained(tasks, lambda task: () if task.role == "reduce" else (task,)))


def averaging_s(step: FlatStep) -> float:
    """Seconds of averaging all weights of a rank over its replicas."""
    pricer, width = step.pricer, parameter_bytes(step.layout.plan)
    total = 0.0
    for group, count in (
        ("dp", sum(block.dense_parameters for block in step.blocks)),
        ("edp", sum(block.expert_parameters for block in step.blocks)),
    ):
        if count and step.layout.group(group).size > 1:
            total += pricer.links.transfer(Transfer("all_reduce", group, count * width))[0].seconds
    return total
