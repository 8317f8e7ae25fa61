"""Deployments with `--prefill 2xtp4 --decode 1xtp8`: how many replicas of which layout, and how caches move.

    bytes     prompt tokens x KV bytes per token of the whole model
    time      start-up + bytes / (NICs of the narrower side x their rate x efficiency); NVLink inside one domain

Each GPU of a replica copies its share over its own NIC. Where the two layouts differ, heads are reshuffled: the same
bytes in more messages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from windtunnel.errors import SpecError, UserError
from windtunnel.hardware.cluster import Cluster
from windtunnel.model.architecture import Model
from windtunnel.serving.build import Engine, engine_of, kv_format
from windtunnel.serving.deployment import Deployment
from windtunnel.serving.disaggregated.server import Disaggregated
from windtunnel.serving.kv.capacity import kv_bytes_per_token
from windtunnel.serving.measures import stamps_of
from windtunnel.serving.result import ServingResult
from windtunnel.serving.run import summarise
from windtunnel.serving.simulate import simulate
from windtunnel.serving.words import layout_of
from windtunnel.serving.workload.requests import Workload

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
        prefill = [self.prefill.replica() for _ in range(self.n_prefill)]
        decode = [self.decode.replica() for _ in range(self.n_decode)]
        return Disaggregated(prefill, decode, self.copy_ns(cluster))


def pools_of(model: Model, cluster: Cluster, prefill: tuple[int, Deployment], decode: tuple[int, Deployment]) -> Pools:
    """Price both pools. Raises LayoutError, SpecError."""
    first = engine_of(model, cluster, prefill[1])
    # Admission on the prefill side needs the prompt's blocks only: no answer grows there.
    first = replace(first, rules=replace(first.rules, reserve="prompt", lag=False))
    return Pools(first, engine_of(model, cluster, decode[1]), prefill[0], decode[0])


def run_pools(
    pools: Pools, cluster: Cluster, workload: Workload, slo: Mapping[str, float], cost_per_gpu_hour: float | None = None
) -> ServingResult:
    """A workload through both pools."""
    server = pools.server(cluster)
    longest = min(pools.prefill.longest, pools.decode.longest)
    sent, refused = simulate(workload, [server], None, block_size=pools.prefill.rules.block_size, longest=longest)
    replicas = [*server.prefill, *server.decode]
    result = summarise(
        pools.decode, workload, replicas, stamps_of(sent), refused, slo, cost_per_gpu_hour, gpus=pools.gpus
    )
    spec = {
        **result.spec,
        "replicas": None,
        "prefill": {"replicas": pools.n_prefill, "layout": pools.prefill.deployment.words()},
        "decode": {"replicas": pools.n_decode, "layout": pools.decode.deployment.words()},
    }
    return replace(result, spec=spec)


def pooled_runner(
    model: Model,
    cluster: Cluster,
    deployment: Deployment,
    words: tuple[str | None, str | None],
    slo: Mapping[str, float],
    cost_per_gpu_hour: float | None,
) -> Callable[[Workload], ServingResult]:
    """What the command line asks: `--prefill` and `--decode` in words, all else as the deployment says."""
    if words[0] is None or words[1] is None:
        raise UserError("two pools are needed: give both --prefill and --decode, such as 2xtp4 and 1xtp8")
    sides = []
    for name, text in (("--prefill", words[0]), ("--decode", words[1])):
        count, sizes = layout_of(text, name)
        sides.append((count, replace(deployment, **{**ALONE, **sizes})))
    gpus = sum(count * one.gpus for count, one in sides)
    if gpus > cluster.n_gpus:
        raise SpecError("--prefill, --decode", gpus, f"GPUs are more than the cluster's {cluster.n_gpus}")
    pools = pools_of(model, cluster, sides[0], sides[1])
    if not (pools.prefill.fits and pools.decode.fits):
        from windtunnel.serving.run import infeasible

        bad = pools.prefill if not pools.prefill.fits else pools.decode
        return lambda workload: infeasible(bad, workload, 1, slo)
    return lambda workload: run_pools(pools, cluster, workload, slo, cost_per_gpu_hour)
