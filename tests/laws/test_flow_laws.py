"""Laws of shared links: max-min optimality, conservation, symmetry, and what may change when a flow goes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from link_flows import replay_flows, replay_flows_logged
from plain_flows import plainly_replayed, plainly_shared
from rates_at_once import share

from windtunnel.physics.engine.compiled import flow_kernels as kernels
from windtunnel.physics.engine.flows import (
    Paths,
    network_of,
)

quick = settings(max_examples=120, deadline=None)
GB = 1e9


@dataclass(frozen=True)
class Net:
    """Flows on links, as both the compiled and the plain code take them."""

    capacity: list[float]
    paths: list[dict[int, float]]  # link -> use
    weight: list[float]

    def csr(self) -> tuple[list[int], list[int], list[float], list[float]]:
        ptr = np.cumsum([0, *map(len, self.paths)]).tolist()
        idx = [link for path in self.paths for link in path]
        return ptr, idx, self.weight, [use for path in self.paths for use in path.values()]

    def rates(self) -> np.ndarray:
        return share(self.capacity, *self.csr())

    def levels(self) -> np.ndarray:
        return self.rates() / self.weight

    def load(self, rates: np.ndarray) -> list[float]:
        loads = [0.0] * len(self.capacity)
        for path, rate in zip(self.paths, rates, strict=True):
            for link, use in path.items():
                loads[link] += use * rate
        return loads

    def without(self, flow: int) -> Net:
        return Net(
            self.capacity, self.paths[:flow] + self.paths[flow + 1 :], self.weight[:flow] + self.weight[flow + 1 :]
        )


@st.composite
def nets(draw: st.DrawFn, plain: bool = False) -> Net:
    """Up to 7 links and 10 flows; numbers that tie often."""
    n_links, n_flows = draw(st.integers(1, 7)), draw(st.integers(1, 10))
    some = st.sampled_from([1.0, 1.0, 1.0, 0.5, 2.0, 3.0]) if not plain else st.just(1.0)
    capacity = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 7.5, 10.0]), min_size=n_links, max_size=n_links))
    links = st.lists(st.integers(0, n_links - 1), min_size=1, max_size=4, unique=True)
    paths = [{link: draw(some) for link in draw(links)} for _ in range(n_flows)]
    return Net(capacity, paths, [draw(some) for _ in range(n_flows)])


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Net, list[int], list[int]]:
    net = draw(nets())
    n = len(net.paths)
    arrival = draw(st.lists(st.integers(0, 40), min_size=n, max_size=n))
    size = draw(st.lists(st.integers(0, 100), min_size=n, max_size=n))
    return net, arrival, size


@quick
@given(nets())
def test_every_flow_has_a_bottleneck(net):
    rates = net.rates()
    loads, levels = net.load(rates), rates / net.weight
    for flow, path in enumerate(net.paths):
        assert any(
            loads[link] >= net.capacity[link] * (1 - 1e-9)
            and all(levels[flow] >= levels[f] * (1 - 1e-9) for f, other in enumerate(net.paths) if link in other)
            for link in path
        )
    for link, load in enumerate(loads):
        assert load <= net.capacity[link] * (1 + 1e-9)


@quick
@given(nets())
def test_compiled_equals_plain(net):
    np.testing.assert_allclose(net.rates(), plainly_shared(net.capacity, net.paths, net.weight), rtol=1e-12)


@quick
@given(traffic())
def test_replay_equals_all_anew_at_every_instant(given_traffic):
    net, arrival, size = given_traffic
    capacity = [c * GB for c in net.capacity]
    compiled = replay_flows(arrival, size, *net.csr()[:2], capacity, *net.csr()[2:])
    assert compiled.tolist() == plainly_replayed(arrival, size, capacity, net.paths, net.weight)


@quick
@given(traffic())
def test_no_link_ever_carries_more_than_its_capacity_and_every_byte_arrives(given_traffic):
    net, arrival, size = given_traffic
    capacity = [c * GB for c in net.capacity]
    finish, log = replay_flows_logged(arrival, size, *net.csr()[:2], capacity, *net.csr()[2:])
    rates = np.zeros(len(size))
    carried = np.zeros(len(size))
    before = 0
    for at in sorted(set(log.time_ns.tolist())):
        carried += rates * (at - before) / 1e9
        before = at
        for i in np.flatnonzero(log.time_ns == at):
            rates[log.flow[i]] = log.rate[i]
        for load, most in zip(net.load(rates), capacity, strict=True):
            assert load <= most * (1 + 1e-9)
    assert not rates.any()
    last = {int(f): r for f, r in zip(log.flow, log.rate, strict=True) if r > 0}  # an end is rounded up by < 1 ns
    for flow, amount in enumerate(size):
        assert amount * (1 - 1e-9) <= carried[flow] <= amount + last.get(flow, 0.0) * 1e-9 * (1 + 1e-9)
    assert (finish >= arrival).all()


@quick
@given(nets(), st.randoms())
def test_names_do_not_matter(net, random):
    order, place = list(range(len(net.paths))), list(range(len(net.capacity)))
    random.shuffle(order)
    random.shuffle(place)
    capacity = [0.0] * len(place)
    for link, new in enumerate(place):
        capacity[new] = net.capacity[link]
    renamed = Net(
        capacity, [{place[k]: u for k, u in net.paths[f].items()} for f in order], [net.weight[f] for f in order]
    )
    np.testing.assert_allclose(renamed.rates(), net.rates()[order], rtol=1e-12)


@quick
@given(nets(), st.data())
def test_equals_get_equally(net, data):
    flow = data.draw(st.integers(0, len(net.paths) - 1))
    twin = Net(net.capacity, [*net.paths, net.paths[flow]], [*net.weight, net.weight[flow]])
    assert twin.rates()[-1] == pytest.approx(twin.rates()[flow], rel=1e-12)


@quick
@given(nets(), st.data())
def test_the_worst_off_gain_when_a_flow_goes_or_a_link_widens(net, data):
    """Levels in ascending order never fall, compared as words in a dictionary: what was possible still is."""
    flow = data.draw(st.integers(0, len(net.paths) - 1))
    kept = sorted(np.delete(net.levels(), flow))
    assert not_below(sorted(net.without(flow).levels()) if len(net.paths) > 1 else [], kept)
    link = data.draw(st.integers(0, len(net.capacity) - 1))
    wider = [c * (1.5 if k == link else 1.0) for k, c in enumerate(net.capacity)]
    assert not_below(sorted(Net(wider, net.paths, net.weight).levels()), sorted(net.levels()))


def not_below(new: list[float], old: list[float]) -> bool:
    for a, b in zip(new, old, strict=True):
        if not math.isclose(a, b, rel_tol=1e-9):
            return a > b
    return True


def test_yet_a_single_flow_may_lose_when_another_goes():
    """A leaves link 0 to B; B then takes more of link 1, where C had what B could not use."""
    with_a = Net([2.0, 4.0], [{0: 1.0}, {0: 1.0, 1: 1.0}, {1: 1.0}], [1.0] * 3)
    assert with_a.rates().tolist() == [1.0, 1.0, 3.0]
    assert with_a.without(0).rates().tolist() == [2.0, 2.0]


@quick
@given(nets(plain=True), st.lists(st.booleans(), min_size=40, max_size=40), st.randoms())
def test_any_sequence_of_changes_ends_where_a_fresh_start_does(net, together, random):
    ptr, idx, weight, use = net.csr()
    state = network_of(
        np.array(net.capacity), Paths(np.array(ptr), np.array(idx, np.int32), np.array(use), np.array(weight))
    )
    here: set[int] = set()
    unrated: set[int] = set()
    for waits in together:
        flow = random.randrange(len(net.paths))
        if flow in unrated:
            continue
        if flow in here:
            kernels.depart(state, flow)
            here.remove(flow)
        else:
            kernels.arrive(state, flow)
            here.add(flow)
            unrated.add(flow)
        if waits:
            continue
        kernels.rerate(state)
        kernels.settle(state)
        unrated.clear()
        now = sorted(here)
        fresh = plainly_shared(net.capacity, [net.paths[f] for f in now], [net.weight[f] for f in now])
        np.testing.assert_allclose(state.flows["level"][now] * state.flows["weight"][now], fresh, rtol=1e-9)


@quick
@given(
    st.lists(st.tuples(st.integers(1, 10**10), st.integers(0, 10**6)), min_size=1, max_size=6),
    st.lists(st.integers(10**6, 10**12), min_size=1, max_size=4),
)
def test_alone_a_flow_takes_bytes_over_capacity_to_the_nanosecond(flows, capacities):
    """Each flow has the links for itself: on links of its own, or after the one before it."""
    times = [Fraction(size * 10**9, min(capacities)) for size, _ in flows]
    exact = [math.ceil(time) for time in times]
    # Less than this over a whole nanosecond is taken for the rounding of float64, of minutes in nanoseconds.
    rounding = [2 * (Fraction(kernels.ROUNDING_NS) + Fraction(kernels.ROUNDING_SHARE) * time) for time in times]
    least = [math.ceil(time - less) for time, less in zip(times, rounding, strict=True)]
    k = len(capacities)
    own_links = np.arange(len(flows) * k)
    at = [start for _, start in flows]
    sizes = [size for size, _ in flows]
    ptr = np.arange(0, len(flows) * k + 1, k)
    beside = replay_flows(at, sizes, ptr, own_links, capacities * len(flows))
    assert all(low <= found <= high for low, found, high in zip(least, beside - at, exact, strict=True))
    start = np.cumsum([0, *exact[:-1]])
    behind = replay_flows(start, sizes, ptr, own_links % k, capacities)
    ends = behind - np.concatenate([start[:1], np.maximum(start[1:], behind[:-1])])
    assert all(low <= found <= high for low, found, high in zip(least, ends, exact, strict=True))


@quick
@given(traffic(), st.integers(1, 10**6), st.sampled_from([2, 4, 1024]))
def test_time_has_no_origin_and_bytes_no_unit(given_traffic, later, factor):
    net, arrival, size = given_traffic
    ptr, idx, weight, use = net.csr()
    capacity = np.array(net.capacity) * GB
    finish = replay_flows(arrival, size, ptr, idx, capacity, weight, use)
    moved = replay_flows(np.array(arrival) + later, size, ptr, idx, capacity, weight, use)
    assert (moved - later).tolist() == finish.tolist()
    scaled = replay_flows(arrival, np.array(size) * factor, ptr, idx, capacity * factor, weight, use)
    assert scaled.tolist() == finish.tolist()


@pytest.mark.parametrize("seed", range(3))
def test_the_same_on_a_network_of_hundreds_of_flows(seed):
    rng = np.random.default_rng(seed)
    n_links, n = 40, 250
    paths = [dict.fromkeys(rng.choice(n_links, rng.integers(1, 6), replace=False).tolist(), 1.0) for _ in range(n)]
    net = Net((rng.integers(1, 20, n_links) * 1.0).tolist(), paths, rng.choice([1.0, 2.0], n).tolist())
    arrival = rng.integers(0, 2000, n).tolist()
    size = rng.integers(1, 500, n).tolist()
    capacity = [c * GB for c in net.capacity]
    ptr, idx, weight, use = net.csr()
    assert replay_flows(arrival, size, ptr, idx, capacity, weight, use).tolist() == plainly_replayed(
        arrival, size, capacity, paths, net.weight
    )
