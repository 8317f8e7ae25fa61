"""Random plans of all models, clusters and options: is any part of an answer negative or not finite, or a traceback?

    python validation/random_plans.py OUT.jsonl [--first SEED] [--count N]

A seed is one plan, and the same plan each time; degrees mostly divide what they have to, options are set at random. A
refusal in one line is an answer. Reported: tracebacks, step times and bands that are not positive, finite and in order,
breakdowns that do not add up, negative parts of time, memory or traffic. 10,000 take about 20 CPU minutes: run slices.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

from windtunnel import predict, read_plan
from windtunnel.errors import UserError
from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.hardware.catalogue import gpu_names
from windtunnel.physics.model import load_model
from windtunnel.physics.model.catalogue import catalogue_names
from windtunnel.physics.step.result import Result
from windtunnel.questions.asked.parts.plan import Framework, Precision

GPUS = (1, 2, 4, 8, 8, 16, 24, 64, 72, 128, 256, 1024, 4096, 8192)
RELEASES = ("nemo-24.11", "mlperf-v4.1", "mlperf-v6.0", "bridge-26.04", "prime-rl-26.02", "torchtitan-24.12")
SWITCHES = (
    *("sequence_parallel", "fp8_parameters", "cuda_graphs", "compile", "overlap_grad_reduce", "overlap_param_gather"),
    *("overlap_tp", "overlap_tp_backward", "overlap_p2p", "overlap_ep"),
)
RECOMPUTED = ("attention", "core_attention", "mlp", "moe", "norms", "activation", "ops")


def some(draw: random.Random, chance: float, values: tuple[Any, ...]) -> Any:
    """One of the values with that chance, else None."""
    return draw.choice(values) if draw.random() < chance else None


def plan_of(draw: random.Random, n_gpus: int, mixture: bool, formats: tuple[str, ...]) -> dict[str, Any]:
    """A plan, as users write it; `formats`: those that the GPU has."""
    left, degrees, framework = n_gpus, {}, draw.choice(get_args(Framework))
    for name in ("tp", "pp", "cp"):
        degree = draw.choice([1, 1, 2, 4, 8, 16]) if framework != "pytorch" or name == "pp" else 1
        degrees[name] = degree if left % degree == 0 or draw.random() < 0.02 else 1
        left = max(1, left // degrees[name])
    ep = draw.choice([one for one in (1, 1, 2, 4, 8, 32, 64) if n_gpus // degrees["pp"] % one == 0] or [1])
    micro = draw.choice((1, 1, 2, 4, 7))
    batch = left * micro * draw.choice((1, 2, 4, 8, 12, 32)) + (draw.random() < 0.02)
    piped = degrees["pp"] > 1
    schedules = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipe-v")
    parts = "selective:" + ",".join(draw.sample(RECOMPUTED, draw.randrange(1, 4)))
    choices: dict[str, tuple[float, tuple[Any, ...]]] = {
        "release": (0.2, RELEASES),
        "virtual_stages": (0.3 * piped, (2, 3, 4)),
        "schedule": (0.5 * piped, schedules),
        "zero_stage": (0.5 * (framework != "pytorch"), (0, 1, 2, 3)),
        "shard_group": (0.05, (1, 2, 8)),
        "cp_kind": (0.2, ("ulysses", "ring")),
        "etp": (0.05, (1, 2)),
        "fp8_activation_input": (0.05, (True,)),
        "gradient_dtype": (0.1, ("fp32", "bf16")),
        "optimizer": (0.2, ("sgd", "muon", "adam")),
        "optimizer_dtype": (0.1, ("fp32", "bf16", "int8")),
        "master_dtype": (0.05, ("bf16", "fp32")),
        "loss": (0.15, ("eager", "compiled", "fused", "chunked")),
        "lora_rank": (0.15, (1, 8, 16, 64)),
        "lora_targets": (0.1, ("qkv", "attention", "all", "experts")),
        "frozen_dtype": (0.05, ("int8", "nf4", "bf16")),
        "recompute": (0.5, ("full", f"full:{draw.randrange(1, 9)}", parts)),
        "offload_activations": (0.05, (1, 4)),
        "offload_optimizer": (0.05, (0.3, 1.0)),
        "attention_impl": (0.2, ("flash2", "triton", "unfused")),
        "bucket_parameters": (0.05, (1, 10**6, 10**12)),
        "full_graph": (0.05, (True,)),
        "account_for_embedding": (0.03, (True,)),
        **dict.fromkeys(SWITCHES, (0.1, (True, False))),
    }
    fields = {
        **degrees,
        "ep": ep if (mixture and framework != "pytorch") or draw.random() < 0.02 else 1,
        "micro_batch": micro,
        "global_batch": batch,
        "seq_len": draw.choice((1, 128, 1024, 4096, 4096, 8192, 32_768, 131_072, 1000)),
        "framework": framework,
        "precision": draw.choice(formats if draw.random() < 0.98 else get_args(Precision)),
        **{name: some(draw, chance, values) for name, (chance, values) in choices.items()},
    }
    return {name: value for name, value in fields.items() if value is not None}


def case_of(seed: int) -> dict[str, Any]:
    """Words of one question."""
    draw = random.Random(f"plan {seed}")
    n_gpus = draw.choice(GPUS)
    model, gpu = draw.choice(catalogue_names()), draw.choice(gpu_names())
    mixture = any(layer.feed_forward.kind == "moe" for layer in loaded(model).layers)
    own = machine(f"{gpu}:1").gpu
    formats = ("bf16", *(one for one in get_args(Precision) if own.supports(one)))
    plan = plan_of(draw, n_gpus, mixture, formats)
    router = "zipf:0.7" if mixture and draw.random() < 0.1 else None
    return {"model": model, "cluster": f"{gpu}:{n_gpus}", "plan": plan, "router_load": router}


@cache
def loaded(name: str) -> Any:
    return load_model(name)


@cache
def machine(name: str) -> Any:
    return parse_cluster(name)


def wrong(result: Result) -> list[str]:
    """What of an answer cannot be."""
    found = [] if result.memory else ["no memory"]
    p5, mean, p95 = result.step_time_p5_ns, result.step_time_ns, result.step_time_p95_ns
    if not 0 < p5 <= mean <= p95 < math.inf:
        found.append(f"band {p5} {mean} {p95}")
    if sum(result.breakdown_ns.values()) != mean:
        found.append("breakdown does not add up")
    for name, parts in (("time", result.breakdown_ns), ("traffic", result.traffic_bytes)):
        found += [f"{name} {part} {value}" for part, value in parts.items() if not 0 <= value < math.inf]
    for stage in result.memory:
        found += [
            f"memory of stage {stage.stage}: {part} {value}"
            for part, value in (*stage.categories.items(), ("device", stage.device_bytes))
            if not 0 <= value < math.inf
        ]
    if not 0.0 <= result.mfu < math.inf:
        found.append(f"mfu {result.mfu}")
    return found


def answered(case: dict[str, Any]) -> tuple[str, list[str]]:
    """What became of a case, and what is wrong with it."""
    try:
        routed = {"router_load": case["router_load"]} if case["router_load"] else {}
        result = predict(loaded(case["model"]), machine(case["cluster"]), read_plan(case["plan"]), **routed)
        json.dumps(replace(result, excerpt=()).to_dict(), allow_nan=False)
    except UserError as error:
        text = str(error)
        return "refused", [] if text.strip() and "\n" not in text else [f"not one line: {text!r}"]
    except Exception:
        return "traceback", [traceback.format_exc()[-1500:]]
    return result.status, wrong(result)  # of the excerpt's ops nothing is looked at, which is left unmade


def main() -> int:
    """Run a slice; 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    asked = parser.parse_args()
    tally: Counter[str] = Counter()
    begin = time.process_time()
    with asked.out.open("a", encoding="utf-8") as log:
        for seed in range(asked.first, asked.first + asked.count):
            case = case_of(seed)
            status, found = answered(case)
            tally[status] += 1
            if found:
                tally["wrong"] += 1
                log.write(json.dumps({"seed": seed, "status": status, "found": found, "case": case}) + "\n")
                log.flush()
            if (seed + 1) % 1000 == 0:
                print(f"to {seed}: {dict(tally)}", file=sys.stderr, flush=True)
    print(dict(tally), f"{time.process_time() - begin:.0f} s of CPU")
    return int(tally["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
