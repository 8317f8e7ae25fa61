"""Collectives on a torus against what is published of them, and laws of rings, lines and slices."""

import pytest

from windtunnel.errors import SpecError
from windtunnel.physics.cost.communication.collectives import collective, formula, group_of, latency_and_bandwidth
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
