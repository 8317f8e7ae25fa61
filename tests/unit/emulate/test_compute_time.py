"""The real rank's clock beside the wall clock."""

import threading
import time

import pytest

from windtunnel.emulate.clock.compute_time import ComputeTime


def test_it_stands_still_inside_a_call_and_goes_on_from_there() -> None:
    own, seen = ComputeTime(), []

    @own.around
    def kernel(inner: bool) -> str:
        seen.append((own.now(), own.cpu()))
        time.sleep(0.02)
        if not inner:
            kernel(True)  # a call that makes another is one
        seen.append((own.now(), own.cpu()))
        return "answer"

    before = own.now()
    assert kernel(False) == "answer"
    after = own.now()
    assert len(set(seen)) == 1
    assert before <= seen[0][0] <= after
    assert after - before < 0.02
    assert own.behind == pytest.approx(0.04, abs=0.02)
    assert time.perf_counter() - own.now() == pytest.approx(own.behind, abs=1e-3)


def test_it_is_never_ahead_of_the_wall_clock_when_a_call_is_left() -> None:
    own = ComputeTime()
    target = own.now() + 0.03
    own.around(lambda: own.reach(target))()
    assert time.perf_counter() >= target
    assert own.now() >= target
    assert own.behind < 0.01
    before = own.now()
    own.reach(target)  # long past: nothing moves
    assert before <= own.now() < before + 0.01


def test_a_wait_makes_up_for_what_it_is_behind() -> None:
    own = ComputeTime()
    own.around(lambda: time.sleep(0.02))()
    assert own.behind > 0.015
    own.be_at(time.perf_counter() - 0.001)  # what it waited for was done a millisecond ago
    assert own.behind == pytest.approx(0.001, abs=1e-3)


def test_a_call_that_fails_leaves_it_going_and_other_threads_do_not_move_it() -> None:
    own = ComputeTime()

    def fails() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        own.around(fails)()
    before = own.now()
    elsewhere = threading.Thread(target=own.around(lambda: (time.sleep(0.01), own.reach(before + 9.0))))
    elsewhere.start()
    elsewhere.join()
    assert before < own.now() < before + 1.0
    assert own.behind < 0.01
