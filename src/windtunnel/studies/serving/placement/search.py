"""DistServe's placement on the serving core: layouts of a model on a cluster, each run, the best placed.

Where the cluster is one NVLink domain, pairs are searched together (algorithm 2, low affinity). Across domains the
phases are searched apart (algorithm 1), which assumes that caches move fast between nodes. Every candidate runs the
same requests, only closer together or farther apart; goodput is the highest rate at which enough meet the limits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from windtunnel.errors import LayoutError, SpecError, UserError
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.studies.serving.build import Engine, candidate
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.disaggregated.decode_only import DecodeOnly
from windtunnel.studies.serving.disaggregated.pools import pools_of
from windtunnel.studies.serving.goodput import at_rate, misses_nowhere, rate_of
from windtunnel.studies.serving.loop import Server, simulate
from windtunnel.studies.serving.measures import stamps_of
from windtunnel.studies.serving.placement.distserve import Layout, Placement, high_affinity, layouts, low_affinity
from windtunnel.studies.serving.run import hand_on, regime_of
from windtunnel.studies.serving.workload.requests import Workload

PRECISION = 0.03  # of a candidate's rate: candidates differ by more
LEAST_RATE, MOST_RATE = 1e-3, 1e4  # requests per second between which goodput is sought


@dataclass(frozen=True, eq=False)
class Question:
    """What is to be placed, and for whom."""

    model: Model
    cluster: Cluster
    deployment: Deployment  # engine, precisions, limits; its parallel sizes are what is sought
    workload: Workload  # an open loop
    slo: Mapping[str, float]
    attain: float
    rate_per_s: float  # that the placement must carry


def search_distserve(question: Question) -> Placement:
    """The placement. Raises UserError where limits are missing, SpecError where nothing holds them."""
    if not {"ttft_s", "tpot_s"} <= set(question.slo):
        raise UserError("a search for two phases needs both limits: add --ttft 1s --tpot 50ms")
    if question.workload.arrival_ns is None:
        raise SpecError("--concurrency", question.workload.concurrency, "goodput is a rate: use an open loop")
    cluster = question.cluster
    domain = min(cluster.gpus_in_domain, cluster.n_gpus)
    if cluster.n_gpus < 2:
        raise SpecError("--cluster", cluster.name, "prompts and answers apart take two GPUs at least")
    if cluster.n_gpus <= cluster.gpus_in_domain:
        choices = list(layouts(domain - 1))
        _check_room(question, choices)
        return low_affinity(lambda p, d: _pair(question, p, d), choices, domain, question.rate_per_s)
    choices = list(layouts(cluster.n_gpus, -(-cluster.n_gpus // domain), domain))
    _check_room(question, choices)
    return high_affinity(lambda p: _prefill(question, p), lambda d: _decode(question, d), choices, question.rate_per_s)


def _check_room(question: Question, choices: Sequence[Layout]) -> None:
    """Raises SpecError where no layout holds the model and its shortest request: no limit would help."""
    shortest = int((question.workload.input_tokens + question.workload.output_tokens).min())
    engines = (_engine(question, layout) for layout in choices)
    if not any(engine is not None and engine.longest >= shortest for engine in engines):
        problem = f"no layout has room for {question.model.name} and a request of {shortest} tokens"
        raise SpecError("--cluster", question.cluster.name, f"{problem}: use more GPUs, or fewer bits")


def _pair(question: Question, prefill: Layout, decode: Layout) -> float:
    try:
        sides = [(1, question.deployment.cut(*layout)) for layout in (prefill, decode)]
        pools = pools_of(question.model, question.cluster, sides[0], sides[1])
    except (LayoutError, SpecError):
        return 0.0  # heads or layers do not divide: no candidate
    if not (pools.prefill.fits and pools.decode.fits):
        return 0.0
    longest = min(pools.prefill.longest, pools.decode.longest)
    return _highest(
        question, question.workload, lambda: pools.server(question.cluster), pools.prefill, longest, question.slo
    )


def _prefill(question: Question, layout: Layout) -> float:
    """One instance that computes prompts only: requests of one token, the limit on the first."""
    engine = _engine(question, layout)
    if engine is None:
        return 0.0
    engine = replace(engine, rules=replace(engine.rules, reserve="prompt", lag=False))
    prompts = replace(question.workload, output_tokens=np.ones_like(question.workload.output_tokens))
    return _highest(question, prompts, engine.replica, engine, engine.longest, {"ttft_s": question.slo["ttft_s"]})


def _decode(question: Question, layout: Layout) -> float:
    """One instance that decodes only, the limit on the tokens after the first."""
    engine = _engine(question, layout)
    if engine is None:
        return 0.0
    limit = {"tpot_s": question.slo["tpot_s"]}
    return _highest(question, question.workload, lambda: DecodeOnly(engine.replica()), engine, engine.longest, limit)


def _engine(question: Question, layout: Layout) -> Engine | None:
    return candidate(question.model, question.cluster, question.deployment.cut(*layout))


def _highest(
    question: Question,
    workload: Workload,
    server: Callable[[], Server],
    engine: Engine,
    longest: int,
    slo: Mapping[str, float],
) -> float:
    """The highest rate that holds the limits with a queue that does not grow, by bisection; 0 where none does.

    Raises UserError where the requests miss the limits at no rate.
    """

    def holds(rate: float) -> bool:
        instance = server()
        load = at_rate(workload, rate)
        sent, _ = simulate(load, [instance], None, block_size=engine.rules.block_size, longest=longest)
        hand_on(sent, engine.profile)
        stamps = stamps_of(sent)
        attained = stamps.attainment(slo.get("ttft_s"), slo.get("tpot_s"), len(load))
        return attained >= question.attain and regime_of(stamps, load) != "over"

    rate = min(MOST_RATE, max(LEAST_RATE, rate_of(workload)))
    low = high = rate
    if holds(rate):
        while high < MOST_RATE:
            high *= 2.0
            if not holds(high):
                break
            low = high
        else:
            raise misses_nowhere(len(workload))
    else:
        while low > LEAST_RATE:
            low /= 2.0
            if holds(low):
                break
            high = low
        else:
            return 0.0
    while high / low > 1.0 + PRECISION:
        middle = (low * high) ** 0.5
        if holds(middle):
            low = middle
        else:
            high = middle
    return low
