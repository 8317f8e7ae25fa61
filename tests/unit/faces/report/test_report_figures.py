from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.faces.report.prediction import categories
from windtunnel.views import text as figures

PARTS = st.lists(st.integers(-(10**13), 10**13), min_size=1, max_size=12)


def _value(text: str) -> float:
    return float(text.split(" ")[0].replace(",", "").replace(figures.MINUS, "-").replace("+", ""))


@given(PARTS, st.integers(1, 10**9))
def test_split_keeps_the_sum_and_each_part(parts: list[int], quantum: int) -> None:
    quanta = figures.split_exactly(parts, quantum)
    assert abs(sum(quanta) * quantum - sum(parts)) * 2 <= quantum
    assert all(abs(n * quantum - part) <= quantum for n, part in zip(quanta, parts, strict=True))


@given(PARTS, st.booleans())
def test_printed_times_add_up(parts: list[int], signed: bool) -> None:
    texts = figures.times(parts, signed)
    assert len({text.split(" ")[1] for text in texts}) == 1
    assert sum(map(_value, texts[:-1])) == pytest.approx(_value(texts[-1]), abs=1e-6)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=12))
def test_printed_sizes_add_up(parts: list[int]) -> None:
    texts = figures.memory_column(parts)
    assert sum(map(_value, texts[:-1])) == pytest.approx(_value(texts[-1]), abs=1e-6)


def test_little_memory_is_not_a_column_of_zeros() -> None:
    assert figures.memory_column([4 << 20, 8 << 20, 1 << 30]) == [
        "4.00 MiB",
        "8.00 MiB",
        "1,024.00 MiB",
        "1,036.00 MiB",
    ]
    assert figures.memory_column([4 << 30, 8 << 20])[0] == "4.00 GiB"


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=9))
def test_shares_add_up_to_100(parts: list[float]) -> None:
    expected = 100.0 if sum(parts) > 0 else 0.0
    assert sum(map(_value, figures.shares(parts))) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0 s"), (999, "999.0 ns"), (1_500, "1.500 us"), (16_977_000_017, "16.98 s"), (123_456_789_012, "2.058 min")],
)
def test_duration(ns: int, text: str) -> None:
    assert figures.duration(ns) == text


@given(st.text())
def test_plain_is_one_printable_line(text: str) -> None:
    assert figures.plain(text).isprintable()


@given(st.lists(st.text(max_size=30), max_size=20))
def test_every_key_gets_a_slot_and_order_does_not_matter(keys: list[str]) -> None:
    time_categories = categories.time_categories(keys)
    assert set(time_categories) == set(keys)
    assert list(categories.time_categories(reversed(keys)).items()) == list(time_categories.items())
    assert all(re.fullmatch(r"[a-z]+-\d", category.slot) for category in time_categories.values())


@pytest.mark.parametrize(
    ("key", "family"),
    [
        ("compute", "compute"),
        ("memory_bound", "memory"),
        ("exposed_nvlink", "comm"),
        ("exposed_tp", "comm"),
        ("exposed communication, network", "comm"),
        ("pipeline_bubble", "bubble"),
        ("waiting", "waiting"),
        ("host", "host"),
        ("optimizer", "optimizer"),
        ("recompute", "compute"),
        ("something else", "other"),
    ],
)
def test_families(key: str, family: str) -> None:
    assert categories.family_of(key) == family
