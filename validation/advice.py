"""Advice held against trying everything, over random jobs: model x cluster x plan.

    python validation/advice.py [--jobs 500] [--seed 0] [--shard 0/2]

Of each job every legal value of every field of its plan is predicted by `windtunnel.predict`, one field at a time, by a
list of its own: flags of the command line with plain ladders of values, no bound, no shared prices. Then:

    honest     no printed advice makes the step longer or does not fit, and `predict` gives its step and its memory
    complete   the best single change of the ladders is among those that are printed, or none better than what is
    ways out   of jobs that do not fit: every printed remedy fits; one is, where the ladders have one
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from typing import Any

import windtunnel
from windtunnel.cli.predict import answered
from windtunnel.errors import UserError
from windtunnel.planning.advice import WORTH

MODELS = (
    "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-2-7b", "llama-2-70b", "gpt3-175b", "mistral-7b",
    "mixtral-8x7b", "mixtral-8x22b", "qwen2.5-72b", "qwen3-30b-a3b", "deepseek-v3", "qwen2.5-32b",
)  # fmt: skip
GPUS = ("h100-sxm", "a100-80gb-sxm", "h200-sxm", "b200-sxm", "gb200-nvl72", "h800-sxm")
FRAMEWORKS = ("megatron",) * 5 + ("torchtitan", "torchtitan", "fsdp", "nanotron", "deepspeed")
ALIKE = 10  # jobs in a row with one model, GPU and framework, which share prices
LADDERS: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4, 8, 16),
    "pp": (1, 2, 4, 8, 16, 32),
    "cp": (1, 2, 4, 8),
    "ep": (1, 2, 4, 8, 16, 32, 64),
    "etp": (1, 2, 4, 8),
    "virtual_stages": tuple(range(1, 17)),
    "micro_batch": (1, 2, 4, 8, 16),
    "schedule": ("1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe", "dualpipe-v"),
    "zero_stage": (0, 1, 2, 3),
    "recompute": (
        "none", "full", "selective:core_attention", "selective:activation,norms", "selective:mlp",
        "selective:attention",
    ),
    "sequence_parallel": (True, False),
    "overlap_tp": (True, False),
    "overlap_grad_reduce": (True, False),
    "overlap_param_gather": (True, False),
    "overlap_p2p": (True, False),
    "overlap_ep": (True, False),
    "cuda_graphs": (True, False),
    "compile": (True, False),
    "offload_optimizer": (0.0, 0.5, 1.0),
    "cp_kind": ("ring", "ulysses"),
    "precision": ("bf16", "fp8", "mxfp8"),
    "optimizer_dtype": ("fp32", "bf16"),
    "gradient_dtype": ("fp32", "bf16"),
}  # fmt: skip


def job(rng: random.Random, model: str, gpu: str, framework: str) -> tuple[str, str, dict[str, Any]] | None:
    """A random question that `predict` answers, or None."""
    n = rng.choice((72, 144, 288, 576)) if "nvl72" in gpu else 2 ** rng.randint(3, 10)
    plan: dict[str, Any] = {"framework": framework, "seq_len": rng.choice((2048, 4096, 8192))}
    plan["tp"] = rng.choice((1, 1, 2, 4, 8))
    plan["pp"] = rng.choice((1, 1, 2, 4, 8, 16))
    plan["cp"] = rng.choice((1, 1, 1, 2, 4))
    plan["micro_batch"] = rng.choice((1, 1, 2, 4))
    dp = n // (plan["tp"] * plan["pp"] * plan["cp"])
    if dp < 1:
        return None
    plan["global_batch"] = dp * plan["micro_batch"] * rng.choice((1, 2, 4, 8, 12))
    plan["recompute"] = rng.choice(("none", "none", "none", "full", "selective:core_attention"))
    if rng.random() < 0.3:
        plan["zero_stage"] = rng.choice((0, 1, 2, 3))
    if plan["pp"] > 1 and rng.random() < 0.4:
        plan["virtual_stages"] = rng.choice((2, 3, 4))
    if rng.random() < 0.2:
        plan["precision"] = "fp8"
    if rng.random() < 0.5:
        plan["ep"] = rng.choice((2, 4, 8, 16))
    try:
        windtunnel.predict(model, f"{gpu}:{n}", plan)
    except UserError:
        return None
    return model, f"{gpu}:{n}", plan


def singles(model: Any, cluster: Any, plan: dict[str, Any]) -> dict[str, tuple[int, bool]]:
    """Step and whether it fits, of every value of every ladder that `predict` takes; a schedule where one needs it."""
    found = {}
    for name, values in LADDERS.items():
        for value in values:
            for extra in ({}, {"schedule": "interleaved"}, {"virtual_stages": 1}):
                try:
                    result = windtunnel.predict(model, cluster, {**plan, name: value, **extra})
                except UserError:
                    continue
                found[f"{name}={value}"] = (result.step_time_ns, result.infeasible is None)
                break
    return found


def judged(model: str, cluster: str, plan: dict[str, Any], count: Counter[str]) -> None:
    """Hold one job's advice against its ladders."""
    from windtunnel.cli.plan_flags import PlanFlags

    loaded, machine = windtunnel.load_model(model), windtunnel.parse_cluster(cluster)
    began = time.process_time()
    plain = windtunnel.predict(loaded, machine, plan)
    middle = time.process_time()
    result = answered(model, cluster=cluster, flags=PlanFlags(**plan))
    count["predict ms"] += round(1e3 * (middle - began))
    count["advised ms"] += round(1e3 * (time.process_time() - middle))
    fits = plain.infeasible is None
    count["jobs that fit" if fits else "jobs that do not fit"] += 1
    for one in result.advice:
        count["printed"] += 1
        sized = (
            windtunnel.parse_cluster(f"{cluster.partition(':')[0]}:{one.changes['n_gpus']}")
            if "n_gpus" in one.changes
            else machine
        )
        told = {name: value for name, value in one.changes.items() if name != "n_gpus"}
        other = windtunnel.predict(loaded, sized, {**plan, **told})
        problems = []
        if (other.step_time_ns, other.peak_memory.device_bytes) != (one.step_time_ns, one.peak_memory_bytes):
            problems.append(f"predict gives {other.step_time_ns} ns, {other.peak_memory.device_bytes} bytes")
        if other.infeasible is not None:
            problems.append("does not fit")
        if fits and other.step_time_ns >= plain.step_time_ns:
            problems.append("longer")
        count["printed that lie"] += bool(problems)
        if problems:
            print(f"LIE {model} {cluster} {plan}: {one.flags}: {', '.join(problems)}", flush=True)
    ladder = singles(loaded, machine, plan)
    fitting = {name: step for name, (step, good) in ladder.items() if good}
    printed = min((one.step_time_ns for one in result.advice), default=None)
    best = min(fitting, key=lambda name: fitting[name], default=None)
    if fits:
        worth = best is not None and fitting[best] < plain.step_time_ns * (1.0 - WORTH)
        count["with a better single change"] += worth
        good = not worth or (printed is not None and best is not None and printed <= fitting[best])
        count["best change printed"] += worth and good
    else:
        count["with a single way out"] += best is not None
        good = best is None or (printed is not None and printed <= fitting[best])
        count["best way out printed"] += best is not None and good
        count["no single way out, but a way out printed"] += best is None and printed is not None
    if not good:
        print(f"MISSED {model} {cluster} {plan}: {best} {fitting[best]} ns, printed {printed}", flush=True)


def main() -> None:
    """Judge many jobs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="0/1", help="which part of them: K/N")
    asked = parser.parse_args()
    part, parts = map(int, asked.shard.split("/"))
    rng, count, done = random.Random(asked.seed), Counter[str](), 0
    while done < asked.jobs:
        if done % ALIKE == 0:
            shared = rng.choice(MODELS), rng.choice(GPUS), rng.choice(FRAMEWORKS)
        one = job(rng, *shared)
        if one is None:
            continue
        done += 1
        if done % parts == part:
            judged(*one, count)
            count["jobs"] += 1
            if count["jobs"] % 10 == 0:
                print(f"{count['jobs']} {dict(count)}", file=sys.stderr, flush=True)
    for name, value in count.items():
        print(f"{name:45} {value}")
    sys.exit(1 if count["printed that lie"] else 0)


if __name__ == "__main__":
    main()
