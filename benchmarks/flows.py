"""Speed of max-min rates, as ratios against a plain-Python twin: `python benchmarks/flows.py`.

A change is an arrival or a departure of one flow. Three networks of 2,048 GPUs: rings of data parallelism on rails,
each hop a flow, every NIC busy 60 % of the time; the same collectives of scattered jobs on a 4:1 oversubscribed fat
tree, where rings meet on uplinks; and the worst case for a local method, single flows between random GPUs over 8 full
uplinks, one change per instant. Best of five, whole call.

Then the same inside the replay of a graph, where an op that ends lets the next one start: layers of experts on 64
programs, an all-to-all and an all-reduce on each NIC, with and without interference of compute; and steps of scattered
jobs, compute then all-reduce, all of which meet on full uplinks. Each also with links so wide that none is ever full,
against the replay without links.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from link_flows import demand, flows_of, replay_flows, sharing_of
from plain_flows import plainly_replayed

from windtunnel.physics.engine import Sharing, Slowdown, replay
from windtunnel.physics.graph import Graph, GraphBuilder, OpKind
from windtunnel.physics.hardware import cluster_with, parse_cluster
from windtunnel.physics.hardware.topology import Topology, paths, topology_of

GPUS = 2_048
BUSY = 0.6


class Case(NamedTuple):
    """What `replay_flows` takes."""

    arrival_ns: np.ndarray
    bytes_total: np.ndarray
    link_ptr: np.ndarray
    link_idx: np.ndarray
    capacity: np.ndarray

    @property
    def n(self) -> int:
        return len(self.arrival_ns)


def joined(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]], topology: Topology) -> Case:
    """Cases of one network as one."""
    arrival, size, ptr, idx = zip(*parts, strict=True)
    lengths = np.concatenate([np.diff(one) for one in ptr])
    return Case(
        np.concatenate(arrival),
        np.concatenate(size),
        np.concatenate([[0], np.cumsum(lengths)]),
        np.concatenate(idx),
        topology.capacity_bytes_per_s,
    )


def rings(topology: Topology, groups: list[list[int]], per_group: int, megabytes: float, seed: int = 0) -> Case:
    """Each group runs `per_group` all-reduces of about that size at random times, `BUSY` of the time if alone."""
    rng = np.random.default_rng(seed)
    alone_ns = 2 * megabytes * 1e6 / topology.cluster.scale_out.bandwidth_bytes_per_s * 1e9
    parts = []
    for group in groups:
        flows = flows_of("all_reduce", 1.0, group, topology)
        for at in rng.uniform(0, alone_ns / BUSY * per_group, per_group).astype(np.int64).tolist():
            size = flows.bytes_total * megabytes * 1e6 * rng.uniform(0.5, 1.5)
            parts.append((np.full(len(size), at), size, flows.link_ptr, flows.link_idx))
    return joined(parts, topology)


def data_parallel(per_group: int) -> Case:
    """Tensor parallelism 8 inside nodes: 8 rails, on each 4 groups of 64 ranks; nothing meets but a group's own."""
    topology = topology_of(parse_cluster(f"h100-sxm:{GPUS}"))
    groups = [list(range(part * 512 + rail, (part + 1) * 512, 8)) for rail in range(8) for part in range(4)]
    return rings(topology, groups, per_group, 100.0)


def oversubscribed(per_group: int) -> Case:
    """32 jobs of 64 GPUs scattered over pods of 256, fat tree 4:1."""
    cluster = cluster_with(
        parse_cluster(f"h100-sxm:{GPUS}"), rail_optimised=False, oversubscription=4.0, gpus_per_pod=256
    )
    nodes = np.random.default_rng(1).permutation(GPUS // 8).reshape(32, 8)
    groups = [sorted(int(node) * 8 + gpu for node in job for gpu in range(8)) for job in nodes]
    return rings(topology_of(cluster), groups, per_group, 400.0)


def scattered(n: int) -> Case:
    """Single flows between random GPUs through uplinks that are full: each change may reach hundreds of flows."""
    cluster = cluster_with(
        parse_cluster(f"h100-sxm:{GPUS}"), rail_optimised=False, oversubscription=4.0, gpus_per_pod=256
    )
    topology, rng = topology_of(cluster), np.random.default_rng(2)
    source, target = rng.integers(0, GPUS, n), rng.integers(0, GPUS, n)
    ptr, idx = paths(topology, source, target)
    size = rng.lognormal(np.log(20e6), 1.0, n)
    arrival = np.sort(rng.uniform(0, n * 20e6 * 1.6 / (8 * 3.2e12) * 1e9 * 1.1, n)).astype(np.int64)
    return Case(arrival, size, ptr, idx, topology.capacity_bytes_per_s)


class Step(NamedTuple):
    """What `replay` takes."""

    graph: Graph
    duration_ns: np.ndarray
    slowdown: Slowdown | None
    sharing: Sharing


def expert_layers(programs: int, layers: int, interferes: bool) -> Step:
    """Each layer: compute, all-to-all, compute; beside it an all-reduce. Alone they take 0.9 and 0.8 of one NIC."""
    rng, builder = np.random.default_rng(0), GraphBuilder()
    demand_of, kind_class = [], []
    for program in range(programs):
        compute, expert, data = (builder.stream(program, name) for name in ("compute", "expert", "data"))
        for _ in range(layers):
            first, exchange, reduce = rng.integers(1_000, 50_000, 3).tolist()
            a = builder.op(OpKind.COMPUTE, compute, duration_ns=first)
            b = builder.op(OpKind.COLLECTIVE, expert, duration_ns=exchange, after=[a])
            builder.op(OpKind.COLLECTIVE, data, duration_ns=reduce, after=[a])
            builder.op(OpKind.COMPUTE, compute, duration_ns=first, after=[b])
            demand_of += [-1, 2 * program, 2 * program + 1, -1]
            kind_class += [1, 2, 2, 1]
    n = 2 * programs
    nics = np.repeat(2 * np.arange(programs), 2)
    sharing = Sharing(
        demand_of=np.array(demand_of, np.int32),
        link_ptr=2 * np.arange(n + 1),
        link_idx=np.stack([nics, nics + 1], axis=1).ravel().astype(np.int32),
        use=np.tile([45e9, 45e9, 40e9, 40e9], programs),
        weight=np.ones(n),
        capacity=np.full(n, 50e9),
    )
    factor = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.2], [0.0, 0.1, 0.0]])
    slowdown = Slowdown(np.array(kind_class, np.uint8), factor) if interferes else None
    return Step(builder.build(), builder.duration_ns(), slowdown, sharing)


