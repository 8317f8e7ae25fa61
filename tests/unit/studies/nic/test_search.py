"""The split of a data path is the best of all, never worse than one of one dimension, and keeps the limits."""

from __future__ import annotations

from itertools import chain, combinations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import SpecError
from windtunnel.questions.asked.nic import Nic as NicQuestion
from windtunnel.studies.nic.path import DataPath, Edge, Nic, Node
from windtunnel.studies.nic.search import Choice, Class, Costs, split
from windtunnel.studies.nic.study import _sum_of_powers, answer, priced

cycles = st.integers(0, 2000).map(float)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Costs, tuple[Class, Class], float]:
    count = draw(st.integers(1, 4))
    pairs = draw(st.lists(st.tuples(st.integers(0, count - 1), st.integers(0, count - 1)), max_size=4))
    crossings = {pair: draw(cycles) for pair in pairs if pair[0] != pair[1]}
    numbers = st.lists(cycles, min_size=count, max_size=count).map(tuple)
    able, stateless = (draw(st.frozensets(st.integers(0, count - 1))) for _ in range(2))
    hot = draw(st.floats(0, 1))
    classes = (Class("hot", hot, Choice(able)), Class("other", 1 - hot, Choice(able & stateless)))
    return Costs(draw(numbers), draw(numbers), crossings), classes, draw(st.floats(1, 6000))


def best_by_hand(costs: Costs, classes: tuple[Class, ...], most: float) -> float:
    """Every pair of sets, and every mix of two of them that fills the NIC."""

    def sets(allowed: Choice) -> list[Choice]:
        return [Choice(one) for one in chain.from_iterable(combinations(allowed, n) for n in range(len(allowed) + 1))]

    points = []
    for pair in product(*(sets(one.allowed) for one in classes)):
        host, nic = (
            sum(one.share * cost(each) for one, each in zip(classes, pair, strict=True))
            for cost in (costs.host_cycles, costs.nic_cycles)
        )
        points.append((nic, host))
    best = min(host for nic, host in points if nic <= most)
    for (n1, h1), (n2, h2) in product(points, points):
        if n1 <= most < n2:
            best = min(best, h1 + (h2 - h1) * (most - n1) / (n2 - n1))
    return best


@settings(max_examples=80, deadline=None)
@given(cases())
def test_the_split_equals_the_best_of_all(case: tuple[Costs, tuple[Class, Class], float]) -> None:
    costs, classes, most = case
    plans = split(costs, classes, most)
    host, nic = (
        sum(
            plan.weight * one.share * cost(each)
            for plan in plans
            for one, each in zip(classes, plan.chosen, strict=True)
        )
        for cost in (costs.host_cycles, costs.nic_cycles)
    )
    assert sum(plan.weight for plan in plans) == pytest.approx(1.0)
    assert all(each <= one.allowed for plan in plans for one, each in zip(classes, plan.chosen, strict=True))
    assert nic <= most * (1 + 1e-6) + 1e-6
    assert host == pytest.approx(best_by_hand(costs, classes, most), rel=1e-6, abs=1e-3)


NIC = Nic("small", "assumed", 8, 0.8e9, 25e9, 8e9, 60.0, 60.0, 1 << 20, 1 << 40, entries=20_000)
GATEWAY = (
    Node("parse", 60, 40),
    Node("auth", 260, 500, 64, 1),
    Node("prefix-lookup", 420, 700, 64, 2),
    Node("route", 110, 120),
    Node("tls-record", 1900, 350, 64, 1),
)


def path(nodes: tuple[Node, ...], flows: int, skew: float) -> DataPath:
    edges = tuple(Edge(at, at + 1, 1.0) for at in range(len(nodes) - 1))
    return DataPath(nodes, edges, 1500, flows, skew, 2.5e9, 140.0)


# Host cores that enumerating one set for all hot traffic, by quarters of it, came to (assumed NIC of 20,000 flows).
@pytest.mark.parametrize(
    ("rate", "flows", "skew", "enumerated"),
    [(5e6, 10_000, 1.0, 1.4), (5e6, 200_000, 1.0, 1.7), (12e6, 200_000, 1.0, 5.8)],
)
def test_it_is_at_least_as_good_as_one_set_for_all_hot_traffic(
    rate: float, flows: int, skew: float, enumerated: float
) -> None:
    found = priced(path(GATEWAY, flows, skew), NIC, rate)
    assert found.host_cores <= enumerated * 1.05
    assert found.host_cores <= min(found.by_code_cores, found.by_state_cores, found.host_only_cores) + 1e-9
    assert sum(one.share for one in found.partition) == pytest.approx(1.0)


def test_more_flows_than_fit_leave_more_to_the_host() -> None:
    cores = [priced(path(GATEWAY, flows, 0.6), NIC, 5e6).host_cores for flows in (10_000, 200_000, 2_000_000)]
    assert cores == sorted(cores)
    assert cores[0] < cores[-1]


@pytest.mark.parametrize("target", ["100", "0Gb/s", "9Tb/s"])
def test_a_rate_that_no_nic_has_is_one_error(target: str) -> None:
    graph = Path(__file__).parents[4] / "examples" / "nic" / "gateway.yaml"
    with pytest.raises(SpecError, match=f"^--target = '{target}': give a rate with its unit, up to"):
        answer(NicQuestion(graph=str(graph), target=target))


def test_what_the_nic_cannot_do_stays_on_the_host() -> None:
    nodes = (Node("parse", 60, 40), Node("match", 1500, 0, on_nic=False))
    found = priced(path(nodes, 10, 0.0), NIC, 1e6)
    assert all("match" in one.on_host for one in found.partition)


@pytest.mark.parametrize("skew", [0.0, 0.6, 1.0, 1.4])
def test_the_sum_over_many_flows_equals_the_sum_by_hand(skew: float) -> None:
    assert _sum_of_powers(20_000, skew) == pytest.approx(sum(i**-skew for i in range(1, 20_001)), rel=1e-6)
