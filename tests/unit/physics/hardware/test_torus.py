"""Slices of a torus: the shapes that clouds sell, which axes are rings, and how groups lie on them."""

from collections import Counter, defaultdict
from itertools import product

import pytest

from windtunnel.errors import SpecError
from windtunnel.physics.hardware.catalogue import parse_cluster
from windtunnel.physics.hardware.cluster import Cluster
from windtunnel.physics.hardware.torus import Axis, Extent, axis_rates, extents, slice_of, steps_between

V5P_SHAPES = {  # Google Cloud documentation of TPU v5p, single-slice shapes, read 2026-11-28
    4: "1x2x2", 8: "2x2x2", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8", 512: "8x8x8",
    1024: "8x8x16", 2048: "8x16x16", 4096: "16x16x16",
}  # fmt: skip
V6E_SHAPES = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}


def text_of(cluster: Cluster) -> str:
    """The slice of a whole cluster."""
    return "x".join(str(axis.length) for axis in slice_of(cluster.scale_up, cluster.n_gpus))


@pytest.mark.parametrize(("name", "shapes"), [("tpu-v5p", V5P_SHAPES), ("tpu-v6e", V6E_SHAPES)])
def test_slices_are_those_that_are_sold(name: str, shapes: dict[int, str]) -> None:
    """The shape that a number of chips comes in; one that a file asks for has to have as many."""
    for chips, shape in shapes.items():
        assert text_of(parse_cluster(f"{name}:{chips}")) == shape
    asked = {"gpu": "tpu-v5p", "scale_up": {"slice": "4x8x64"}}
    assert text_of(parse_cluster({**asked, "gpus": 2048})) == "4x8x64"
    with pytest.raises(SpecError, match="2048 chips"):
        parse_cluster({**asked, "gpus": 1024})


def test_axes_are_rings_where_something_closes_them() -> None:
    """v6e: an axis of 16. v5p: slices of whole cubes. Trainium2: four chips each way, half the rate between nodes."""

    def rings(spec: str) -> list[bool]:
        cluster = parse_cluster(spec)
        return [axis.ring for axis in slice_of(cluster.scale_up, cluster.n_gpus)]

    assert rings("tpu-v6e:128") == [False, True]
    assert rings("tpu-v6e:256") == [True, True]
    assert rings("tpu-v5p:32") == [False] * 3
    assert rings("tpu-v5p:128") == [True] * 3
    assert rings("trainium2:16") == [True, True, False]
    ultra = slice_of(parse_cluster("trainium2:64").scale_up, 64)
    assert [axis.bytes_per_s / 1e9 for axis in ultra] == [128.0, 128.0, 64.0]
    assert all(axis.ring for axis in ultra)


def test_groups_lie_on_axes_in_the_order_of_ranks() -> None:
    """Neighbours first; every fourth chip lies on the next axis; every second one shares its links with the others."""
    axes = slice_of(parse_cluster("tpu-v5p:64").scale_up, 64)
    assert [extent.members for extent in extents(axes, 8, 1)] == [4, 2, 1]
    assert [extent.ring for extent in extents(axes, 8, 1)] == [True, False, False]
    assert [extent.members for extent in extents(axes, 16, 4)] == [1, 4, 4]
    shared = extents(axes, 2, 2)[0]
    assert (shared.members, shared.gap, shared.ring, shared.bytes_per_s) == (2, 2, True, 45e9)
    assert steps_between(axes, 3) == (1, 0, 0)
    assert steps_between(axes, 4 + 2) == (2, 1, 0)


