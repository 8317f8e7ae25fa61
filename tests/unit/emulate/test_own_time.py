"""What the virtual world computes itself, and what is taken off for it."""

import time

import pytest

from windtunnel.capture.script.communication import Communication
from windtunnel.emulate.own_time import OwnTime


def call(bytes_: int = 8) -> Communication:
    return Communication("all_reduce", "0", (0, 1), 0, bytes_)


def test_a_rank_arrives_when_it_enters_the_call_and_what_it_spends_there_is_taken_off() -> None:
    own, one = OwnTime(), call()
    arrived = []

    def kernel() -> str:
        time.sleep(0.02)
        arrived.append(own.began(one)[0])
        time.sleep(0.03)
        return "answer"

    begun = time.perf_counter()
    assert own.around(kernel)() == "answer"
    assert arrived[0] - begun < 0.01
    left = own.off(lambda _: 1.0)(one)
    assert 0.8 < left <= 0.95
    assert own.off(lambda _: 1e-3)(one) == 0.0  # no less than nothing
    assert own.off(lambda _: 1.0)(call(16)) == 1.0  # of another size nothing is known


def test_a_call_that_fails_or_is_no_communication_leaves_nothing_behind() -> None:
    own = OwnTime()

    def fails() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        own.around(fails)()
    assert own.around(lambda: 3)() == 3
    now = time.perf_counter()
    assert own.began(call())[0] >= now  # nothing is under way: it arrives now
