"""Each term of a collective's price, worked by hand beside it, on links with round numbers.

Constants are taken from the tables by name: fitting them anew changes nothing here, and leaving a term out does.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from windtunnel.physics.cost.communication import collectives, nccl
from windtunnel.physics.hardware import parse_cluster

UP = nccl.Protocol("simple", 10.0, 2.0, 0.5, 7.0, 5.0)  # base, hop, per byte, ring step, tree step
FABRIC = nccl.Fabric(
    protocols=(UP,), extra_steps=1.0, nvls=UP._replace(base_s=20.0, seconds_per_byte=0.25), nvls_fill_s=3.0,
    direct=(UP,), direct_extra=0.5, ep_base_s=6.0, ep_seconds_per_byte=0.125, peers_for_full_rate=1.0,
    nic_seconds_per_byte=4.0, nic_ep_seconds_per_byte=8.0, nic_latency_s=1.0, bulk_s=0.25, bulk_nvls_s=0.75,
    tree_of_two=1.0, nvls_wide=2.0, nvls_tree_nics=4.0, nvls_tree_rack_s=1.5, nvls_tree_most=99.0,
    measured_up=True, measured_net=True,
)  # fmt: skip
INSIDE, ACROSS = nccl.Shape(4, 4.0, 1, 1.0), nccl.Shape(8, 2.0, 4, 1.0)
S = 1000.0


def by(algorithm: str, kind: str, shape: nccl.Shape, fabric: nccl.Fabric = FABRIC, size: float = S) -> nccl.Cost:
    return next(
        candidate for candidate in nccl.candidates(kind, size, shape, fabric) if candidate.algorithm == algorithm
    )


def test_a_ring_inside_a_domain() -> None:
    # 2 (n - 1) steps of a hop; each byte passes (2 (n - 1) + extra) / n times.
    assert by("ring", "all_reduce", INSIDE).latency_s == 10 + 6 * 2
    assert by("ring", "all_reduce", INSIDE).bandwidth_s == (6 + 1) / 4 * S * 0.5
    for kind in ("all_gather", "reduce_scatter"):
        assert by("ring", kind, INSIDE).latency_s == 10 + 3 * 2
        assert by("ring", kind, INSIDE).bandwidth_s == (3 + 1) / 4 * S * 0.5
    for kind in ("broadcast", "reduce"):  # the whole message past every rank
        assert by("ring", kind, INSIDE).bandwidth_s == S * 0.5
    assert by("ring", "barrier", INSIDE).seconds == by("ring", "all_reduce", INSIDE, size=nccl.SERVICE_BYTES).seconds


def test_a_ring_across_domains_takes_steps_of_the_network_and_its_nics() -> None:
    found = by("ring", "all_reduce", ACROSS)
    assert found.latency_s == 10 + (14 - 6) * 2 + 6 * (7 + 1 + 0.25)  # of 2 (n - 1) steps 2 (m - 1) cross
    assert found.bandwidth_s == S * 14 / 8 * 4 / 2  # k NICs share it, and they are slower than the links
    half = ACROSS._replace(nic_share=2.0)
    assert by("ring", "all_reduce", half).bandwidth_s == 2 * found.bandwidth_s
    over = ACROSS._replace(ring_uplink=3.0)
    assert by("ring", "all_reduce", over).bandwidth_s == 3 * found.bandwidth_s
    fast = FABRIC._replace(nic_seconds_per_byte=0.01)
    small = by("ring", "all_reduce", ACROSS, fast)
    assert small.bandwidth_s == S * (14 + 1) / 8 * 0.5  # the links inside are what takes the time
    tiny = by("ring", "all_reduce", ACROSS, fast, size=10.0)
    assert tiny.latency_s == pytest.approx(10 + 8 * 2 + 6 * (7 + 1 + 10 * 0.01 / 2))  # no longer than the wire itself
    ll = FABRIC._replace(protocols=(UP._replace(name="ll"),))
    assert by("ring", "all_reduce", ACROSS, ll).bandwidth_s == nccl.ON_THE_WIRE["ll"] * found.bandwidth_s


def test_ll_moves_no_more_between_nodes_than_nccl_says_however_fast_they_are_joined() -> None:
    held = FABRIC._replace(protocols=(UP._replace(name="ll"),), ll_seconds_per_byte=(30.0, 50.0))
    two = nccl.Shape(8, 4.0, 2, 1.0)
    assert by("ring", "all_gather", two, held).bandwidth_s == S * 7 / 8 * 30
    assert by("ring", "all_reduce", ACROSS, held).bandwidth_s == S * 14 / 8 * 50
    assert by("tree", "all_reduce", ACROSS, held).bandwidth_s == 2 * S * 50
    assert by("ring", "all_reduce", INSIDE, held).bandwidth_s == by("ring", "all_reduce", INSIDE).bandwidth_s
    simple = held._replace(protocols=(UP,))
    assert by("ring", "all_reduce", ACROSS, simple).bandwidth_s == by("ring", "all_reduce", ACROSS).bandwidth_s


def test_switches_that_pass_a_sum_on_to_another_node_take_longer() -> None:
    quick, two = FABRIC._replace(nic_seconds_per_byte=0.0), nccl.Shape(8, 4.0, 2, 1.0)
    alone, joined = by("nvls", "all_reduce", INSIDE, quick), by("nvls_tree", "all_reduce", two, quick)
    slower = by("nvls_tree", "all_reduce", two, quick._replace(nvls_tree_slower=1.5))
    assert slower.bandwidth_s == 1.5 * joined.bandwidth_s == 1.5 * alone.bandwidth_s


def test_a_tree() -> None:
    found = by("tree", "all_reduce", ACROSS)
    assert found.latency_s == 10 + 2 * ((2 - 1) * 2 + math.log2(4) * (5 + 1 + 0.25))
    assert found.bandwidth_s == S * 2 * 4 / 2  # a double tree of more than two nodes leaves each twice
    two = by("tree", "all_reduce", nccl.Shape(4, 2.0, 2, 1.0))
    assert two.bandwidth_s == S * 1 * 4 / 2
    fast = FABRIC._replace(nic_seconds_per_byte=0.01)
    assert by("tree", "all_reduce", ACROSS, fast).bandwidth_s == 2 * S * 0.5
    assert not [
        candidate for candidate in nccl.candidates("all_gather", S, ACROSS, FABRIC) if candidate.algorithm == "tree"
    ]


def test_the_switch_reduces() -> None:
    found = by("nvls", "all_reduce", INSIDE)
    assert (found.latency_s, found.bandwidth_s) == (20 + 3, 5 / 4 * S * 0.25)
    small = by("nvls", "all_reduce", INSIDE, size=1.0)
    assert small.latency_s == 20 + 5 / 4 * 0.25  # filling the switch is no longer than the message
    wide = nccl.Shape(12, 3.0, 4, 1.0)
    tree = by("nvls_tree", "all_reduce", wide)
    assert tree.latency_s == 20 + 3 + 2 * math.log2(4) * (5 + 1 + 0.75)
    assert tree.bandwidth_s == S * 2 * 4 / 3
    names = {candidate.algorithm for candidate in nccl.candidates("all_reduce", S, ACROSS, FABRIC)}
    assert "nvls_tree" not in names  # of two GPUs in a domain the switch has nothing to add
    near = FABRIC._replace(nvls_tree_most=3)
    assert "nvls_tree" not in {candidate.algorithm for candidate in nccl.candidates("all_reduce", S, wide, near)}


def test_a_domain_beyond_what_was_fitted_fills_and_switches_more_slowly_and_drives_few_nics() -> None:
    ranks = 2 * nccl.FITTED_RANKS
    found = by("nvls", "all_reduce", nccl.Shape(ranks, ranks, 1, 1.0))
    assert found.latency_s == 20 + 3 * 2
    assert found.bandwidth_s == (ranks + 1) / ranks * S * 0.25 * 2
    edge = by("nvls", "all_reduce", nccl.Shape(nccl.FITTED_RANKS, nccl.FITTED_RANKS, 1, 1.0))
    assert edge.latency_s == 20 + 3
    assert edge.bandwidth_s == (nccl.FITTED_RANKS + 1) / nccl.FITTED_RANKS * S * 0.25
    racks = by("nvls_tree", "all_reduce", nccl.Shape(4 * ranks, ranks, 4, 1.0))
    assert racks.bandwidth_s == S * 2 * 4 / 4  # four NICs of them all
    assert racks.latency_s == 20 + 3 * 2 + 1.5 * 3 + 2 * math.log2(4) * (5 + 1 + 0.75)
    many = nccl.RACKS_MOST + 8
    far = by("nvls_tree", "all_reduce", nccl.Shape(many * ranks, ranks, many, 1.0))
    steps = 2 * math.log2(many) * (5 + 1 + 0.75)
    assert far.latency_s == pytest.approx(20 + 3 * 2 + 1.5 * nccl.RACKS_MOST + steps)


def test_one_rank_per_domain_gathers_in_log_steps() -> None:
    alone = nccl.Shape(8, 1.0, 8, 1.0)
    found = by("pat", "all_gather", alone)
    assert found.latency_s == 10 + 3 * (5 + 1 + 0.25)
    assert found.bandwidth_s == pytest.approx(S * 7 / 8 * 4 / nccl.PAT_BANDWIDTH)


def test_all_to_all_and_send_receive_go_straight() -> None:
    inside = by("direct", "all_to_all", INSIDE)
    assert inside.latency_s == 10 + 3 * 2
    assert inside.bandwidth_s == S * (3 + 0.5) / 4 * 0.5  # its own part is copied, and not all of that hides
    across = by("direct", "all_to_all", ACROSS)
    assert across.latency_s == 10 + 7 * 2 + 7 + 1
    assert across.bandwidth_s == S * (8 - 2) / 8 * 4  # what leaves the domain, each rank by its own NIC
    assert by("direct", "all_to_all", ACROSS._replace(direct_uplink=2.0)).bandwidth_s == 2 * across.bandwidth_s
    one = nccl.Shape(2, 2.0, 1, 1.0)
    assert by("direct", "send_recv", one).seconds == 10 + 2 + S * 0.5
    apart = nccl.Shape(2, 1.0, 2, 1.0)
    assert by("direct", "send_recv", apart).seconds == 10 + 2 + 7 + 1 + S * 4


def test_experts_exchange_over_both_networks_at_once() -> None:
    found = by("deep_ep", "ep_dispatch", ACROSS)
    assert (found.latency_s, found.bandwidth_s) == (6.0, S * 6 / 8 * 8)
    inside = by("deep_ep", "ep_combine", INSIDE)
    assert inside.bandwidth_s == S * 3 / 4 * 0.125


def test_a_mesh_has_fewer_links_for_a_small_group() -> None:
    mesh = FABRIC._replace(peers_for_full_rate=7.0)
    pair = nccl.Shape(2, 2.0, 1, 1.0)
    assert by("ring", "all_gather", pair, mesh).bandwidth_s == 7 * by("ring", "all_gather", pair).bandwidth_s
    assert by("ring", "all_gather", INSIDE, mesh).bandwidth_s == pytest.approx(
        7 / 3 * by("ring", "all_gather", INSIDE).bandwidth_s
    )
    assert by("direct", "send_recv", pair, mesh).bandwidth_s == 7 * S * 0.5


def test_the_fastest_is_chosen_and_a_large_sum_across_switches_is_a_tree_of_them() -> None:
    wide = nccl.Shape(12, 3.0, 4, 1.0)
    candidates = nccl.candidates("all_reduce", S, wide, FABRIC)
    assert nccl.chosen("all_reduce", S, wide, FABRIC).seconds == min(one.seconds for one in candidates)
    slow, start = FABRIC._replace(nvls=UP._replace(base_s=1e9)), nccl.NVLS_TREE_FROM_BYTES
    large = nccl.NVLS_TREE_WIDTH * start
    assert nccl.chosen("all_reduce", large, wide, slow).algorithm == "nvls_tree"
    assert nccl.chosen("all_reduce", start, wide, slow).algorithm != "nvls_tree"
    half = nccl.chosen("all_reduce", start * 2, wide, slow)  # half way, on a scale of logarithms
    sizes = nccl.candidates("all_reduce", start * 2, wide, slow)
    best, tree = min(size.seconds for size in sizes), sizes[-1].seconds
    assert half.seconds == pytest.approx(math.sqrt(best * tree))
    early = slow._replace(nvls_tree_from=start / 64)  # between two domains some begin sooner
    assert nccl.chosen("all_reduce", start / 16, nccl.Shape(6, 3.0, 2, 1.0), early).algorithm == "nvls_tree"
    assert nccl.chosen("all_reduce", start / 16, wide, early).algorithm != "nvls_tree"


LINKS = nccl.Links("hopper", "nvlink", 450e9, 0.5e-6, 450e9, "infiniband", 50e9, 2e-6, True)


def test_constants_become_the_rates_of_these_links() -> None:
    constants = nccl.calibration()
    up = constants["scale_up"]["hopper"]
    nets = constants["networks"][LINKS.net_protocol]
    net = {**nets["default"], **nets.get("hopper", {})}
    fabric = nccl.fabric_of(constants, LINKS._replace(up_latency_s=up["reference_latency_us"] * 1e-6))
    for one, (name, spec) in zip(fabric.protocols, up["protocols"].items(), strict=True):
        assert one.name == name
        assert one.base_s == pytest.approx(spec["base_us"] * 1e-6)
        assert one.hop_s == pytest.approx(spec["hop_us"] * 1e-6)
        assert one.seconds_per_byte == pytest.approx(1 / (450e9 * spec["efficiency"]))
        assert one.ring_step_s == pytest.approx(net["ring_step_us"][name] * 1e-6)
        assert one.tree_step_s == pytest.approx(net["tree_step_us"][name] * 1e-6)
    assert fabric.nic_seconds_per_byte == pytest.approx(1 / (50e9 * net["efficiency"]))
    assert fabric.nic_ep_seconds_per_byte == pytest.approx(1 / (50e9 * net["expert_parallel_efficiency"]))
    assert fabric.ep_seconds_per_byte == pytest.approx(1 / (450e9 * constants["expert_parallel"]["efficiency"]))
    assert fabric.ep_base_s == pytest.approx(constants["expert_parallel"]["base_us"] * 1e-6)
    assert fabric.nic_latency_s == 2e-6
    assert fabric.bulk_s == pytest.approx(net["bulk_us"] * 1e-6)
    assert fabric.bulk_nvls_s == pytest.approx(net["bulk_nvls_us"] * 1e-6)
    assert fabric.nvls_fill_s == pytest.approx(up["nvls"]["fill_us"] * 1e-6)
    assert fabric.extra_steps == up["extra_steps"]
    assert fabric.direct_extra == up["direct"]["extra_steps"]
    assert fabric.measured_up
    assert fabric.measured_net
    assert fabric.nvls_tree_from == nccl.NVLS_TREE_FROM_BYTES
    blackwell = nccl.fabric_of(constants, LINKS._replace(generation="blackwell"))
    assert blackwell.nvls_tree_from == constants["scale_up"]["blackwell"]["nvls"]["tree_from_bytes"]
    assert fabric.nvls_tree_slower == up["nvls"]["efficiency"] / up["nvls"]["tree_efficiency"]
    assert fabric.ll_seconds_per_byte == tuple(1e-9 / rate for rate in up["ll_between_gb_per_s"])
    later = nccl.fabric_of(constants, LINKS._replace(up_latency_s=(up["reference_latency_us"] + 1) * 1e-6))
    assert later.protocols[0].hop_s == pytest.approx(fabric.protocols[0].hop_s + 1e-6)
    never = nccl.fabric_of(constants, LINKS._replace(up_latency_s=-1.0))
    assert never.protocols[0].hop_s == pytest.approx(fabric.protocols[0].hop_s / 2)  # what is left is the software's
    assert nccl.fabric_of(constants, LINKS._replace(up_peer_bandwidth=150e9)).peers_for_full_rate == pytest.approx(3.0)
    other = nccl.fabric_of(constants, LINKS._replace(generation="of-nobody", net_protocol="carrier-pigeon"))
    assert not other.measured_up
    assert not other.measured_net
    assert not nccl.fabric_of(constants, LINKS._replace(net_protocol="tcpx")).measured_net  # read off, not fitted
    assert nccl.fabric_of(constants, LINKS._replace(nvlink_sharp=False)).nvls is None


def test_uplinks_are_met_by_what_leaves_the_pod() -> None:
    plain = parse_cluster("h100-sxm:64")
    cluster = replace(plain, oversubscription=4.0, gpus_per_pod=32)
    group = collectives.Group(64, 8, span=64)  # 8 a node, in pods of four nodes
    ring, direct = collectives._uplink_shares(group, 8.0, cluster)
    assert ring == pytest.approx(4.0 * 8 / 32)  # one flow of the pod's four nodes meets the uplink
    assert direct == pytest.approx(4.0 * (64 - 32) / (64 - 8))
    assert collectives._uplink_shares(group, 8.0, plain) == (0.0, 0.0)
    assert collectives._uplink_shares(group, 8.0, replace(cluster, gpus_per_pod=None)) == (4.0, 4.0)
    assert collectives._uplink_shares(group, 8.0, replace(cluster, gpus_per_pod=64)) == (0.0, 0.0)


@pytest.mark.parametrize("network", sorted(nccl.calibration()["networks"]))
@pytest.mark.parametrize("generation", ["ampere", "hopper", "blackwell"])
def test_each_networks_constants_are_its_own_or_its_defaults(network: str, generation: str) -> None:
    nets = nccl.calibration()["networks"][network]
    net = {**nets["default"], **nets.get(generation, {})}
    fabric = nccl.fabric_of(nccl.calibration(), LINKS._replace(net_protocol=network, generation=generation))
    assert (fabric.bulk_s, fabric.bulk_nvls_s) == pytest.approx((net["bulk_us"] * 1e-6, net["bulk_nvls_us"] * 1e-6))
    assert fabric.tree_of_two == net.get("tree_of_two", 1.0)
    assert fabric.nvls_tree_most == net.get("nvls_tree_most", math.inf)
    assert fabric.nic_seconds_per_byte == pytest.approx(1 / (50e9 * net["efficiency"]))
    up = nccl.calibration()["scale_up"].get(generation, {}).get("nvls")
    if up:
        assert fabric.nvls_tree_rack_s == pytest.approx(up.get("tree_rack_us", 0.0) * 1e-6)
        assert fabric.nvls_tree_nics == up.get("tree_nics", math.inf)
        assert fabric.nvls_wide == pytest.approx(up["efficiency"] / up.get("wide_efficiency", up["efficiency"]))
