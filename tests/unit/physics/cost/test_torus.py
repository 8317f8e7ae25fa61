"""Collectives on a torus against what is published of them, and laws of rings, lines and slices."""

from dataclasses import replace

import pytest

from windtunnel.errors import SpecError
from windtunnel.physics.cost.communication import torus
from windtunnel.physics.cost.communication.collectives import collective, formula, group_of, latency_and_bandwidth
from windtunnel.physics.cost.communication.nccl import SERVICE_BYTES, Cost, Fabric, Protocol, Shape
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.hardware.cluster import Cluster

LARGE = 1 << 30
EFFICIENCY = 0.75  # the generic links'


def pod(link_gb_per_s: float, torus: str, chips: int) -> Cluster:
    """A cluster of TPU v6e with another torus."""
    axes = torus.count("x") + 1
    up = {"bandwidth": f"{2 * axes * link_gb_per_s} GB/s", "peer_bandwidth": f"{link_gb_per_s} GB/s", "torus": torus}
    return parse_cluster({"gpu": "tpu-v6e", "gpus": chips, "scale_up_domain": chips, "scale_up": up})


def seconds(kind: str, cluster: Cluster, ranks: int = 0, stride: int = 1, size: float = LARGE) -> float:
    """Without latency."""
    return latency_and_bandwidth(kind, size, group_of(ranks or cluster.n_gpus, stride, cluster), cluster)[3]


def test_a_pod_has_the_all_reduce_and_bisection_bandwidth_that_google_publishes() -> None:
    """TPU v5e: 51.2 and 1.6 TB/s of 256 chips in 16 x 16 with 400 GB/s each, both directions."""
    v5e = pod(50.0, "16x16", 256)
    moved = 2 * LARGE * 255 / 256
    assert 256 * moved / seconds("all_reduce", v5e) == pytest.approx(51.2e12 * EFFICIENCY)
    across = 128 * LARGE / 2  # of all-to-all: what each half sends to the other
    assert across / seconds("all_to_all", v5e) == pytest.approx(1.6e12 * EFFICIENCY)


def test_the_gather_on_a_line_that_was_profiled() -> None:
    """Y of a v5e mesh of 8 x 4, 34 MB in all: 560 us by hand, 680 us profiled ("How to Scale Your Model")."""
    cluster = pod(45.0, "16x16", 32)
    gathered = formula("all_gather", 2048 * 8192 * 2, group_of(4, 1, cluster), cluster)
    assert gathered == pytest.approx(680e-6, rel=0.12)


def test_the_all_reduce_that_was_measured_on_a_pod() -> None:
    """v6e-256: 0.606 GB at 235.8 GB/s, as 2 (n - 1) / n bytes over time (AI-Hypercomputer/tpu-recipes@c8cfe2f)."""
    cluster = parse_cluster("tpu-v6e:256")
    size = 17408 * 17408 * 2
    bandwidth = 2 * size * 255 / 256 / formula("all_reduce", size, group_of(256, 1, cluster), cluster)
    assert bandwidth == pytest.approx(235.8e9, rel=0.15)


def test_an_open_axis_takes_twice_as_long() -> None:
    """A ring brings data to each member from two sides."""
    ring, line = pod(90.0, "16", 16), pod(90.0, "32", 16)
    for kind in ("all_gather", "all_to_all"):
        assert seconds(kind, line) == pytest.approx(2 * seconds(kind, ring))


def test_all_axes_work_at_once() -> None:
    """Three rings of four gather three times as fast as one ring of 64 would."""
    cube = parse_cluster("tpu-v5p:64")
    assert seconds("all_gather", pod(90.0, "64", 64)) == pytest.approx(3 * seconds("all_gather", cube))


def test_a_stretched_slice_is_slower_for_all_to_all_alone() -> None:
    """Its longest axis carries most: 8 chips as in a v5p of 8 x 8 x 8; 32 in a line, eight times as much."""
    compact = parse_cluster("tpu-v5p:512")
    stretched = parse_cluster({"gpu": "tpu-v7x", "gpus": 128, "scale_up": {"slice": "4x4x8"}})
    longer = parse_cluster({"gpu": "tpu-v7x", "gpus": 128, "scale_up": {"slice": "4x1x32", "torus": "16x16x36"}})
    assert seconds("all_to_all", stretched) == pytest.approx(seconds("all_to_all", compact) * 0.9)
    assert seconds("all_to_all", longer) == pytest.approx(8 * seconds("all_to_all", stretched))


def test_neighbours_on_any_axis_are_one_link_apart() -> None:
    """Sends between pipeline stages share links with the stages between."""
    cube = parse_cluster("tpu-v5p:64")
    assert seconds("send_recv", cube, 2, 16) == pytest.approx(seconds("send_recv", cube, 2, 1))
    assert seconds("send_recv", cube, 2, 2) == pytest.approx(2 * seconds("send_recv", cube, 2, 1))


def test_slices_meet_over_their_nics() -> None:
    """Each chip of two pods sends its own shard, after the sum in its slice."""
    two = parse_cluster("tpu-v6e:512")
    inside = seconds("all_reduce", parse_cluster("tpu-v6e:256"))
    nic = two.scale_out.bandwidth_bytes_per_s
    assert seconds("all_reduce", two) - inside == pytest.approx(LARGE / 256 / (nic * 0.8))


