"""How one op is timed, with clocks and devices of our own."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from typing import Any

import pytest

from windtunnel.process import no_garbage_collection
from windtunnel.real.calibrate.timing import (
    Effort,
    HostTimer,
    Sample,
    measure,
    quantile,
    summary,
)


class Scripted:
    """A timer that returns what it is told."""

    def __init__(self, seconds: list[float], disturbed: frozenset[int] = frozenset()) -> None:
        self.seconds, self.disturbed, self.at = seconds, disturbed, 0

    def samples(self, calls: Any) -> list[Sample]:
        found = []
        for call in calls:
            call()
            place = self.at % len(self.seconds)
            found.append(Sample(self.seconds[place], place in self.disturbed))
            self.at += 1
        return found


def test_quantiles_interpolate() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([1.0, 2.0], 0.5) == 1.5
    assert quantile([0.0, 10.0], 0.9) == pytest.approx(9.0)


def test_a_stable_op_needs_few_repetitions_and_a_noisy_one_more() -> None:
    steady = measure([lambda: None], Scripted([1e-3]), Effort(10.0))
    noisy = measure([lambda: None], Scripted([1e-3, 2e-3, 1.2e-3, 1.9e-3, 1.1e-3]), Effort(10.0))
    assert steady.median_s == 1e-3
    assert steady.repetitions == 8
    assert noisy.repetitions >= 60
    assert noisy.p10_s < noisy.median_s < noisy.p90_s


def test_all_buffers_of_the_ring_take_turns() -> None:
    counts = [0] * 4
    calls = [lambda at=at: counts.__setitem__(at, counts[at] + 1) for at in range(4)]
    measure(calls, Scripted([1e-3]), Effort(1.0))
    assert min(counts) >= 2
    assert max(counts) - min(counts) <= 2


def test_disturbed_repetitions_are_left_out() -> None:
    found = measure([lambda: None], Scripted([1e-3, 9e-3, 1e-3, 8e-3], frozenset({1, 3})), Effort(10.0))
    assert found.median_s == 1e-3
    assert 0 < found.disturbed < found.repetitions


def test_where_everything_is_disturbed_the_quickest_third_stands_in() -> None:
    samples = [Sample(1e-3 * (at + 1), True) for at in range(9)]
    found = summary(samples)
    assert found.median_s == pytest.approx(2e-3)
    assert found.disturbed == found.repetitions == 9


def test_what_is_taken_off_never_takes_it_all() -> None:
    samples = [Sample(1e-5)] * 5
    assert summary(samples, 3e-6).median_s == pytest.approx(7e-6)
    found = summary(samples, 1e-3)
    assert 0 < found.p10_s <= found.median_s <= found.p90_s


def test_outliers_are_counted() -> None:
    assert summary([Sample(1.0)] * 9 + [Sample(5.0)]).outliers == 1


def test_the_host_timer_pauses_after_a_disturbance() -> None:
    waits = iter([0, 10**9, 10**9, 10**9, 10**9, 10**9])
    pauses: list[float] = []
    ran: list[int] = []
    timer = HostTimer(lambda: next(waits), pauses.append)
    found = timer.samples([lambda: ran.append(0), lambda: ran.append(1), lambda: ran.append(2)])
    assert [one.disturbed for one in found] == [True, False, False]
    assert len(pauses) == 1
    assert ran == [0, 0, 1, 2]  # the first once more, to wake what slept


def test_the_collector_rests_and_returns() -> None:
    assert gc.isenabled()
    with no_garbage_collection():
        assert not gc.isenabled()
    assert gc.isenabled()


KEEPS = """
from pathlib import Path
from resource import getpagesize
from windtunnel.real.calibrate.timing import give_back_pages, keep_pages
MIB = 1 << 20
held = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize() // MIB
assert keep_pages()
before = held()
blocks = [bytearray(b"x") * (10 * MIB) for _ in range(20)]
pin = bytearray(b"x") * MIB  # what lies at the heap's end keeps it from shrinking
del blocks
kept = held() - before
give_back_pages()
print(kept, held() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library's heap")
def test_a_heap_that_keeps_its_pages_gives_them_back_when_told_to() -> None:
    done = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True)
    kept, left = map(int, done.stdout.split())
    assert kept > 195
    assert left < 20