def scattered_jobs(steps: int, ratio: float) -> Step:
    """32 jobs of 64 GPUs scattered over pods of 256, fat tree: compute 1 to 4 times as long as the all-reduce after."""
    cluster = cluster_with(
        parse_cluster(f"h100-sxm:{GPUS}"), rail_optimised=False, oversubscription=ratio, gpus_per_pod=256
    )
    topology, rng, builder = topology_of(cluster), np.random.default_rng(1), GraphBuilder()
    nodes = rng.permutation(GPUS // 8).reshape(32, 8)
    groups = [sorted(int(node) * 8 + gpu for node in job for gpu in range(8)) for job in nodes]
    demands = [demand(flows_of("all_reduce", 400e6, group, topology), topology) for group in groups]
    for job, one in enumerate(demands):
        stream = builder.stream(job, "step")
        for size in rng.uniform(0.5, 1.5, steps).tolist():
            builder.op(OpKind.COMPUTE, stream, duration_ns=round(one.seconds * 1e9 * rng.uniform(1, 4)))
            builder.op(OpKind.COLLECTIVE, stream, duration_ns=round(one.seconds * 1e9 * size))
    demand_of = np.full((32, steps, 2), -1)
    demand_of[:, :, 1] = np.arange(32)[:, None]
    sharing = sharing_of(demand_of.ravel(), demands, topology.capacity_bytes_per_s)
    return Step(builder.build(), builder.duration_ns(), None, sharing)


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Best of `repeats`."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begin)
    return best


def plain_seconds(case: Case, n: int) -> float:
    """Seconds per change of the plain twin on the first `n` flows."""
    first = np.sort(np.argsort(case.arrival_ns, kind="stable")[:n])
    bounds = [(int(case.link_ptr[f]), int(case.link_ptr[f + 1])) for f in first]
    paths_of = [dict.fromkeys(case.link_idx[a:b].tolist(), 1.0) for a, b in bounds]
    size, arrival = case.bytes_total[first].tolist(), case.arrival_ns[first].tolist()
    capacity = case.capacity.tolist()
    begin = time.perf_counter()
    naive = plainly_replayed(arrival, size, capacity, paths_of, [1.0] * n)
    taken = time.perf_counter() - begin
    ptr = np.concatenate([[0], np.cumsum([b - a for a, b in bounds])])
    idx = np.concatenate([case.link_idx[a:b] for a, b in bounds])
    assert replay_flows(arrival, size, ptr, idx, capacity).tolist() == naive
    return taken / (2 * n)


def main() -> None:
    """Print one line per network. With an argument: that many times as many flows."""
    scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    cases = {
        "rings on rails": (data_parallel(int(200 * scale)), 1_024),
        "rings, fat tree 4:1": (oversubscribed(int(20 * scale)), 1_024),
        "scattered, fat tree": (scattered(int(100_000 * scale)), 200),
    }
    for name, (case, sample) in cases.items():
        arguments = (case.arrival_ns, case.bytes_total, case.link_ptr, case.link_idx, case.capacity)
        replay_flows(*arguments)
        taken = seconds(lambda a=arguments: replay_flows(*a), 5)
        rate = 2 * case.n / taken
        used = len(np.unique(case.link_idx))
        print(
            f"{name:20s} {case.n:9,} flows {used:6,} links {taken:7.3f} s {rate / 1e6:6.2f} M changes/s "
            f"{plain_seconds(case, sample) * rate:9,.0f}x plain Python"
        )
    print("\ninside the replay of a graph")
    steps = {
        "layers on NICs": expert_layers(64, int(2_000 * scale), False),
        "... interfering": expert_layers(64, int(2_000 * scale), True),
        "jobs, fat tree 2:1": scattered_jobs(int(3_000 * scale), 2.0),
        "jobs, fat tree 4:1": scattered_jobs(int(3_000 * scale), 4.0),
    }
    for name, step in steps.items():
        wide = step._replace(sharing=replace(step.sharing, capacity=step.sharing.capacity * 1e3))
        plain = replay(*step[:3])
        assert np.array_equal(replay(*wide).end_ns, plain.end_ns)
        longer = replay(*step).makespan_ns / plain.makespan_ns
        taken, free, without = (seconds(lambda a=a: replay(*a), 5) for a in (step, wide, step[:3]))
        n_flows = int((step.sharing.demand_of >= 0).sum())
        print(
            f"{name:20s} {n_flows:9,} flows {taken:7.3f} s {2 * n_flows / taken / 1e6:6.2f} M changes/s; step "
            f"{longer:.2f}x as long; wide links: {free * 1e3:.0f} ms, no links: {without * 1e3:.0f} ms"
        )


if __name__ == "__main__":
    main()
