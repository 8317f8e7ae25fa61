"""One training step on GPUs of several types, where every replica lies on one type.

Replicas run the same program on as many tokens and meet in collectives over gradients and parameters. Those of the
slower type come last to each, and the others wait for them: so the step is what it is on a cluster where all GPUs are
of the slower type, on the slowest network of all. That is exact where the same type is last at every meeting; where one
type is last at some and another at others it is too short. Memory is each type's own.

A pipeline whose stages lie on different types is not predicted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from windtunnel.errors import LayoutError
from windtunnel.hardware import Cluster
from windtunnel.hardware.mixed import MixedCluster
from windtunnel.model import Model
from windtunnel.result import Result
from windtunnel.training.layout import PEAK_DTYPE, Layout, resolve
from windtunnel.training.plan import Plan

Predict = Callable[[Model, Cluster, Plan], Result]


def of_all_types(model: Model, cluster: MixedCluster, plan: Plan, predict: Predict) -> Result:
    """By `predict` of each type. Raises LayoutError where a replica, or its experts, would lie on two types."""
    alike = cluster.alike()
    check_lies_on_one(resolve(model, alike[0], plan), cluster)
    results = [predict(model, one, plan) for one in alike]
    last = max(results, key=lambda one: one.step_time_ns)
    lacking = [one for one in results if one.status != "ok"]
    shown = max(lacking, key=lambda one: one.peak_memory.device_bytes) if lacking else last
    dtype = PEAK_DTYPE.get(plan.precision, plan.precision)
    peak = sum(part.n_gpus * part.gpu.peak_flops(dtype) for part in cluster.parts)
    share = cluster.n_gpus * alike[results.index(shown)].gpu.peak_flops(dtype) / peak
    times = ", ".join(
        f"{part.gpu.name} {one.step_time_s:.4g} s" for part, one in zip(cluster.parts, results, strict=True)
    )
    return replace(
        shown,
        mfu=shown.mfu * share,
        hfu=shown.hfu * share,
        mfu_convention=f"{shown.mfu_convention}, of all types together",
        spec={**shown.spec, "mixed": [part.told() for part in cluster.parts]},
        warnings=(*shown.warnings, f"mixed GPU types ({times} each alone): the step is that of the slowest"),
        reproduce=shown.reproduce.replace(_word(shown.reproduce), cluster.name),
    )


def check_lies_on_one(layout: Layout, cluster: MixedCluster) -> None:
    """Raise LayoutError where a replica or a group of experts would lie on two types."""
    plan = layout.plan
    for what, block in (
        ("a replica", plan.tp * plan.cp * plan.pp),
        ("a group of experts", plan.ep * layout.etp * plan.pp),
    ):
        for part in cluster.parts:
            if part.n_gpus % block:
                raise LayoutError(
                    f"{what} of {block} GPUs does not divide the {part.n_gpus} {part.gpu.name}, so one would lie on two"
                    " types",
                    "use degrees that divide the GPUs of each type",
                )


def _word(reproduce: str) -> str:
    words = reproduce.split()
    return words[words.index("--cluster") + 1]
