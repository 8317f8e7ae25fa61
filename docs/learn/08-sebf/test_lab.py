"""Grades lab 8: laws, the worked example, then windtunnel's own coflow replay."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from windtunnel.physics.engine.coflows import replay_coflows
from windtunnel.studies.fleet.flows.trace import Transfer, on_switch

PORTS, RATE = 5, 100.0


def drawn(lab: ModuleType, seed: int, n: int = 5, together: bool = False) -> list[Any]:
    """Coflows with flows at random ports, in the order of arrival."""
    rng = np.random.default_rng(seed)
    arrivals = np.zeros(n) if together else np.sort(rng.uniform(0, 20, n)).round(3)
    coflows = []
    for arrival in arrivals.tolist():
        flows = [
            lab.Flow(int(rng.integers(PORTS)), int(rng.integers(PORTS)), float(rng.integers(1, 2000)))
            for _ in range(rng.integers(1, 6))
        ]
        coflows.append(lab.Coflow(arrival, flows))
    return coflows


def loads(coflows: list[Any]) -> dict[Any, float]:
    total: dict[Any, float] = {}
    for coflow in coflows:
        for flow in coflow.flows:
            for link in flow.links():
                total[link] = total.get(link, 0.0) + flow.rate
    return total


def everything(ports: int = PORTS, rate: float = RATE) -> dict[tuple[str, int], float]:
    return {(way, port): rate for way in ("out", "in") for port in range(ports)}


# ------------------------------------------------------------------------------------------------------------- laws


@pytest.mark.parametrize("seed", range(5))
def test_no_link_carries_too_much_and_none_idles_that_a_flow_could_use(lab: ModuleType, seed: int) -> None:
    coflows = drawn(lab, seed)
    lab.share(coflows, PORTS, RATE)
    load = loads(coflows)
    for link, used in load.items():
        assert used <= RATE * (1 + 1e-9), f"link {link} carries more than its rate"
    for coflow in coflows:
        for flow in coflow.flows:
            assert max(load[link] for link in flow.links()) >= RATE * (1 - 1e-6), f"both links of {flow} have some left"


@pytest.mark.parametrize("seed", range(5))
def test_a_coflow_alone_takes_its_bottleneck(lab: ModuleType, seed: int) -> None:
    (coflow,) = drawn(lab, seed, 1)
    alone_s = lab.bottleneck_s(coflow, RATE)
    assert lab.finish_s([coflow], PORTS, RATE) == pytest.approx([coflow.arrival_s + alone_s])


def test_flows_of_a_coflow_end_together(lab: ModuleType) -> None:
    coflow = lab.Coflow(0.0, [lab.Flow(0, 1, 400.0), lab.Flow(0, 2, 100.0), lab.Flow(3, 2, 50.0)])
    free = everything()
    assert lab.end_together(coflow, free)
    assert [one.rate for one in coflow.flows] == pytest.approx([80.0, 20.0, 10.0])
    assert free["out", 0] == pytest.approx(0.0)
    assert free["in", 2] == pytest.approx(70.0)
    assert free["out", 4] == RATE


def test_a_coflow_that_needs_a_full_link_is_passed_over(lab: ModuleType) -> None:
    coflow = lab.Coflow(0.0, [lab.Flow(0, 1, 400.0), lab.Flow(2, 3, 100.0)])
    free = everything()
    free["in", 1] = 0.0
    before = dict(free)
    assert not lab.end_together(coflow, free)
    assert free == before
    assert [one.rate for one in coflow.flows] == [0.0, 0.0]


def test_what_is_left_goes_first_to_those_that_were_passed_over(lab: ModuleType) -> None:
    """The second needs out of 0, which is full. It still gets what the first leaves of out of 2."""
    first = lab.Coflow(0.0, [lab.Flow(0, 1, 100.0), lab.Flow(2, 3, 10.0)])
    second = lab.Coflow(0.0, [lab.Flow(0, 4, 100.0), lab.Flow(2, 4, 50.0)])
    lab.share([first, second], PORTS, RATE)
    assert [one.rate for one in first.flows] == pytest.approx([100.0, 10.0])
    assert [one.rate for one in second.flows] == pytest.approx([0.0, 90.0])


def test_filling_is_max_min_fair(lab: ModuleType) -> None:
    """Two flows out of port 0 get a half each; the one into port 2 shares what that leaves."""
    coflow = lab.Coflow(0.0, [lab.Flow(0, 1, 9.0), lab.Flow(0, 2, 9.0), lab.Flow(3, 2, 9.0), lab.Flow(4, 4, 0.0)])
    free = everything()
    free["in", 1] = 30.0
    lab.fill(coflow, free)
    assert [one.rate for one in coflow.flows] == pytest.approx([30.0, 50.0, 50.0, 0.0])
    assert free["out", 0] == pytest.approx(20.0)
    assert free["out", 4] == RATE


def test_a_link_with_next_to_nothing_free_is_full(lab: ModuleType) -> None:
    """What rounding leaves of a link, 1e-10 bytes/s, must not make a coflow last for ever."""
    coflow = lab.Coflow(0.0, [lab.Flow(0, 1, 400.0), lab.Flow(2, 3, 100.0)])
    free = everything()
    free["in", 1] = 1e-10
    assert not lab.end_together(coflow, free), "into 1 is as good as full"
    lab.fill(coflow, free)
    assert [one.rate for one in coflow.flows] == [0.0, RATE]


def test_a_flow_ends_also_where_the_clock_is_coarse(lab: ModuleType) -> None:
    """After 100,000 s a float's next time is 1e-11 s away: what should end a flow leaves a little of it."""
    coflows = [lab.Coflow(1e5 + at / 7, [lab.Flow(0, 1 + at, 100.0 / 3), lab.Flow(0, 4, 50.0)]) for at in range(3)]
    total_s = 3 * (100.0 / 3 + 50.0) / RATE
    assert max(lab.finish_s(coflows, PORTS, RATE)) == pytest.approx(1e5 + total_s, abs=1e-6, rel=0)


