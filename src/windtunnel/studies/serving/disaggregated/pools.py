"""Deployments with `--prefill 2xtp4 --decode 1xtp8`: how many replicas of which layout, and how caches move.

    bytes     prompt tokens x KV bytes per token of the whole model
    time      start-up + bytes / (NICs of the narrower side x their rate x efficiency); NVLink inside one domain

Each GPU of a replica copies its share over its own NIC. Where the two layouts differ, heads are reshuffled: the same
bytes in more messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from windtunnel.errors import SpecError, UserError
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.model.architecture import Model
from windtunnel.studies.serving.build import Engine, engine_of, kv_format
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.disaggregated.server import Disaggregated
from windtunnel.studies.serving.engines.profile import Profile, load_engine
from windtunnel.studies.serving.kv.capacity import kv_bytes_per_token
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.measures import stamps_of
from windtunnel.studies.serving.power import gpu_watts
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.result import ServingResult, Side
from windtunnel.studies.serving.run import hand_on, summarise
from windtunnel.studies.serving.words import layout_of
from windtunnel.studies.serving.workload.requests import Workload

APART_BAND = 0.35  # of pools on GPUs whose constants were fitted on replicas that serve both phases
LINK_EFFICIENCY = 0.8  # of a NIC's rate that a KV copy of many blocks reaches (Mooncake, NIXL: 70-90 %)
ALONE: dict[str, int | None] = {"tp": 1, "pp": 1, "attn_dp": 1, "moe_ep": None, "moe_tp": None}
STARTUP_S = 2e-3  # hand-over between two engines: a request, an answer, registered memory (NIXL, Dynamo)


@dataclass(frozen=True, eq=False)
class Pools:
    """Priced engines of both pools, and how many of each."""

    prefill: Engine
    decode: Engine
    n_prefill: int
    n_decode: int

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        return self.n_prefill * self.prefill.deployment.gpus + self.n_decode * self.decode.deployment.gpus

    @property
    def model(self) -> Model:
        """What they serve."""
        return self.decode.model

    @property
    def rules(self) -> Rules:
        """Of the side that requests come to."""
        return self.prefill.rules

    @property
    def profile(self) -> Profile:
        """The engine's, with what first tokens of pools take beyond."""
        profile = self.decode.profile
        return replace(profile, first_token_s=profile.first_token_s + profile.pools_token_s)

    @property
    def fits(self) -> bool:
        """Whether weights leave room for a cache on both sides."""
        return self.prefill.fits and self.decode.fits

    @property
    def longest(self) -> int:
        """The most tokens that one request may have."""
        return min(self.prefill.longest, self.decode.longest)

    def words(self) -> str:
        """As people write it: 2 x tp4, 1 x tp8."""
        return (
            f"{self.n_prefill} x {self.prefill.deployment.words()}, {self.n_decode} x {self.decode.deployment.words()}"
        )

    @property
    def prefill_side(self) -> Side:
        """For the specification of a result."""
        return Side(self.n_prefill, self.prefill.deployment.words())

    @property
    def decode_side(self) -> Side:
        """For the specification of a result."""
        return Side(self.n_decode, self.decode.deployment.words())

    def replica(self) -> Disaggregated:
        """A fresh server on the cluster for which both sides are priced."""
        return self.server(self.prefill.cluster)

    def copy_ns(self, cluster: Cluster) -> Callable[[int], int]:
        """Nanoseconds to move the cache of a prompt of so many tokens."""
        engine = self.prefill
        kv = kv_format(engine.deployment, engine.profile, engine.cluster)
        whole = replace(engine.deployment, tp=1, pp=1)
        per_token = kv_bytes_per_token(engine.model, whole, kv)
        narrow = min(engine.deployment.tp * engine.deployment.pp, self.decode.deployment.tp * self.decode.deployment.pp)
        inside = self.gpus <= cluster.gpus_in_domain
        link = cluster.scale_up if inside else cluster.scale_out
        rate = narrow * link.bandwidth_bytes_per_s * LINK_EFFICIENCY
        return lambda tokens: round(1e9 * (STARTUP_S + link.latency_s + tokens * per_token / rate))

    def server(self, cluster: Cluster) -> Disaggregated:
        """A fresh server."""
        prefill = self.prefill.replicas(self.n_prefill)
        decode = [self.decode.replica() for _ in range(self.n_decode)]
        return Disaggregated(prefill, decode, self.copy_ns(cluster))


