"""Laws of coflows: capacity, work conservation, symmetry, closed forms on one link, rates that replay to the ends."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rates_at_once import coflow_rates
from switch_traffic import all_to_all, gather, paired, spread

from windtunnel.errors import SpecError, UnknownNameError
from windtunnel.physics.engine.coflows import MIB, POLICIES, Coflows, Queues, replay_coflows
from windtunnel.studies.fleet.flows import on_switch

quick = settings(max_examples=60, deadline=None)
PORTS = 5
PORT = 100.0 * MIB


@st.composite
def networks(draw: st.DrawFn) -> Coflows:
    """A few coflows between five ports, at different times, with keys that differ."""
    n = draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    transfers = []
    for _ in range(n):
        ports = rng.permutation(PORTS)[: draw(st.integers(2, PORTS))]
        amount = rng.lognormal(math.log(20 * MIB), 1.0, (len(ports), len(ports)))
        transfers.append(all_to_all(int(rng.integers(0, 10**9)), ports.tolist(), amount))
    return on_switch(transfers, PORTS, PORT)._replace(key=rng.random(n))


def loads(coflows: Coflows, rate: np.ndarray) -> np.ndarray:
    used = np.zeros(len(coflows.capacity_bytes_per_s))
    np.add.at(used, coflows.link_idx, np.repeat(rate, np.diff(coflows.link_ptr)))
    return used


def alone_s(coflows: Coflows, coflow: int) -> float:
    mine = np.where(coflows.coflow == coflow, coflows.bytes_total, 0.0)
    return float((loads(coflows, mine) / coflows.capacity_bytes_per_s).max())


@pytest.mark.parametrize("policy", POLICIES)
@quick
@given(coflows=networks(), part=st.floats(0.0, 0.99))
def test_no_link_carries_more_than_it_can_and_none_idles_that_a_flow_could_use(
    policy: str, coflows: Coflows, part: float
) -> None:
    left = coflows.bytes_total * np.linspace(1.0 - part, 1.0, len(coflows.bytes_total))
    rate = coflow_rates(coflows, policy, left)
    used = loads(coflows, rate)
    assert np.all(rate >= 0)
    assert np.all(used <= coflows.capacity_bytes_per_s * (1 + 1e-9))
    full = used >= coflows.capacity_bytes_per_s * (1 - 1e-6)
    paths = coflows.link_idx.reshape(-1, 2)
    assert np.all(full[paths].any(axis=1))


@pytest.mark.parametrize("policy", POLICIES)
@quick
@given(coflows=networks())
def test_no_coflow_ends_before_its_bottleneck_allows_and_all_bytes_are_sent_in_time(
    policy: str, coflows: Coflows
) -> None:
    ends = replay_coflows(coflows, policy)
    for c in range(len(coflows.arrival_ns)):
        assert ends.coflow_ns[c] >= coflows.arrival_ns[c] + math.floor(alone_s(coflows, c) * 1e9) - 1
    # Work conservation: until the last end some link is full, or nothing is there.
    total = loads(coflows, coflows.bytes_total) / coflows.capacity_bytes_per_s
    assert ends.coflow_ns.max() <= coflows.arrival_ns.max() + total.sum() * 1e9 + len(coflows.bytes_total)


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=25, deadline=None)
@given(coflows=networks(), seed=st.integers(0, 10_000))
def test_renaming_ports_and_shuffling_flows_changes_no_end(policy: str, coflows: Coflows, seed: int) -> None:
    rng = np.random.default_rng(seed)
    port = rng.permutation(PORTS)
    link = np.stack([2 * port, 2 * port + 1], axis=1).reshape(-1)
    order = rng.permutation(len(coflows.coflow))
    turned = coflows._replace(
        coflow=coflows.coflow[order],
        bytes_total=coflows.bytes_total[order],
        link_idx=link[coflows.link_idx.reshape(-1, 2)[order]].reshape(-1).astype(np.int32),
    )
    here, there = replay_coflows(coflows, policy).coflow_ns, replay_coflows(turned, policy).coflow_ns
    assert np.allclose(here, there, rtol=0, atol=2_000)  # sums in another order: microseconds of rounding at most


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20, deadline=None)
@given(coflows=networks())
def test_rates_of_each_moment_replay_to_the_same_ends(policy: str, coflows: Coflows) -> None:
    """A plain loop that asks for the rates at each change, and moves bytes itself, ends when the compiled one does."""
    coflows = coflows._replace(arrival_ns=np.zeros_like(coflows.arrival_ns))
    queues = Queues(first_limit_bytes=1e18, first_horizon_bytes=1e12)  # no threshold is crossed: ends are all changes
    left = coflows.bytes_total.copy()
    end, now = np.zeros(len(left)), 0.0
    for _ in range(len(left)):
        if not (left > 0).any():
            break
        rate = coflow_rates(coflows, policy, left, queues)
        going = (left > 0) & (rate > 0)
        step = (left[going] / rate[going]).min()
        now += step
        done = going & (left <= rate * step * (1 + 1e-9))
        left = np.where(done, 0.0, np.maximum(left - rate * step, 0.0))
        end[done] = now
    assert not left.any()
    assert np.allclose(replay_coflows(coflows, policy, queues).flow_ns / 1e9, end, rtol=1e-5, atol=1e-6)


@quick
@given(
    st.lists(
        st.tuples(st.integers(0, 5_000_000_000), st.floats(1.0, 300.0)),
        min_size=1,
        max_size=8,
        unique_by=lambda x: x[0],
    )
)
def test_sebf_on_one_link_is_shortest_remaining_time_first(jobs: list[tuple[int, float]]) -> None:
    coflows = on_switch([paired(at, [0], [1], mib * MIB) for at, mib in jobs], 2, PORT)
    ends = replay_coflows(coflows, "sebf").coflow_ns / 1e9
    left, now, expected = {}, 0.0, {}
    coming = sorted((at / 1e9, mib * MIB / PORT, i) for i, (at, mib) in enumerate(jobs))
    while coming or left:
        if not left:
            now = coming[0][0]
        while coming and coming[0][0] <= now + 1e-12:
            _, alone, job = coming.pop(0)
            left[job] = alone
        first = min(left, key=lambda i: (left[i], jobs[i][0]))
        until = min(now + left[first], coming[0][0] if coming else math.inf)
        left[first] -= until - now
        now = until
        if left[first] <= 1e-9:
            expected[first] = now
            del left[first]
    assert np.allclose(ends, [expected[i] for i in range(len(jobs))], atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_coflow_alone_with_equal_flows_takes_its_bottleneck(policy: str) -> None:
    """Also under Fai, which must slow no flow that the coflow's end waits for."""
    for transfer, seconds in (
        (all_to_all(0, [0, 1, 2, 3], np.full((4, 4), 50 * MIB)), 1.5),
        (gather(0, [0, 1, 2], 4, 50 * MIB), 1.5),
        (spread(0, 4, [0, 1], 50 * MIB), 1.0),
        (paired(0, [0, 1], [2, 3], 50 * MIB), 0.5),
    ):
        alone = on_switch([transfer], PORTS, PORT)._replace(key=np.zeros(1))
        end = replay_coflows(alone, policy).coflow_ns[0]
        assert end == pytest.approx(seconds * 1e9, abs=10)