@pytest.mark.parametrize("seed", range(5))
def test_no_coflow_ends_before_its_bottleneck_and_all_end(lab: ModuleType, seed: int) -> None:
    coflows = drawn(lab, seed)
    least = [one.arrival_s + lab.bottleneck_s(one, RATE) for one in coflows]
    ends = lab.finish_s(coflows, PORTS, RATE)
    for place, (end, bound) in enumerate(zip(ends, least, strict=True)):
        assert end >= bound - 1e-6, f"coflow {place} ends before its bottleneck"
    for place, coflow in enumerate(coflows):
        for flow in coflow.flows:
            assert flow.left_bytes == pytest.approx(0.0, abs=1e-6), f"a flow of coflow {place} has not ended"


# --------------------------------------------------------------------------------------------------- worked example


def test_the_example_of_the_page(lab: ModuleType) -> None:
    long = lab.Coflow(0.0, [lab.Flow(0, 1, 400.0), lab.Flow(0, 2, 200.0)])
    short = lab.Coflow(0.0, [lab.Flow(0, 1, 100.0), lab.Flow(3, 2, 50.0)])
    assert lab.bottleneck_s(long, RATE) == 6.0
    assert lab.bottleneck_s(short, RATE) == 1.0
    lab.share([long, short], PORTS, RATE)
    assert [one.rate for one in short.flows] == pytest.approx([100.0, 100.0])
    assert [one.rate for one in long.flows] == pytest.approx([0.0, 0.0])
    assert lab.finish_s([long, short], PORTS, RATE) == pytest.approx([7.0, 1.0])


# ------------------------------------------------------------------------------------------- windtunnel as the oracle


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_ends_are_windtunnels(lab: ModuleType, stop_clock: Callable[[], object], seed: int, together: bool) -> None:
    """The replay's clock is in whole nanoseconds, so times agree to a microsecond."""
    coflows = drawn(lab, seed, 4, together)
    transfers = [
        Transfer(
            round(one.arrival_s * 1e9),
            np.array([flow.source for flow in one.flows]),
            np.array([flow.target for flow in one.flows]),
            np.array([flow.left_bytes for flow in one.flows]),
        )
        for one in coflows
    ]
    mine = lab.finish_s(coflows, PORTS, RATE)
    stop_clock()  # windtunnel's replay may have to be compiled
    theirs = replay_coflows(on_switch(transfers, PORTS, RATE), "sebf").coflow_ns / 1e9
    assert mine == pytest.approx(theirs.tolist(), abs=1e-6)
