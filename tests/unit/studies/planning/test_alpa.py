"""Alpa's two levels against looking at every possibility."""

from __future__ import annotations

import numpy as np
import pytest
from every_staging import every_staging
from hypothesis import given, settings
from hypothesis import strategies as st
from shardings import best_by_trying_all, best_sharding

from windtunnel.studies.planning.alpa.stages import best_stages, submeshes


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 6), st.sampled_from([2, 4, 8]), st.integers(1, 8), st.booleans(), st.integers(0, 2**31))
def test_stages_equal_every_cut(layers: int, total: int, micro_batches: int, bound: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    devices = [width for width in (1, 2, 4, 8) if width <= total]
    times = np.full((layers, layers, len(devices), 1), np.inf)
    for first in range(layers):
        for last in range(first, layers):
            times[first, last, :, 0] = draw.uniform(0.5, 1.5, len(devices)) * (last - first + 1) / np.array(devices)
    successors = draw.integers(0, layers, times.shape) if bound else None
    best = np.inf
    for stages in every_staging(layers, devices, total):
        behind = len(stages) - 1 - np.arange(len(stages))
        allowed = successors is None or all(
            successors[one.first, one.last, one.submesh, 0] >= q for one, q in zip(stages, behind, strict=True)
        )
        if allowed:
            each = [times[stage.first, stage.last, stage.submesh, 0] for stage in stages]
            best = min(best, sum(each) + (micro_batches - 1) * max(each))
    found = best_stages(times, devices, total, micro_batches, successors)
    if found is None:
        assert not np.isfinite(best)
    else:
        assert found.time == pytest.approx(best, rel=1e-12)


def test_submeshes_are_alpas() -> None:
    assert submeshes(2, 8) == ((1, 1), (1, 2), (1, 4), (1, 8), (2, 8))


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 6), st.booleans(), st.integers(0, 2**31))
def test_shardings_equal_enumeration(operators: int, bound: bool, seed: int) -> None:
    pytest.importorskip("highspy")
    draw = np.random.default_rng(seed)
    sizes = draw.integers(2, 5, operators)
    costs = [draw.uniform(0, 10, size).tolist() for size in sizes]
    memory = [draw.uniform(0, 10, size).tolist() for size in sizes]
    edges = {
        (u, v): draw.uniform(0, 10, (sizes[u], sizes[v])).tolist()
        for u in range(operators)
        for v in range(u + 1, operators)
        if draw.random() < 0.5
    }
    most = float(draw.uniform(2, 6) * operators) if bound else None
    found, tried = best_sharding(costs, edges, memory, most), best_by_trying_all(costs, edges, memory, most)
    assert (found is None) == (tried is None)
    if found is not None and tried is not None:
        assert found.cost == pytest.approx(tried.cost, rel=1e-6, abs=1e-9)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(1, 8), st.integers(0, 2**31))
def test_devices_eight_times_as_many_and_as_wide_are_cut_the_same(layers: int, micro: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    widths = (1, 2, 4)
    times = draw.uniform(0.5, 1.5, (layers, layers, 3, 2))
    successors = draw.integers(0, layers, times.shape)
    one = best_stages(times, widths, 8, micro, successors)
    many = best_stages(times, tuple(8 * width for width in widths), 64, micro, successors)
    assert one == many
