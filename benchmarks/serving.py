"""Speed of the serving study, in CPU time: runs of steps, single steps, many replicas, and a search for a placement.

    python benchmarks/serving.py --trace AzureLLMInferenceTrace_conv.csv

The trace is public (Azure/AzurePublicDataset, CC-BY-4.0; columns arrival_s, input_tokens, output_tokens or its own).
Single steps: one pass of the loop per token, as simulators in Python do it (Vidur, LLMServingSim, splitwise-sim).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from windtunnel.physics.hardware import parse_cluster
from windtunnel.physics.model import load_model
from windtunnel.studies.serving import Deployment, Workload, engine_of
from windtunnel.studies.serving.batching import ContinuousBatching
from windtunnel.studies.serving.loop import Router, simulate
from windtunnel.studies.serving.placement.search import Question, search_distserve
from windtunnel.studies.serving.replica import StepwiseReplica
from windtunnel.studies.serving.routing import LeastLoaded, PrefixAware, RoundRobin
from windtunnel.studies.serving.workload.files import read_workload
from windtunnel.studies.serving.workload.lengths import arrivals, lengths


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--trace", type=Path, required=True)
    words.add_argument("--prefixes", type=Path, help="a trace with names of blocks, as Mooncake's")
    words.add_argument("--fleet", type=int, default=1_000_000, help="requests on 64 replicas")
    asked = words.parse_args()
    load = read_workload(asked.trace)
    engine = engine_of(load_model("llama-3.1-8b"), parse_cluster("h100-sxm:1"), Deployment(engine="vllm-0.12"))
    size = engine.rules.block_size
    simulate(load, [engine.replica()], None, block_size=size)  # prices are worked out once

    best = max(_rate(lambda: simulate(load, [engine.replica()], None, block_size=size), len(load)) for _ in range(3))
    print(f"runs of steps: {best:,.0f} requests per CPU-second")
    part = Workload(load.input_tokens[:600], load.output_tokens[:600], load.arrival_ns[:600])

    def single() -> None:
        replica = StepwiseReplica(engine.times, engine.rules, engine.blocks, ContinuousBatching())
        simulate(part, [replica], None, block_size=size)

    slow = _rate(single, len(part))
    print(f"single steps: {slow:,.0f} requests per CPU-second; runs are {best / slow:.0f} times as fast")

    times = -(-asked.fleet // len(load))
    span = int(load.arrival_ns[-1])
    prompts, outputs = (np.tile(one, times)[: asked.fleet] for one in (load.input_tokens, load.output_tokens))
    sent = np.concatenate([load.arrival_ns // 64 + place * (span // 64) for place in range(times)])[: asked.fleet]
    fleet = Workload(prompts, outputs, sent)
    routers: tuple[Router, ...] = (RoundRobin(), LeastLoaded())
    for router in routers:
        begun = time.process_time()
        simulate(fleet, [engine.replica() for _ in range(64)], router, block_size=size)
        spent = time.process_time() - begun
        print(f"{asked.fleet:,} requests on 64 replicas, {type(router).__name__}: {spent:.1f} CPU-seconds")
    if asked.prefixes is not None:
        named = read_workload(asked.prefixes)
        rate = _rate(
            lambda: simulate(named, [engine.replica() for _ in range(8)], PrefixAware(), block_size=size), len(named)
        )
        print(f"prefixes of {asked.prefixes.name} on 8 replicas: {rate:,.0f} requests per CPU-second")

    slo = {"ttft_s": 0.2, "tpot_s": 0.02}
    prompts, outputs = lengths(1000, 800, 200, 0.5, 0)
    load = Workload(prompts, outputs, arrivals(1000, 5.0, 1.0, 0))
    question = Question(engine.model, parse_cluster("h100-sxm:4"), engine.deployment, load, slo, 0.9, 5.0)
    begun = time.process_time()
    found = search_distserve(question)
    spent = time.process_time() - begun
    print(f"DistServe's search on 4 GPUs, {len(found.tried)} candidates, 1,000 requests each: {spent:.1f} CPU-seconds")


def _rate(run: object, requests: int) -> float:
    begun = time.process_time()
    run()  # type: ignore[operator]
    return requests / (time.process_time() - begun)


if __name__ == "__main__":
    main()
