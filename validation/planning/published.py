"""Published plans beside our best: how much faster the best plan for the same job is, by our own prediction.

    python validation/planning/published.py training.csv [--rows 40] [--within 20] [--seed 0] [--switches] [--leave 5]

Level A rows, drawn at random, one of each job. Structure (degrees, micro-batch, schedule) and savings (ZeRO,
recomputation) are searched; framework, release, formats and switches stay as published, also where a row leaves a
switch at the framework's habit (`--switches`: those are searched too). `--leave 5`: our best leaves 5 % of the memory
free, the published plan need not. Prints each row with what it could gain and what the best plan does otherwise, and
the share of rows within 10 %. `--only`: rows by name.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import replace
from typing import Any

from windtunnel.errors import UserError
from windtunnel.evidence.accuracy.cases import Case, case_of
from windtunnel.evidence.accuracy.table import read_table
from windtunnel.physics.hardware import Cluster
from windtunnel.studies.planning.oracle import laid_out
from windtunnel.studies.planning.plan import plan as best_plan
from windtunnel.studies.planning.space.features import HABIT
from windtunnel.studies.planning.space.plan_space import SAVINGS, STRUCTURE, Space, switches
from windtunnel.studies.training import predict

CLOSE = 0.10
SEARCHED = {*STRUCTURE, *SAVINGS, "dp", "layers_per_stage", "sequence_parallel"} - {"compile", "offload_optimizer"}


def jobs(path: str) -> list[Case]:
    """The fastest published plan of each job: same source, model, cluster, batch, sequence and precision.

    A source that publishes several plans of one job has the others to show how much slower they are.
    """
    found: dict[tuple[object, ...], Case] = {}
    for row in read_table(path):
        if row.spec_level != "A" or row.crashed or row.measured_s is None:
            continue
        case = case_of(row)
        if isinstance(case, Case) and len(case.plans) == 1:
            key = (row.source, row.model, row.gpu, row.n_gpus, row.global_batch, row.seq_len, row.precision)
            other = found.get(key)
            if other is None or case.row.measured_s < other.row.measured_s:
                found[key] = case
    return list(found.values())


def _habits(case: Case, given: dict[str, Any]) -> dict[str, Any]:
    """Switches that do something in the published plan, as its run had them."""
    layout = laid_out(case.model, case.cluster, case.plan)
    saving = {"zero_stage": layout.plan.zero_stage, "recompute": layout.plan.recompute}
    open_values = switches(Space(case.model, case.cluster, given), layout, saving)
    return {name: getattr(layout.plan, name) for name, values in open_values.items() if values != HABIT}


def _less_memory(cluster: Cluster, share: float) -> Cluster:
    usable = int(cluster.gpu.usable_memory_bytes * (1.0 - share))
    return replace(cluster, gpu=replace(cluster.gpu, usable_memory_bytes=usable))


def _spelled(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--within", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--switches", action="store_true")
    parser.add_argument("--only", nargs="*", default=[], help="ids of rows")
    parser.add_argument("--leave", type=float, default=0.0)
    arguments = parser.parse_args()
    cases = jobs(arguments.table)
    drawn = random.Random(arguments.seed).sample(cases, min(arguments.rows, len(cases)))
    if arguments.only:
        drawn = [case for case in cases if case.row.id in arguments.only]
    close = seen = 0
    for case in drawn:
        asked = case.plan.stated()
        fixed = {name: value for name, value in asked.items() if name not in SEARCHED and value is not None}
        try:
            if not arguments.switches:
                fixed = _habits(case, fixed) | fixed
            published = predict(case.model, case.cluster, case.plan)
            room = _less_memory(case.cluster, arguments.leave / 100.0)
            answer = best_plan(case.model, room, fixed, top=1, within_s=arguments.within, choices_within_s=0.0)
        except UserError as error:
            print(f"{case.row.id}: skipped: {error}", flush=True)
            continue
        seen += 1
        fits = published.status == "ok"
        best = min([one.step_time_s for one in answer.plans] + ([published.step_time_s] if fits else []), default=None)
        gain = 0.0 if best is None else published.step_time_s / best - 1.0
        close += gain <= CLOSE
        ours = answer.plans[0].plan if answer.plans else {}
        filled = answer.plans[0].peak_memory_bytes / answer.plans[0].memory_capacity_bytes if answer.plans else 0.0
        said = {name: ours.get(name) for name in sorted(SEARCHED) if ours.get(name) != _spelled(asked.get(name))}
        print(
            f"{case.row.id}: {case.row.model} on {case.row.n_gpus} {case.row.gpu}: {gain:+.1%}"
            f"{'' if fits else ' (the published plan does not fit by our memory)'}, gap {answer.gap:.1%}, predicted"
            f" {published.step_time_s / (case.row.measured_s or math.nan):.2f} of measured;"
            f" best, with {filled:.0%} of the memory, has {said};"
            f" published { ({name: asked.get(name) for name in said}) }",
            flush=True,
        )
    print(f"{close} of {seen} rows within {CLOSE:.0%} of our best ({close / max(1, seen):.0%}), of {len(cases)} jobs")


if __name__ == "__main__":
    main()
