"""Published deployments with prompts and answers apart: does `serve plan` find what is best, together or apart?

    python validation/serving/apart_or_together.py TABLE... [--count 20] [--skip 0] [--runs 400] [--others 40]

Of rows that state their workers (`silicon_tune.csv`, `serving_2026_tune.csv`) as many configurations as asked for, no
more than three of one GPU and engine. Each is run first as published, in a closed loop of its concurrency; nine tenths
of that throughput is the rate of the question, and a fifth more than its p99 latencies there the limits. So the
published deployment holds them, by our own simulation. Then `serve plan` is asked, on as many GPUs. Printed: the GPUs
published, planned, and of the best alternative that holds: every layout together, doubled and bisected without its
bounds, and `--others` plans with fewer GPUs drawn at random from all, together or apart, bounds left out. A choice is
worse by the GPUs that it takes more than the best.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from windtunnel.errors import UserError
from windtunnel.evidence.accuracy.serving.models import model_named
from windtunnel.evidence.accuracy.serving.rows import ServingRow, deployment_of, engine_named, gpu_of, read_rows
from windtunnel.studies.serving.build import candidate
from windtunnel.studies.serving.disaggregated.pools import pools_of, run_pools
from windtunnel.studies.serving.placement.fewest import Plan, Shape, grown, plans_of
from windtunnel.studies.serving.placement.plan import PlanQuestion, ServingPlans, deployments_of, name_of, plan_for, ran
from windtunnel.studies.serving.workload.lengths import arrivals, lengths
from windtunnel.studies.serving.workload.requests import Workload

ALIKE, MOST_IN_FLIGHT, WAVES = 4, 256, 4
SHARE_OF_RATE, SLACK, ATTAIN = 0.9, 1.2, 0.99
SIZES = ("num_workers", "tp", "pp", "attn_dp", "moe_ep")


def chosen(tables: list[Path], count: int) -> list[ServingRow]:
    """Rows that say their workers, one of each configuration, few of each GPU and engine."""
    rows = read_rows(tables)
    told = [row for row in rows if row.disaggregated and row.text("spec") != "mtp" and _workers(row)]
    told = [row for row in told if 4 <= row.whole_number("concurrency", 0) <= MOST_IN_FLIGHT]
    kinds: Counter[tuple[str, ...]] = Counter()
    seen: set[tuple[str, ...]] = set()
    found = []
    for row in told:
        kind = (row.text("model_family"), row.text("gpu"), engine_named(row).partition("-")[0])
        layout = tuple(row.text(f"{side}_{size}") for side in ("prefill", "decode") for size in SIZES)
        if kinds[kind] < ALIKE and (*kind, *layout) not in seen:
            kinds[kind] += 1
            seen.add((*kind, *layout))
            found.append(row)
    return found[:count]


def _workers(row: ServingRow) -> bool:
    known = row.text("spec_level") in ("", "A")
    return known and all(row.number(f"{side}_num_workers") for side in ("prefill", "decode"))


def published(row: ServingRow) -> tuple[PlanQuestion, int]:
    """The question that a row's deployment answers, and its GPUs. Raises UserError."""
    model = model_named(row.text("model"), row.text("model_family"))
    sides = [
        (row.whole_number(f"{side}_num_workers", 1), deployment_of(row, f"{side}_")) for side in ("prefill", "decode")
    ]
    gpus = sum(count * one.gpus for count, one in sides)
    cluster = gpu_of(row.text("gpu"), gpus)
    pools = pools_of(model, cluster, sides[0], sides[1])
    concurrency, isl, osl = (row.whole_number(name, 1) for name in ("concurrency", "isl", "osl"))
    n = max(200, WAVES * concurrency)
    prompts, outputs = lengths(n, isl, osl, min(row.number("length_ratio") or 1.0, 1.0), 0)
    full = run_pools(pools, cluster, Workload(prompts, outputs, None, concurrency), {}, None)
    if not full.feasible:
        raise UserError(full.reason)
    load = Workload(prompts, outputs, arrivals(n, SHARE_OF_RATE * full.requests_per_s, 1.0, 0))
    held = run_pools(pools, cluster, load, {}, None)
    assert held.ttft is not None
    assert held.tpot is not None
    limits = {"ttft_s": SLACK * held.ttft.p99, "tpot_s": SLACK * held.tpot.p99}
    base = replace(deployment_of(row, "decode_"), tp=1, pp=1, attn_dp=1, moe_tp=None, moe_ep=None)
    return PlanQuestion(model, cluster, base, load, limits, ATTAIN, None, 400), gpus


def best_of_others(asked: PlanQuestion, most: int, others: int) -> tuple[int, str, int]:
    """(GPUs of the best that holds, its words, plans run) among plans with fewer than `most` GPUs."""
    engines = {
        name_of(one): engine for one in deployments_of(asked) if (engine := candidate(asked.model, asked.cluster, one))
    }
    shapes = [Shape(name, engine.gpus, 1, 1, 1) for name, engine in engines.items()]
    best, words, runs = most, "", 0

    def holds(plan: Plan) -> bool:
        nonlocal best, words, runs
        runs += 1
        held = ran(asked, engines, plan).holds
        if held and plan.gpus < best:
            best, words = plan.gpus, plan.words
        return held

    for shape in shapes:
        if shape.gpus < best:
            grown(Plan(shape, 1), best - 1, holds)
    apart = [plan for gpus in range(2, best) for plan in plans_of(shapes, gpus, apart=True) if plan.prefill is not None]
    drawn = random.Random(0).sample(apart, min(others, len(apart)))
    for plan in drawn:
        if plan.gpus < best:
            holds(plan)
    return best, words, runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--skip", type=int, default=0, help="configurations of those that are left out")
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--others", type=int, default=40)
    asked = parser.parse_args()
    worse = []
    for row in chosen(asked.tables, asked.count)[asked.skip :]:
        began = time.process_time()
        told = f"{row.text('model_family')} {row.text('gpu')} {engine_named(row)} {row.text('isl')}/{row.text('osl')}"
        try:
            question, gpus = published(row)
            plans: ServingPlans = plan_for(replace(question, runs=asked.runs))
        except UserError as error:
            print(f"{told}: {error}", flush=True)
            continue
        plan, took = plans.search.plans[0].plan, time.process_time() - began
        best, words, runs = best_of_others(question, min(plan.gpus, gpus), asked.others)
        worse.append(plan.gpus / best - 1.0)
        proof = "proved" if plans.search.gap == 0.0 else f"gap {plans.search.gap:.0%}"
        print(
            f"{told} at {row.text('concurrency')}: published {gpus}, planned {plan.gpus} ({plan.words}; {proof},"
            f" {plans.search.runs} runs, {took:.0f} s), best of {runs} others {best} {words}: {worse[-1]:+.0%}",
            flush=True,
        )
    many = sum(one > 0.05 for one in worse)
    print(f"{len(worse)} configurations, worse by more than 5 %: {many}; mean {np.mean(worse):+.1%}")


if __name__ == "__main__":
    main()