def pools_of(
    model: Model,
    cluster: Cluster,
    prefill: tuple[int, Deployment],
    decode: tuple[int, Deployment],
    priced: dict[Deployment, Engine] | None = None,
) -> Pools:
    """Price both pools; `priced`: what earlier calls for this model and cluster have. Raises LayoutError, SpecError."""
    engines = {} if priced is None else priced
    for deployment in (prefill[1], decode[1]):
        if deployment.lora is not None:
            raise SpecError("lora", deployment.lora, "is modelled where replicas do both phases")
        if deployment not in engines:
            engines[deployment] = engine_of(model, cluster, deployment, profile=_connected(deployment.engine))
    first = engines[prefill[1]]
    # Admission on the prefill side needs the prompt's blocks only: no answer grows there.
    first = replace(first, rules=replace(first.rules, reserve="prompt", lag=False))
    return Pools(first, engines[decode[1]], prefill[0], decode[0])


def _connected(engine: str) -> Profile:
    """With a connector between pools vLLM has no hybrid cache: windows are kept in full (vllm/config/vllm.py)."""
    profile = load_engine(engine)
    return replace(profile, windows="full") if profile.windows == "freed" else profile


def run_pools(
    pools: Pools, cluster: Cluster, workload: Workload, slo: Mapping[str, float], cost_per_gpu_hour: float | None = None
) -> ServingResult:
    """A workload through both pools."""
    server = pools.server(cluster)
    sent, refused = simulate(
        workload,
        [server],
        None,
        block_size=pools.prefill.rules.block_size,
        longest=pools.longest,
        read_token_s=pools.prefill.profile.read_token_s,
    )
    hand_on(sent, pools.profile)
    replicas = [*server.prefill, *server.decode]
    result = summarise(
        pools.decode, workload, replicas, stamps_of(sent), refused, slo, cost_per_gpu_hour, gpus=pools.gpus
    )
    first, second = server.prefill, server.decode
    watts = [
        gpu_watts(engine, [replica.tally for replica in side], result.duration_s) * engine.gpus * len(side)
        for engine, side in ((pools.prefill, first), (pools.decode, second))
    ]
    return replace(
        result,
        gpu_watts=sum(watts) / pools.gpus,
        spec=replace(result.spec, replicas=None, prefill=pools.prefill_side, decode=pools.decode_side),
        band=result.band if pools.decode.measured else math.hypot(result.band, APART_BAND),
    )


def pooled_runner(
    model: Model,
    cluster: Cluster,
    deployment: Deployment,
    words: tuple[str | None, str | None],
    slo: Mapping[str, float],
    cost_per_gpu_hour: float | None,
) -> Callable[[Workload], ServingResult]:
    """What the command line asks: `--prefill` and `--decode` in words, all else as the deployment says."""
    pools = pools_in_words(model, cluster, deployment, words)
    if not pools.fits:
        from windtunnel.studies.serving.run import infeasible

        bad = pools.prefill if not pools.prefill.fits else pools.decode
        return lambda workload: infeasible(bad, workload, 1, slo)
    return lambda workload: run_pools(pools, cluster, workload, slo, cost_per_gpu_hour)


def pools_in_words(
    model: Model,
    cluster: Cluster,
    deployment: Deployment,
    words: tuple[str | None, str | None],
    names: tuple[str, str] = ("--prefill", "--decode"),
) -> Pools:
    """Pools as people write them: 2xtp4 and 1xtp8, all else as the deployment says. Raises UserError."""
    both = ", ".join(names)
    if words[0] is None or words[1] is None:
        raise UserError(f"two pools are needed: give both of {both}, such as 2xtp4 and 1xtp8")
    sides = []
    for name, text in zip(names, words, strict=True):
        count, sizes = layout_of(str(text), name)
        sides.append((count, replace(deployment, **{**ALONE, **sizes})))
    gpus = sum(count * side.gpus for count, side in sides)
    if gpus > cluster.n_gpus:
        raise SpecError(both, gpus, f"GPUs are more than the cluster's {cluster.n_gpus}")
    return pools_of(model, cluster, sides[0], sides[1])
