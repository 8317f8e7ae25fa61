"""CoflowSim's clock, to the tick.

`coflows.txt` is ours (21 coflows of the marginals of FB2010-1Hr-150-0 on 50 ports); `coflows_coflowsim.csv` is what
coflow/coflowsim@b61f209 says of them: facts, from a run of that simulator.
"""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from oracles.coflowsim.clock import java_doubles, run_ticks

from windtunnel.studies.fleet.flows import POLICIES, Shuffle, Trace, read_trace, run_flows

pytestmark = pytest.mark.long  # mostly the compiler; validation/fleet/oracles.py holds the whole trace to it

HERE = Path(__file__).parent
TRACE = read_trace(HERE.parent / "studies" / "fleet" / "coflows.txt")
QUANTUM = 8


def published(policy: str) -> dict[str, tuple[int, int]]:
    with (HERE / "coflows_coflowsim.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["policy"] == policy]
    return {row["coflow"]: (int(row["start_tick"]), int(row["finish_tick"])) for row in rows}


@pytest.mark.parametrize("policy", ["sebf", "scf", "fair", "pfp"])
def test_every_end_is_the_published_tick(policy: str) -> None:
    ticks = run_ticks(TRACE, policy)
    ours = zip(ticks.start.tolist(), ticks.finish.tolist(), strict=True)
    assert dict(zip((s.name for s in TRACE.shuffles), ours, strict=True)) == published(policy)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_every_policy_of_the_clock_keeps(policy: str) -> None:
    ticks = run_ticks(TRACE, policy)
    port_bytes_per_tick = 128 * 2**20 / 1024
    for shuffle, start, finish in zip(TRACE.shuffles, ticks.start, ticks.finish, strict=True):
        assert start % 10_240 == 0
        assert start <= shuffle.arrival_ms <= start + 2 * 10_240
        assert finish % QUANTUM == 0
        fullest = max(mib for _, mib in shuffle.reducers) * 2**20
        assert finish - start >= fullest / port_bytes_per_tick - QUANTUM


def test_the_order_of_lines_of_one_policy_does_not_matter_where_arrivals_differ() -> None:
    turned = Trace(TRACE.n_ports, TRACE.shuffles[::-1])
    straight, back = run_ticks(TRACE, "sebf"), run_ticks(turned, "sebf")
    assert np.array_equal(straight.finish, back.finish[::-1])


def test_a_coflow_alone_takes_its_bottleneck_rounded_up_to_quanta() -> None:
    """10 MiB from two senders are rounded to 10, each 5: the receiver's port takes 10 quanta."""
    alone = Trace(4, (Shuffle("a", 3, (0, 1), ((2, 9.5),)),))
    for policy in ("sebf", "scf", "ncf", "lcf", "fifo", "fair", "pfp", "d-clas", "fai"):
        assert run_ticks(alone, policy).finish.tolist() == [80], policy


def test_a_coflow_without_mappers_is_left_out_and_named() -> None:
    trace = Trace(2, (Shuffle("a", 0, (), ((1, 5.0),)), Shuffle("b", 0, (0,), ((1, 5.0),))))
    assert run_ticks(trace, "sebf").finish.tolist() == [-1, 40]
    assert run_flows(trace, "sebf").ignored == ("a",)


def test_random_numbers_are_those_of_java() -> None:
    """`new java.util.Random(42).nextDouble()`, three times."""
    expected = [0.7275636800328681, 0.6832234717598454, 0.30871945533265976]
    assert list(itertools.islice(java_doubles(42), 3)) == expected
