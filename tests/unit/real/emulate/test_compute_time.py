"""The real rank's clock beside the wall clock."""

import threading
import time

import pytest

from windtunnel.real.emulate.clock.compute_time import ComputeTime


def test_it_stands_still_inside_a_call_and_goes_on_from_there() -> None:
    own, seen = ComputeTime(), []

    @own.around
    def kernel(inner: bool) -> str:
        seen.append((own.rank_time_s(), own.cpu()))
        time.sleep(0.02)
        if not inner:
            kernel(True)  # a call that makes another is one
        seen.append((own.rank_time_s(), own.cpu()))
        return "answer"

    before, begun = own.rank_time_s(), time.perf_counter()
    assert kernel(False) == "answer"
    took, after = time.perf_counter() - begun, own.rank_time_s()
    assert len(set(seen)) == 1
    assert before <= seen[0][0] <= after
    assert 0.04 <= own.behind <= took
    earlier, now, later = time.perf_counter(), own.rank_time_s(), time.perf_counter()
    assert earlier <= now + own.behind <= later


def test_it_is_never_ahead_of_the_wall_clock_when_a_call_is_left() -> None:
    own = ComputeTime()
    target = own.rank_time_s() + 0.03
    own.around(lambda: own.reach(target))()
    assert time.perf_counter() >= target
    assert own.rank_time_s() >= target
    behind = own.behind
    assert behind >= 0.0
    own.reach(target)  # long past: nothing moves
    assert own.behind == behind


def test_a_wait_makes_up_for_what_it_is_behind() -> None:
    own = ComputeTime()
    own.around(lambda: time.sleep(0.02))()
    assert own.behind > 0.015
    done = time.perf_counter() - 0.001
    own.be_at(done)  # what it waited for was done a millisecond ago
    assert 0.001 <= own.behind <= time.perf_counter() - done


def test_a_call_that_fails_leaves_it_going_and_other_threads_do_not_move_it() -> None:
    own = ComputeTime()

    def fails() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        own.around(fails)()
    before, behind = own.rank_time_s(), own.behind
    elsewhere = threading.Thread(target=own.around(lambda: (time.sleep(0.01), own.reach(before + 9.0))))
    elsewhere.start()
    elsewhere.join()
    assert before < own.rank_time_s()
    assert own.behind == behind