def test_d_clas_lets_a_newcomer_pass_one_that_has_sent_much() -> None:
    """Two coflows on one link: the first is in the second queue when the second comes, and waits for it."""
    coflows = on_switch([paired(0, [0], [1], 100 * MIB), paired(500_000_000, [0], [1], 5 * MIB)], 2, PORT)
    assert replay_coflows(coflows, "d-clas").coflow_ns / 1e9 == pytest.approx([1.05, 0.55])
    patient = Queues(first_limit_bytes=1000 * MIB)
    assert replay_coflows(coflows, "d-clas", patient).coflow_ns / 1e9 == pytest.approx([1.0, 1.05])


def test_fai_hands_on_what_the_bottleneck_cannot_use() -> None:
    """Coflow 1 waits for port 3, which coflow 0 fills: its other flow leaves port 1 to coflow 2, which comes last."""
    first = paired(0, [0, 0], [1, 3], 400 * MIB)
    coflows = on_switch([paired(0, [2], [3], 400 * MIB), first, paired(1, [4], [1], 150 * MIB)], PORTS, PORT)
    queues = Queues(first_limit_bytes=1e15)
    greedy, aware = (replay_coflows(coflows, policy, queues).coflow_ns / 1e9 for policy in ("d-clas", "fai"))
    assert aware[2] < 0.6 * greedy[2]
    assert aware[0] == pytest.approx(greedy[0])
    assert aware.mean() < greedy.mean()


def test_what_cannot_be_is_refused() -> None:
    coflows = on_switch([paired(0, [0], [1], MIB)], 2, PORT)
    with pytest.raises(UnknownNameError, match="policy of coflows"):
        replay_coflows(coflows, "first-come")
    with pytest.raises(SpecError, match="key"):
        replay_coflows(coflows, "keyed")
    with pytest.raises(SpecError, match="bytes_total"):
        replay_coflows(coflows._replace(bytes_total=np.array([math.nan])), "sebf")
    with pytest.raises(SpecError, match="capacity"):
        replay_coflows(coflows._replace(capacity_bytes_per_s=np.zeros(4)), "sebf")
    with pytest.raises(SpecError, match="link_idx"):
        replay_coflows(coflows._replace(link_idx=np.array([0, 9], np.int32)), "sebf")
    with pytest.raises(SpecError, match="first_limit_bytes"):
        replay_coflows(coflows, "d-clas", Queues(first_limit_bytes=0.0))
