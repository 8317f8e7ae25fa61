"""A pool of weights played: every request is answered once, and limits where the answer is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.studies.serving.weight_pool.loop import Servers, SmallModel, System, play_pool, zipf

MODELS = [SmallModel(f"m{i}", 4e8, 0.03) for i in range(8)]
SYSTEMS: tuple[System, ...] = ("pool", "fixed", "cold")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SYSTEMS),
    st.integers(1, 4),
    st.lists(st.tuples(st.floats(0.0, 2.0), st.integers(0, 7)), min_size=1, max_size=40),
)
def test_every_request_is_answered_once_and_never_faster_than_it_computes(
    system: System, gpus: int, sent: list[tuple[float, int]]
) -> None:
    sent = sorted(sent)
    done = play_pool(system, Servers(gpus=gpus), MODELS, [m for _, m in sent], arrivals_s=[t for t, _ in sent])
    assert len(done.latency_s) == len(sent)
    assert all(math.isfinite(x) and x > 0.0299 for x in done.latency_s)
    assert done.loads == 0 if system == "fixed" else done.loads >= len({m for _, m in sent}) >= 1
    last = max(done.ended_s)
    assert last >= len(sent) * 0.0299 / gpus  # a GPU computes one at a time


def test_one_model_that_is_there_is_a_queue_of_fixed_service() -> None:
    """One GPU, one model, one request at a time: after the load, a request each compute time."""
    done = play_pool("pool", Servers(gpus=1), MODELS[:1], [0] * 50, in_flight=1)
    assert done.loads == 1
    assert done.latency_s[1:] == pytest.approx([0.03] * 49)
    assert done.latency_s[0] == pytest.approx(4e8 / 11.25e9 + 4e8 / 16 / 12e9 + 0.03 / 16)  # the network is slowest


def test_a_load_overlaps_and_the_host_saves_the_network() -> None:
    sent = [0, 1] * 10
    slow = Servers(gpus=1, network_bytes_per_s=1e9)
    times = [float(i) for i in range(20)]
    done = play_pool("pool", slow, MODELS, sent, arrivals_s=times)
    assert done.loads == 20
    assert done.host_hits == 18
    assert done.latency_s[2] < 0.2 * done.latency_s[0]
    whole = play_pool("cold", Servers(gpus=1, network_bytes_per_s=1e9, process_s=0.0), MODELS, sent, arrivals_s=times)
    assert all(a < b for a, b in zip(done.latency_s, whole.latency_s, strict=True))


def test_skew_costs_fixed_places_their_throughput_and_not_the_pool() -> None:
    which = zipf(8, 1.2, 4000, 0)
    rates = {}
    for system in ("pool", "fixed"):
        done = play_pool(system, Servers(gpus=4), MODELS, which, in_flight=32, until_s=12.0)
        rates[system] = done.rate_per_s(2.0, 12.0)
    share = max(sum(m % 4 == g for m in which) for g in range(4)) / len(which)
    assert rates["fixed"] == pytest.approx(1.0 / 0.03 / share, rel=0.05)  # the fullest place is the limit
    assert rates["pool"] > 1.3 * rates["fixed"]
    assert rates["pool"] <= 4 / 0.03