def test_other_algorithms_are_refused() -> None:
    """NCCL does not run there."""
    cluster = parse_cluster("tpu-v6e:8")
    with pytest.raises(SpecError, match="torus"):
        collective("all_reduce", LARGE, group_of(8, 1, cluster), cluster, algorithm="ring")


PROTOCOL = Protocol("simple", 10.0, 2.0, 0.5e-6, 7.0, 5.0)  # base, hop, per byte, ring step, tree step
FABRIC = Fabric(
    protocols=(PROTOCOL._replace(seconds_per_byte=99.0), PROTOCOL), extra_steps=1.0, nvls=None, nvls_fill_s=3.0,
    direct=(PROTOCOL,), direct_extra=0.5, ep_base_s=6.0, ep_seconds_per_byte=0.125, peers_for_full_rate=1.0,
    nic_seconds_per_byte=4e-6, nic_ep_seconds_per_byte=8.0, nic_latency_s=1.0, bulk_s=0.25, bulk_nvls_s=0.75,
    tree_of_two=1.0, nvls_tree_most=99.0, measured_up=True, measured_net=True,
)  # fmt: skip
# 4 x 8 chips as two lines of a torus of 16 x 16, whose links carry 8 MB a second; on them a byte takes `LONGER`.
LINK = replace(
    pod(90.0, "16x16", 32).scale_up, bandwidth_bytes_per_s=32e6, peer_bandwidth_bytes_per_s=8e6, latency_s=0.25
)
LONGER = 0.5 * 32.0  # on MB: the protocol's seconds for a byte over the data sheet's
S = 960.0  # MB


def of(kind: str, n: int, k: float, m: int, stride: int = 1, **shape: float) -> Cost:
    """What so many ranks take, `k` in each of `m` slices."""
    return torus.cost(kind, S * 1e6, Shape(n, k, m, **{"nic_share": 1.0, **shape}), stride, 32, LINK, FABRIC)


def test_gathers_and_sums_take_the_links_that_bring_data_and_the_nics_between_slices() -> None:
    inside = of("all_gather", 32, 32.0, 1)
    assert inside.latency_s == (3 + 7) * 0.25
    assert inside.bandwidth_s == pytest.approx(S * 31 / 32 * LONGER / (8 + 8))
    assert of("all_reduce", 32, 32.0, 1).latency_s == 2 * inside.latency_s
    assert of("all_reduce", 32, 32.0, 1).bandwidth_s == pytest.approx(2 * inside.bandwidth_s)
    assert of("broadcast", 32, 32.0, 1).bandwidth_s == pytest.approx(S * LONGER / 16)
    across = of("all_gather", 96, 32.0, 3)
    assert across.latency_s == inside.latency_s + 2 * (7 + 1)
    assert across.bandwidth_s == pytest.approx(inside.bandwidth_s + S / 32 * 2 / 3 * 4)
    assert of("reduce", 96, 32.0, 3).bandwidth_s == pytest.approx(S * LONGER / 16 + S / 32 * 4)
    both = of("all_gather", 96, 32.0, 3, nic_share=2.0, ring_uplink=5.0).bandwidth_s - inside.bandwidth_s
    assert both == pytest.approx(5 * S / 32 * 2 / 3 * 4)
    barrier = of("barrier", 32, 32.0, 1)
    assert barrier.seconds == pytest.approx(2 * 10 * 0.25 + 2 * SERVICE_BYTES * 1e-6 * 31 / 32 * LONGER / 16)
    alone = of("all_gather", 3, 1.0, 3)  # one rank of each slice: nothing moves inside
    assert (alone.latency_s, alone.bandwidth_s) == (2 * 8, pytest.approx(S * 2 / 3 * 4))


def test_exchanges_take_the_busiest_link_or_the_nic_whichever_is_longer() -> None:
    inside = of("all_to_all", 32, 32.0, 1)
    assert inside.latency_s == 10 * 0.25
    assert inside.bandwidth_s == pytest.approx(S * (8 / 4) / 8 * LONGER)  # a line of eight: n / 4
    across = of("ep_dispatch", 96, 32.0, 3)
    assert across.latency_s == 10 * 0.25 + 7 + 1
    assert across.bandwidth_s == pytest.approx(max(S / 3 * 2 / 8 * LONGER, S * 64 / 96 * 4))
    slow = of("ep_combine", 96, 32.0, 3, nic_share=0.001)
    assert slow.bandwidth_s == pytest.approx(S / 3 * 2 / 8 * LONGER)
    assert of("ep_combine", 96, 32.0, 3, direct_uplink=3.0).bandwidth_s == pytest.approx(3 * S * 64 / 96 * 4)


def test_a_send_shares_the_links_on_its_way_or_takes_the_nic() -> None:
    """Five ranks on: one step along the first axis of four, and one along the second."""
    near = of("send_recv", 2, 2.0, 1, stride=5)
    assert (near.latency_s, near.bandwidth_s) == (2 * 0.25, pytest.approx(S / 8 * LONGER))
    far = of("send_recv", 2, 2.0, 1, stride=14)
    assert (far.latency_s, far.bandwidth_s) == (5 * 0.25, pytest.approx(3 * S / 8 * LONGER))
    out = of("send_recv", 2, 1.0, 2, stride=32, nic_share=2.0)
    assert (out.latency_s, out.bandwidth_s) == (7 + 1, S * 4 * 2)
    assert (out.algorithm, out.protocol) == ("torus", "simple")
