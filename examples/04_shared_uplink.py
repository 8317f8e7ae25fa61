"""Who slows whom on shared links, and by how much?

    python examples/04_shared_uplink.py

Collectives side by side on H100 nodes, 400 Gb/s per GPU: an all-to-all of experts and an all-reduce of gradients on
one rail and on two; two jobs whose rings meet on the uplinks of a fat tree; and what hashing flows to uplinks (ECMP)
adds to that. Each line says how much longer a collective takes than alone. Last a backward pass of four layers of
experts, in which the gradients of a layer travel beside the tokens of the next: how much of that the step feels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from windtunnel import parse_cluster
from windtunnel.cost.communication.collectives import collective, group_of
from windtunnel.cost.communication.paths import Demand, demand, flows_of
from windtunnel.engine import replay, sharing_of
from windtunnel.graph import GraphBuilder, OpKind
from windtunnel.hardware import Cluster, cluster_with
from windtunnel.hardware.topology import Topology, topology_of

MIB = 1 << 20


def slowdowns(demands: Sequence[Demand], topology: Topology) -> list[float]:
    """Time over time alone, if all start at once: a graph of one op for each, on programs of their own."""
    builder = GraphBuilder()
    for program, one in enumerate(demands):
        builder.op(OpKind.COLLECTIVE, builder.stream(program, "links"), duration_ns=round(one.seconds * 1e9))
    alone = builder.duration_ns()
    shared = sharing_of(range(len(demands)), demands, topology.capacity_bytes_per_s)
    together = replay(builder.build(), alone, sharing=shared).end_ns
    return [float(found) for found in together / alone]


def on_rails(cluster: Cluster) -> tuple[list[float], list[float], list[float]]:
    """An all-to-all of 16 ranks and an all-reduce of as long: one rail, the same as priced, two rails."""
    topology = topology_of(cluster)
    first, second = range(0, 128, 8), range(1, 128, 8)
    group = group_of(16, 8, cluster)
    experts = flows_of("all_to_all", 256 * MIB, first, topology)
    gradients = {rail: flows_of("all_reduce", 128 * MIB, ranks, topology) for rail, ranks in enumerate((first, second))}
    ideal = demand(experts, topology)
    priced = (
        demand(experts, topology, collective("all_to_all", 256 * MIB, group, cluster).seconds),
        demand(gradients[0], topology, collective("all_reduce", 128 * MIB, group, cluster).seconds),
    )
    return (
        slowdowns([ideal, demand(gradients[0], topology)], topology),
        slowdowns(priced, topology),
        slowdowns([ideal, demand(gradients[1], topology)], topology),
    )


def backward_ms(tokens: Demand, gradients: Demand, topology: Topology) -> float:
    """A backward pass of four layers: combine, compute of as long, dispatch; then the layer's gradients beside it."""
    builder = GraphBuilder()
    compute, expert, data = (builder.stream(0, name) for name in ("compute", "expert", "data"))
    demand_of: list[int] = []
    last: list[int] = []
    for _ in range(4):
        ns = round(tokens.seconds * 1e9)
        combine = builder.op(OpKind.COLLECTIVE, expert, duration_ns=ns, after=last)
        experts = builder.op(OpKind.COMPUTE, compute, duration_ns=ns, after=[combine])
        last = [builder.op(OpKind.COLLECTIVE, expert, duration_ns=ns, after=[experts])]
        builder.op(OpKind.COLLECTIVE, data, duration_ns=round(gradients.seconds * 1e9), after=[experts])
        demand_of += [0, -1, 0, 1]
    shared = sharing_of(demand_of, [tokens, gradients], topology.capacity_bytes_per_s)
    return replay(builder.build(), builder.duration_ns(), sharing=shared).makespan_ns / 1e6


def backward_on_rails(cluster: Cluster) -> list[float]:
    """The backward pass in milliseconds: gradients on a rail of their own, and on that of the tokens."""
    topology = topology_of(cluster)
    tokens = demand(flows_of("all_to_all", 64 * MIB, range(0, 128, 8), topology), topology)
    rails = [range(rail, 128, 8) for rail in (1, 0)]
    gradients = [demand(flows_of("all_reduce", 64 * MIB, ranks, topology), topology) for ranks in rails]
    return [backward_ms(tokens, one, topology) for one in gradients]


def two_jobs(cluster: Cluster, ratio: float, seed: int | None = None) -> list[float]:
    """Two all-reduces of 32 GPUs, each half in one pod and half in another, on uplinks of `ratio`:1."""
    tree = cluster_with(cluster, rail_optimised=False, gpus_per_pod=32, oversubscription=ratio)
    topology = topology_of(tree, ecmp_seed=seed)
    jobs = [[*range(at, at + 16), *range(at + 32, at + 48)] for at in (0, 16)]
    return slowdowns([demand(flows_of("all_reduce", 256 * MIB, job, topology), topology) for job in jobs], topology)


def main() -> None:
    """Print the slowdowns."""
    cluster = parse_cluster("h100-sxm:128")
    shared, priced, separate = on_rails(cluster)
    print("all-to-all beside all-reduce      all-to-all   all-reduce")
    for name, found in (("one NIC", shared), ("one NIC, as priced", priced), ("separate rails", separate)):
        print(f"  {name:30s} {found[0]:9.2f}x {found[1]:11.2f}x")

    print("\ntwo jobs' rings over one uplink        job A        job B")
    by_ratio = {ratio: two_jobs(cluster, ratio) for ratio in (1.0, 2.0, 3.0, 4.0)}
    for ratio, found in by_ratio.items():
        print(f"  oversubscribed {ratio:.0f}:1             {found[0]:9.2f}x {found[1]:11.2f}x")
    hashed = [max(two_jobs(cluster, 1.0, seed)) for seed in range(50)]
    median, worst = float(np.median(hashed)), max(hashed)
    print(f"  1:1, flows hashed to uplinks   median {median:.2f}x, worst of 50 seeds {worst:.2f}x")

    apart, same = backward_on_rails(cluster)
    print("\nbackward pass of four layers         step")
    print(f"  gradients on a rail of their own {apart:6.2f} ms")
    print(f"  gradients on the tokens' rail    {same:6.2f} ms, {same / apart:.2f}x")

    print(
        f"\none NIC shared costs {shared[0]:.2f}x, separate rails {separate[0]:.2f}x, "
        f"two jobs on 4:1 uplinks {by_ratio[4.0][0]:.2f}x"
    )


if __name__ == "__main__":
    main()
