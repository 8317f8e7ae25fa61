from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.graph import peak


def profile(events: list[tuple[int, int, int]], base: list[int]):
    time, delta, category = (
        (np.array(column, dtype=np.int64) for column in zip(*events, strict=True))
        if events
        else (np.zeros(0, np.int64),) * 3
    )
    return peak(time, delta, category, np.array(base, dtype=np.int64))


def test_peak_by_hand() -> None:
    got = profile([(0, 10, 0), (5, 20, 1), (7, -20, 1), (9, 5, 0), (12, -15, 0)], base=[100, 0])
    assert got.total_bytes.tolist() == [110, 130, 110, 115, 100]
    assert (got.peak_bytes, got.peak_time_ns) == (130, 5)
    assert got.peak_by_category_bytes.tolist() == [110, 20]


def test_at_equal_times_frees_come_first() -> None:
    got = profile([(0, 10, 0), (5, 10, 0), (5, -10, 0)], base=[0])
    assert got.peak_bytes == 10
    assert got.total_bytes.tolist() == [10, 0, 10]


def test_without_events_the_base_is_the_peak() -> None:
    got = profile([], base=[3, 4])
    assert (got.peak_bytes, got.peak_time_ns, got.peak_by_category_bytes.tolist()) == (7, 0, [3, 4])


def test_a_total_that_only_falls_peaks_at_the_base() -> None:
    got = profile([(4, -2, 1)], base=[3, 4])
    assert (got.peak_bytes, got.peak_time_ns, got.peak_by_category_bytes.tolist()) == (7, 0, [3, 4])
    assert got.total_bytes.tolist() == [5]


lifetimes = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 20), st.integers(1, 100), st.integers(0, 2)), max_size=30
)


@given(lifetimes, st.lists(st.integers(0, 50), min_size=3, max_size=3))
def test_the_peak_is_the_largest_sum_of_live_tensors_at_any_time(tensors: list, base: list[int]) -> None:
    events = [(t, size, c) for t, _, size, c in tensors] + [(t + length, -size, c) for t, length, size, c in tensors]
    got = profile(events, base)
    live = [sum(size for t, length, size, _ in tensors if t <= now < t + length) for now in range(80)]
    assert got.peak_bytes == sum(base) + max(live)
    assert got.peak_by_category_bytes.sum() == got.peak_bytes
    assert got.peak_time_ns == (live.index(max(live)) if max(live) else 0)
    if events:
        assert got.total_bytes[-1] == sum(base)
