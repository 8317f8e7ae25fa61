"""Advice held against trying everything, over random jobs: model x cluster x plan.

    python validation/advice.py [--jobs 500] [--seed 0] [--shard 0/2] [--slow] [--log FILE]

Of each job every legal value of every field of its plan is replayed, one field at a time, by a list of its own: flags
of the command line with plain ladders of values, but for those that a lower bound shows to be no quicker than what was
printed. With `--slow` each is predicted by `windtunnel.predict` with the job's disturbances. Then:

    honest     no printed advice makes the step longer or does not fit, and `predict` gives its step and its memory
    complete   the best single change of the ladders is among those that are printed, or none better than what is
    ways out   of jobs that do not fit: every printed remedy fits; one is, where the ladders have one

The judge, the advice and `predict` ask the caching allocator for the same tensors again and again: what it answered to
the same events is remembered (a pure function, most of the judge's time with FSDP).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import windtunnel
from windtunnel.errors import UserError
from windtunnel.questions import read
from windtunnel.questions.asked.parts.scenario import Scenario
from windtunnel.questions.reading import plain_part
from windtunnel.studies.planning.advice.advise import WORTH
from windtunnel.studies.planning.advice.changes import UNBOUNDED
from windtunnel.studies.planning.oracle import host_holds, laid_out, memory_bytes, read_plan, step_ns, straggling
from windtunnel.studies.planning.search.bounds import Bounds
from windtunnel.studies.predict import answer_at_first
from windtunnel.studies.training.memory import peak

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
        laid_out(windtunnel.load_model(model), windtunnel.parse_cluster(f"{gpu}:{n}"), read_plan(plan))
    except UserError:
        return None
    return model, f"{gpu}:{n}", plan


def singles(model: Any, cluster: Any, plan: dict[str, Any], slow: list[str], below_ns: float) -> dict[str, int]:
    """Step of every value of every ladder that `predict` takes and that fits; a schedule where one needs it.

    Left out is what a lower bound of the step shows to be no quicker than `below_ns`: the law tests hold the bounds
    against replays, and here it is the judge's time.
    """
    asked = read_plan(plan)
    bounds, seen, found = Bounds(straggling(cluster)), set(), {}
    capacity = cluster.gpu.usable_memory_bytes
    for name, values in LADDERS.items():
        for value in values:
            for extra in ({}, {"schedule": "interleaved"}, {"virtual_stages": 1}):
                try:
                    layout = laid_out(model, cluster, asked.with_fields({name: value, **extra}))
                    key = layout.plan.with_fields({"schedule": None}), layout.schedule, layout.etp
                    if key in seen:
                        break
                    seen.add(key)
                    if name not in UNBOUNDED and bounds.work_ns(layout) >= below_ns:
                        break
                    if memory_bytes(layout, capacity) > capacity:
                        break
                    if name not in UNBOUNDED and bounds.step_ns(layout) >= below_ns:
                        break
                    if slow:
                        result = windtunnel.predict(model, cluster, {**plan, name: value, **extra}, slow=slow)
                        step, fits = result.step_time_ns, result.infeasible is None
                    else:
                        step, fits = step_ns(layout), True
                except UserError:
                    continue
                if fits and host_holds(layout):
                    found[f"{name}={value}"] = step
                break
    return found


def judged(model: str, cluster: str, plan: dict[str, Any], slow: list[str]) -> Counter[str]:
    """Hold one job's advice against its ladders, and count what is found."""
    count: Counter[str] = Counter(jobs=1)
    loaded, machine = windtunnel.load_model(model), windtunnel.parse_cluster(cluster)
    began = time.process_time()
    plain = windtunnel.predict(loaded, machine, plan, slow=slow)
    middle = time.process_time()
    data = {"model": model, "cluster": cluster, "plan": plan, "scenario": plain_part(Scenario(slow))}
    result = answer_at_first(read({"question": "predict", **data}))[1]()
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
        other = windtunnel.predict(loaded, sized, {**plan, **told}, slow=slow)
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
    most = Counter((one.kind, next(iter(one.changes))) for one in result.advice)
    count["fields told more than twice"] += sum(times > 2 for times in most.values())
    printed = min((one.step_time_ns for one in result.advice), default=None)
    below = printed if printed is not None else plain.step_time_ns * (1.0 - WORTH) if fits else float("inf")
    fitting = singles(loaded, machine, plan, slow, below)
    best = min(fitting, key=lambda name: fitting[name], default=None)
    if fits:
        good = best is None or fitting[best] >= min(printed or below, plain.step_time_ns * (1.0 - WORTH))
        worth = printed is not None or not good
        count["with a better single change"] += worth
        count["best change printed"] += worth and good
    else:
        good = best is None or (printed is not None and printed <= fitting[best])
        count["with a way out"] += best is not None or printed is not None
        count["quickest way out printed"] += printed is not None and good
    if not good and best is not None:
        print(f"MISSED {model} {cluster} {plan} {slow}: {best} {fitting[best]} ns, printed {printed}", flush=True)
    return count


def disturbance(rng: random.Random, n_gpus: int) -> list[str]:
    """One or two things that go wrong somewhere in the cluster."""
    one = rng.randrange(n_gpus)
    kinds = (
        f"gpu={one}:{rng.choice((1.1, 1.3, 2.0))}",
        "random=1%:1.2",
        f"link=node0.nic{rng.randrange(4)}:0.5",
    )
    return rng.sample(kinds, rng.choice((1, 1, 2)))


def remembered(replay: Callable[..., Any]) -> Callable[..., Any]:
    """A replay of the allocator that answers the same question once."""
    known: dict[tuple[Any, ...], Any] = {}

    def answer(block_id: Any, delta_bytes: Any, *, stream: Any, **how: Any) -> Any:
        events = b"".join(part.tobytes() for part in (block_id, delta_bytes, stream))
        key = hashlib.sha256(events).digest(), *sorted(how.items())
        if key not in known:
            found = replay(block_id, delta_bytes, stream=stream, **how)
            known[key] = replace(found, allocated_bytes=None, reserved_bytes=None)  # nobody here reads these
        return known[key]

    return answer


def main() -> None:
    """Judge many jobs."""
    peak.replay_allocator = remembered(peak.replay_allocator)
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shard", default="0/1", help="which part of them: K/N")
    parser.add_argument("--slow", action="store_true", help="each job with a disturbance or two")
    parser.add_argument("--log", type=Path, help="a line of JSON for each job that was judged; those are not again")
    asked = parser.parse_args()
    part, parts = map(int, asked.shard.split("/"))
    log = {}
    if asked.log is not None and asked.log.exists():
        log = {line["job"]: line["count"] for line in map(json.loads, asked.log.read_text().splitlines())}
    rng, count, done = random.Random(asked.seed), Counter[str](), 0
    while done < asked.jobs:
        if done % ALIKE == 0:
            shared = rng.choice(MODELS), rng.choice(GPUS), rng.choice(FRAMEWORKS)
        one = job(rng, *shared)
        if one is None:
            continue
        done += 1
        if done % parts != part:
            continue
        if done not in log:
            slow = disturbance(random.Random(done), int(one[1].partition(":")[2])) if asked.slow else []
            log[done] = dict(judged(*one, slow))
            if asked.log is not None:
                with asked.log.open("a") as file:
                    file.write(json.dumps({"job": done, "count": log[done]}) + "\n")
        count.update(log[done])
    for name, value in count.items():
        print(f"{name:45} {value}")
    sys.exit(1 if count["printed that lie"] else 0)


if __name__ == "__main__":
    main()
