"""Rows of MLPerf Inference: their lengths are the data sets', their load the scenario's.

    Offline               as many requests in flight as the batch holds, on each of the replicas that fill the machine
    Server, Interactive   an open loop at the rate that was submitted, its share of each replica; on a machine as fast
                          as it takes to hold the limits just there: the highest rate that holds them is submitted

Mean lengths: outputs as published results of v6.0 have them; inputs of OpenOrca (Llama 2), CNN-DailyMail (8B) and the
rules' set for 405B. gpt-oss summarises articles of PubMed (3,016 words on average: Cohan et al. 2018); NVIDIA's
configurations give a step 4638 * 3 tokens, which is taken for three of them. Of DeepSeek-R1 and Mixtral inputs are not
published, and estimates: Mixtral's are a third each of OpenOrca (294), of GSM8K with eight worked examples (1,150) and
of MBXP (190). The examples are inferred: its rules allow 2,048 tokens in (inference_policies, pull request 295), which
no question alone needs, and its score on GSM8K is that with examples.
Lengths are uniform between LEAST of the longest and all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from windtunnel.evidence.accuracy.serving.launches import submitted
from windtunnel.evidence.accuracy.serving.rows import ServingRow
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.questions.asked.serve.parts import Lengths
from windtunnel.studies.serving.build import engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import load_engine
from windtunnel.studies.serving.result import ServingResult
from windtunnel.studies.serving.workload.lengths import arrivals, lengths
from windtunnel.studies.serving.workload.requests import Workload

MEANS = {  # a word of the model's name -> tokens in and out
    "deepseek-r1": (820, 3880),
    "gpt-oss-120b": (4638, 1310),
    "llama-2-70b": (294, 294),
    "llama-3.1-405b": (9428, 685),
    "llama-3.1-8b": (778, 128),
    "mixtral-8x7b": (545, 145),
}
# What 99 of 100 requests hold, s: (TTFT, TPOT) of the server and the interactive scenario, loadgen/mlperf.conf of
# mlcommons/inference (001712e9); gpt-oss: LoadGen's own of v6.0.
LIMITS = {
    "deepseek-r1": ((2.0, 0.08), (1.5, 0.015)),
    "gpt-oss-120b": ((3.0, 0.08), (2.0, 0.015)),
    "llama-2-70b": ((2.0, 0.2), (0.45, 0.04)),
    "llama-3.1-405b": ((6.0, 0.175), (4.5, 0.08)),
    "llama-3.1-8b": ((2.0, 0.1), (0.5, 0.03)),
    "mixtral-8x7b": ((2.0, 0.2), (2.0, 0.2)),
}
SLOWEST, HALVINGS = 3.0, 7  # times that priced ones may differ by; steps of the search
LEAST = 0.3
RUN_S = 600.0  # min_duration of LoadGen: what an open loop is played for at least, ...
SPAN = 10.0  # ... or so many lifetimes of a request, since configurations ask for more where those are long, ...
STEP_S = 0.05  # ... of a time per token for that, no more
FEW, MOST = 600, 6000  # requests of an open loop
BATCHES = 4  # of requests that a full batch is played for
SIZES = (1, 2, 4, 8)


def is_mlperf(row: ServingRow) -> bool:
    """Whether a row is one of MLPerf."""
    return row.text("kind").startswith("mlperf")


def laid_out(row: ServingRow, model: Model, deployment: Deployment, cluster: Cluster) -> Deployment:
    """The submission's layout; where none is listed or stated, the fewest GPUs that leave a third of their memory.

    And as many sequences as that holds: no limit of the rules is on them.
    """
    listed = submitted(row, deployment)
    if listed is not None:
        return listed
    if row.text("tp"):
        return replace(deployment, max_num_seqs=_number(row, "max_num_seqs"), max_num_batched_tokens=_budget(row))
    for size in SIZES:
        option = replace(deployment, tp=size, attn_dp=1, moe_tp=None, moe_ep=None)
        if size > cluster.n_gpus:
            break
        engine = engine_of(model, cluster, option, profile=load_engine(deployment.engine))
        if engine.fits and engine.memory.kv > cluster.gpu.usable_memory_bytes / 3:
            sequences = engine.memory.tokens // sum(means_of(row))
            return replace(option, max_num_seqs=_number(row, "max_num_seqs") or max(1, sequences))
    return replace(deployment, tp=min(SIZES[-1], cluster.n_gpus), moe_tp=None, moe_ep=None)


def _number(row: ServingRow, name: str) -> int | None:
    return row.whole_number(name, 0) if row.number(name) else None


def _budget(row: ServingRow) -> int | None:
    return _number(row, "max_num_batched_tokens")


def means_of(row: ServingRow) -> tuple[int, int]:
    """Mean tokens in and out of the row's data set, where that is not known as the row says."""
    name = row.text("model").lower()
    lengths = row.whole_number("isl", Lengths.usual), row.whole_number("osl", Lengths.usual)
    return next((both for word, both in MEANS.items() if word in name), lengths)


def mlperf_workload(row: ServingRow, replicas: int, batch: int) -> Workload:
    """The requests of one replica, which holds `batch` sequences."""
    means = means_of(row)
    longest = [round(2.0 * mean / (1.0 + LEAST)) for mean in means]
    rate = row.number("request_rate_target")
    if rate is None:
        prompts, outputs = lengths(BATCHES * batch, longest[0], longest[1], LEAST, 0)
        return Workload(prompts, outputs, None, batch, name="MLPerf offline")
    rate /= replicas
    count = round(min(MOST, max(FEW, rate * max(RUN_S, SPAN * means[1] * STEP_S))))
    prompts, outputs = lengths(count, longest[0], longest[1], LEAST, 0)
    return Workload(prompts, outputs, arrivals(count, rate, 1.0, 0), name="MLPerf server")


def at_its_rate(
    row: ServingRow, load: Workload, run: Callable[[Workload], ServingResult]
) -> tuple[ServingResult, float]:
    """A run, and what its times are to be multiplied by: 1 where the load has no rate or no limits are known.

    A machine whose times are `f` times the priced ones does at a rate what the priced one does at `f` times that rate,
    `f` times as slowly. Of the factors that hold the limits the largest; 1 where none does.
    """
    name = row.text("model").lower()
    limits = next((both for word, both in LIMITS.items() if word in name), None)
    if load.arrival_ns is None or limits is None:
        return run(load), 1.0
    ttft, tpot = limits[row.text("kind").endswith("interactive")]
    best: tuple[ServingResult, float] | None = None
    low, high = -math.log(SLOWEST), math.log(SLOWEST)
    for _ in range(HALVINGS):
        factor = math.exp((low + high) / 2.0)
        result = run(replace(load, arrival_ns=(load.arrival_ns / factor).astype(load.arrival_ns.dtype)))
        first, distribution = result.ttft, result.tpot
        if first and distribution and factor * first.p99 <= ttft and factor * distribution.p99 <= tpot:
            best, low = (result, factor), math.log(factor)
        else:
            high = math.log(factor)
    return best or (run(load), 1.0)


def replicas_of(row: ServingRow, gpus: int) -> int:
    """How many replicas fill the machine."""
    return max(1, math.floor((row.number("gpus") or gpus) / gpus))