@pytest.mark.parametrize(
    "given",
    [
        {"slice": "4x4"},
        {"slice": "2x2x30"},
        {"torus": "4by4"},
        {"torus": "2x2x2x2"},
        {"torus": "9" * 5000},
        {"cube": 0},
    ],
)
def test_shapes_that_cannot_be_are_refused(given: dict[str, object]) -> None:
    """One error that names the key."""
    with pytest.raises(SpecError, match=next(iter(given))):
        parse_cluster({"gpu": "tpu-v5p", "gpus": 64, "scale_up": given})
    with pytest.raises(SpecError, match="8 chips of the torus"):
        parse_cluster({"gpu": "tpu-v5p", "gpus": 64, "scale_up": {"torus": "2x2x2"}})
    with pytest.raises(SpecError, match=r"slice.*torus"):
        parse_cluster({"gpu": "h100-sxm", "gpus": 8, "scale_up": {"slice": "2x4"}})


@pytest.mark.parametrize(
    ("members", "ring", "part"), [(3, True, 1 / 3), (4, True, 1 / 2), (5, True, 3 / 5), (4, False, 1.0)]
)
def test_the_busiest_link_of_an_exchange_carries_all_ways_that_lead_over_it(
    members: int, ring: bool, part: float
) -> None:
    """Of 3 in a ring each sends a third to the right; of 5 a fifth over one hop and another over two."""
    assert Extent(members, 1, 1.0, ring).crossing == pytest.approx(part)


def ways(n: int, ring: bool, start: int, end: int) -> list[list[tuple[int, int]]]:
    """The shortest ways from chip to chip, as links (from, direction): two where both sides of a ring are alike."""
    right = (end - start) % n if ring else end - start
    both = {
        direction: [((start + direction * i) % n, direction) for i in range(hops)]
        for direction, hops in ((1, right), (-1, n - right if ring else -right))
        if hops > 0
    }
    shortest = min(map(len, both.values()))
    return [way for way in both.values() if len(way) == shortest]


@pytest.mark.parametrize("ring", [True, False])
@pytest.mark.parametrize("n", range(2, 10))
def test_crossing_and_hops_are_what_walking_every_message_counts(n: int, ring: bool) -> None:
    load: dict[tuple[int, int], float] = defaultdict(float)
    furthest = 0
    for start, end in product(range(n), repeat=2):
        if start != end:
            found = ways(n, ring, start, end)
            furthest = max(furthest, len(found[0]))
            for way in found:
                for link in way:
                    load[link] += 1 / (n * len(found))
    extent = Extent(n, 1, 1.0, ring)
    assert extent.crossing == pytest.approx(max(load.values()))
    assert extent.hops == furthest
    assert Extent(n, 3, 1.0, ring).hops == 3 * furthest
    inbound = Counter((chip + direction) % n for chip, direction in load)
    assert extent.links == min(inbound.values())
    axes = (Axis(n, 1.0, ring),)
    assert max(steps_between(axes, distance)[0] for distance in range(n)) == furthest


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 6, 12])
def test_groups_of_one_stride_fill_the_slice_and_share_its_links(stride: int) -> None:
    """Of 4 x 3 x 2 chips every `stride`-th: members over the axes make the group, groups beside it share the links."""
    axes = (Axis(4, 8.0, True), Axis(3, 6.0, True), Axis(2, 4.0, False))
    lie = extents(axes, 24 // stride, stride)
    members = 1
    for extent in lie:
        members *= extent.members
    assert members >= 24 // stride
    for extent, axis in zip(lie, axes, strict=True):
        assert extent.bytes_per_s * extent.gap == axis.bytes_per_s
        assert extent.members == 1 or (extent.members - 1) * extent.gap < axis.length
        assert not extent.ring or (axis.ring and extent.members * extent.gap >= axis.length)
    assert lie[0].ring == (stride < 4)
    assert [extent.members for extent in extents(axes, 5, 1)] == [4, 2, 1]


def test_the_last_axis_has_what_the_others_leave() -> None:
    link = parse_cluster("trainium2:64").scale_up
    rates = axis_rates(link)
    assert 2 * sum(rates) == pytest.approx(link.bandwidth_bytes_per_s)
    assert rates[0] == rates[1] == link.to_one_peer_bytes_per_s
