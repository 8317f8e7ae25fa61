"""Cuts of a captured script at the terminal. Reads the plain data of `planning/captured` and computes no physics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windtunnel.report.printing import columns

if TYPE_CHECKING:
    from rich.console import Console

GIB = 2**30


def print_cuts(document: Mapping[str, Any], console: Console) -> None:
    """`document`: as `plan_captured` gives it."""
    fits = document["status"] == "ok"
    if not fits:
        console.print(f"Nothing fits: none of {document['space']['legal']} numbers of stages. The nearest:")
    names = ("", "stages", "replicas", "micro-batches", "units of each stage", "step", "p5 to p95", "memory")
    table = columns(names, ("", "units of each stage"), overflow="fold")
    plans = document["plans"] if fits else document["nearest"]
    for number, one in enumerate(plans, 1):
        plan = one["plan"]
        table.add_row(
            str(number), str(plan["pp"]), str(plan["dp"]), str(plan["micro_batches"]),
            ",".join(map(str, plan["layers_per_stage"])), f"{one['step_time_s']:#.4g} s",
            f"{one['p5_s']:#.4g} to {one['p95_s']:#.4g}", f"{one['peak_memory_bytes'] / GIB:.2f} GiB",
        )  # fmt: skip
    console.print(table)
    console.print("\nStages of the first:")
    for number, stage in enumerate(plans[0]["stages"]):
        console.print(
            f"  {number}: {stage['first']} to {stage['last']}, {stage['units']} units,"
            f" {stage['micro_batch_s'] * 1e3:.4g} ms a micro-batch, {stage['memory_bytes'] / GIB:.2f} GiB",
            soft_wrap=True,
        )
    space = document["space"]
    console.print(
        f"{space['legal']} numbers of stages and replicas, each cut by dynamic programming and walked through."
        f" {document['seconds']:.1f} s.",
        soft_wrap=True,
    )
    console.print("Assumed:")
    for text in document["assumed"]:
        console.print(f"  {text}", soft_wrap=True)
    console.print(f"\n{plans[0]['reproduce']}", soft_wrap=True, markup=False)
