from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.physics.cost.communication.collectives import (
    KINDS,
    Group,
    collective,
    formula,
    group_of,
    latency_and_bandwidth,
)
from windtunnel.physics.hardware import Cluster, cluster_with, parse_cluster

NAMES = (
    *("a100-80gb-sxm:1024", "h100-sxm:1024", "h800-sxm:1024", "b200-sxm:1024", "gb200:1152", "b300-sxm:1024"),
    *("aws-p5:1024", "aws-p4de:1024", "mi300x:1024", "l40s:1024"),
)
CLUSTERS = {name: parse_cluster(name) for name in NAMES}
MOVING = tuple(kind for kind in KINDS if kind != "barrier")
LAYOUTS = ((2, 1), (3, 1), (4, 1), (5, 1), (8, 1), (16, 1), (72, 1), (512, 1), (2, 8), (16, 8), (128, 8), (24, 4))

names = st.sampled_from(NAMES)
kinds = st.sampled_from(MOVING)
layouts = st.sampled_from(LAYOUTS)
sizes = st.one_of(st.integers(1, 1 << 36), st.integers(0, 36).map(lambda power: 1 << power))
quick = settings(max_examples=150, deadline=None)


def with_links(cluster: Cluster, *, up: float = 1.0, out: float = 1.0, slower_s: float = 0.0) -> Cluster:
    """`cluster` with bandwidths multiplied and latencies lengthened."""

    def changed(link, factor):
        peer = link.peer_bandwidth_bytes_per_s
        return dataclasses.replace(
            link,
            bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * factor,
            peer_bandwidth_bytes_per_s=peer and peer * factor,
            latency_s=link.latency_s + slower_s,
        )

    return cluster_with(cluster, scale_up=changed(cluster.scale_up, up), scale_out=changed(cluster.scale_out, out))


def at_least(slow: float, fast: float) -> bool:
    return slow >= fast * (1 - 1e-9)


@quick
@given(names, kinds, layouts, sizes, sizes)
def test_time_never_falls_with_bytes(name, kind, layout, one, other):
    cluster, (less, more) = CLUSTERS[name], sorted((one, other))
    group = group_of(*layout, cluster)
    assert at_least(collective(kind, more, group, cluster).seconds, collective(kind, less, group, cluster).seconds)
    assert at_least(formula(kind, more, group, cluster), formula(kind, less, group, cluster))


@quick
@given(names, kinds, layouts, sizes, st.floats(0.1, 1.0), st.floats(0.1, 1.0))
def test_time_never_falls_when_bandwidth_shrinks(name, kind, layout, size, up, out):
    cluster = CLUSTERS[name]
    group, slower = group_of(*layout, cluster), with_links(cluster, up=up, out=out)
    assert at_least(collective(kind, size, group, slower).seconds, collective(kind, size, group, cluster).seconds)


@quick
@given(names, st.sampled_from(KINDS), layouts, sizes, st.floats(0, 1e-3))
def test_time_never_falls_when_latency_grows(name, kind, layout, size, slower_s):
    cluster = CLUSTERS[name]
    group, slower = group_of(*layout, cluster), with_links(cluster, slower_s=slower_s)
    assert at_least(collective(kind, size, group, slower).seconds, collective(kind, size, group, cluster).seconds)


@quick
@given(names, kinds, layouts, sizes, st.floats(1.0, 8.0), st.sampled_from((None, 32, 128)))
def test_oversubscription_never_helps(name, kind, layout, size, over, pod):
    cluster = cluster_with(CLUSTERS[name], gpus_per_pod=pod)
    worse = cluster_with(cluster, oversubscription=over)
    group = group_of(*layout, cluster)
    assert at_least(collective(kind, size, group, worse).seconds, collective(kind, size, group, cluster).seconds)


@quick
@given(names, st.sampled_from(("all_reduce", "all_gather", "reduce_scatter", "all_to_all")), sizes, st.integers(1, 6))
def test_more_domains_of_the_same_size_are_never_faster(name, kind, size, doublings):
    cluster = CLUSTERS[name]
    per_domain = min(8, cluster.scale_up_domain)
    few, many = (Group(per_domain * m, per_domain) for m in (2**doublings, 2 ** (doublings + 1)))
    assert at_least(formula(kind, size, many, cluster), formula(kind, size, few, cluster))


@quick
@given(names, st.sampled_from(KINDS), sizes)
def test_a_group_of_one_is_free(name, kind, size):
    price = collective(kind, size, Group(1, 1), CLUSTERS[name])
    assert (price.seconds, price.p5, price.p95) == (0.0, 0.0, 0.0)


@quick
@given(names, st.sampled_from((2, 3, 4, 5, 8)), sizes)
def test_an_all_reduce_lies_between_a_reduce_scatter_and_both_halves(name, ranks, size):
    """Inside a domain. Across domains NCCL runs trees for all-reduce only: it can beat a reduce-scatter by ring."""
    cluster = CLUSTERS[name]
    group = Group(ranks, ranks)
    whole = formula("all_reduce", size, group, cluster)
    scatter, gather = (formula(kind, size, group, cluster) for kind in ("reduce_scatter", "all_gather"))
    assert at_least(whole, scatter)
    assert whole <= (scatter + gather) * 1.001 + 100e-6


@quick
@given(names, kinds, layouts, sizes)
def test_the_band_holds_the_price_and_the_split_sums_to_it(name, kind, layout, size):
    cluster = CLUSTERS[name]
    group = group_of(*layout, cluster)
    price = collective(kind, size, group, cluster)
    assert 0 < price.p5 < price.seconds < price.p95 < math.inf
    _, _, latency_s, bandwidth_s = latency_and_bandwidth(kind, size, group, cluster)
    assert min(latency_s, bandwidth_s) >= 0
    assert latency_s + bandwidth_s == pytest.approx(price.seconds)


@quick
@given(names, layouts, st.sampled_from(("all_reduce", "all_gather", "reduce_scatter", "all_to_all")))
def test_no_collective_beats_its_wires(name, layout, kind):
    """Where latency is nothing, bytes that must cross a rank's links take at least their time at data-sheet rate."""
    cluster, size = CLUSTERS[name], 1 << 40
    group = group_of(*layout, cluster)
    if group.domains == 1:
        must_cross = size * (group.size - 1) / group.size
        seconds = must_cross / cluster.scale_up.bandwidth_bytes_per_s
    else:
        # over the NICs of one domain: everything that its ranks do not hold themselves
        others = (group.size - group.per_domain) / group.size
        per_nic = size * others if kind == "all_to_all" else size * others / group.per_domain
        seconds = per_nic / cluster.scale_out.bandwidth_bytes_per_s
    assert formula(kind, size, group, cluster) >= seconds
