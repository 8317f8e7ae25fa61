"""What ranks communicate between two calls of their step, done again with other connections: real gloo, in threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist

from windtunnel.real.survive.live.group import abort
from windtunnel.real.survive.loop.between import Between, Tape
from windtunnel.real.survive.loop.groups import GROUPS, Replaceable, is_lost_connection

pytestmark = pytest.mark.extras
SIZE = 3


class Rank:
    """One rank's group, and a loop between two calls: each act is a communication whose answer is returned."""

    def __init__(self, store: dist.Store, rank: int, view: str, size: int = SIZE) -> None:
        self.rank, self.store = rank, store
        self.group = Replaceable(store, rank, size, timedelta(seconds=20))
        self.group.inner, self.group.gloo = self.group.connected(dist.PrefixStore(view, store))
        self.tape = Tape(dist.PrefixStore("tape", store), str(rank))
        self.between = Between(is_lost_connection, self.meet, pytest.fail)
        self.between.is_open = True

    def meet(self) -> None:
        abort(self.group.gloo)
        self.group.inner, self.group.gloo = self.group.connected(dist.PrefixStore("second", self.store))
        self.between.again()

    def call(self, name: str, words: list[object], written: int | None, reads: bool = False) -> dist.Work:
        return self.between.call(self.group, name, words, written, reads, self.tape)

    def gathered(self, value: float) -> list[float]:
        every, mine = [torch.zeros(1) for _ in range(SIZE)], torch.tensor([value])
        self.call("allgather", [[every], [mine]], 0)
        mine.zero_()  # it is the script's own again
        return [float(one) for one in every]

    def summed(self, value: float) -> float:
        tensor = torch.tensor([value])
        self.call("allreduce", [[tensor]], 0, reads=True)
        return float(tensor)

    def swapped(self, value: float, peer: int) -> float:
        """Both post their receive first, as in a batch of messages."""
        got = torch.zeros(1)
        come = self.call("recv", [[got], peer, 7], 0)
        self.call("send", [[torch.tensor([value])], peer, 7], None)
        come.wait()
        return float(got)


def at_once(*acts: Callable[[], list[object]]) -> list[list[object]]:
    with ThreadPoolExecutor(len(acts)) as pool:
        return [one.result(timeout=30) for one in [pool.submit(act) for act in acts]]


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_a_rank_that_dies_between_calls_is_replaced_where_it_was(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has done so many of three communications; others wait in one, or are in their next call."""
    monkeypatch.setattr(GROUPS, "groups", [])
    monkeypatch.setattr(GROUPS, "alone", True)  # a group connects when it is told to
    store = dist.HashStore()

    def loop(one: Rank, acts: int = 3) -> list[object]:
        peer = {0: 2, 1: None, 2: 0}[one.rank]
        every = (
            lambda: one.gathered(10.0 + one.rank),
            lambda: peer if peer is None else one.swapped(20.0 + one.rank, peer),
            lambda: one.summed(30.0 + one.rank),
        )
        return [act() for act in every[:acts]]

    def surviving(rank: int) -> list[object]:
        one = Rank(store, rank, "first")
        answers = loop(one)
        if place == 3:  # nothing fails here: the next view tells it
            one.meet()
        one.between.settle()
        return answers

    def dying(rank: int) -> list[object]:
        one = Rank(store, rank, "first")
        loop(one, place)
        abort(one.group.gloo)
        return loop(Rank(store, rank, "second"))

    got = at_once(lambda: surviving(0), lambda: surviving(1), lambda: dying(2))
    assert [one[0] for one in got] == [[10.0, 11.0, 12.0]] * SIZE
    assert [one[1] for one in got] == [22.0, None, 20.0]
    assert [one[2] for one in got] == [93.0] * SIZE


def test_answers_that_the_predecessor_had_are_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision by the clock, which others have followed already."""
    monkeypatch.setattr(GROUPS, "groups", [])
    monkeypatch.setattr(GROUPS, "alone", True)
    one = Replaceable(dist.HashStore(), 0, 1, timedelta(seconds=5))
    one.inner, one.gloo = one.connected(one.store)
    tape, told = Tape(dist.HashStore(), "0"), torch.tensor([1.0])
    between = Between(is_lost_connection, pytest.fail, pytest.fail)
    for value in (1.0, 2.0):
        tape.begin("after 7")
        told.fill_(value)
        between.call(one, "broadcast", [[told]], 0, True, tape)
    assert told.item() == 1.0
    with pytest.raises(RuntimeError, match="expected length 1"):  # the script's own mistake is not waited for
        between.call(one, "allgather", [[[told, told]], [told]], 0, False, tape)


def test_what_the_tape_does_not_have_begins_the_job_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GROUPS, "groups", [])
    monkeypatch.setattr(GROUPS, "alone", True)
    monkeypatch.setattr(GROUPS, "tape", Tape(dist.HashStore(), "0"))
    given_up: list[bool] = []
    between = Between(is_lost_connection, pytest.fail, lambda: given_up.append(True))
    monkeypatch.setattr(GROUPS, "between", between)
    one = Replaceable(dist.HashStore(), 0, 2, timedelta(seconds=5))
    one.barrier().wait()
    assert not given_up
    one.allreduce([torch.ones(1)]).wait()
    assert given_up


def test_what_is_too_much_to_give_again_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GROUPS, "groups", [])
    monkeypatch.setattr(GROUPS, "alone", True)
    monkeypatch.setattr("windtunnel.real.survive.loop.between.INPUT_BYTES", 100)
    one = Replaceable(dist.HashStore(), 0, 1, timedelta(seconds=5))
    one.inner, one.gloo = one.connected(one.store)
    given_up: list[bool] = []
    between = Between(is_lost_connection, pytest.fail, lambda: given_up.append(True))
    for kept, lost in ((1, False), (0, True), (0, True)):
        between.call(one, "allreduce", [[torch.ones(20)]], 0, True, Tape(dist.HashStore(), "0"))
        between.again()
        assert (len(between.since), bool(given_up)) == (kept, lost)
    between.clear()
    between.call(one, "allreduce", [[torch.ones(20)]], 0, True, Tape(dist.HashStore(), "0"))
    assert len(between.since) == 1


def test_within_a_call_a_lost_message_is_an_error_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call is done again as a whole; the message was posted before it."""
    monkeypatch.setattr(GROUPS, "groups", [])
    monkeypatch.setattr(GROUPS, "alone", True)
    store = dist.HashStore()
    first, second = at_once(lambda: [Rank(store, 0, "a", 2)], lambda: [Rank(store, 1, "a", 2)])
    coming = first[0].call("recv", [[torch.zeros(1)], 1, 7], 0)
    first[0].between.is_open = False
    abort(second[0].group.gloo)
    with pytest.raises(RuntimeError, match="gloo"):
        coming.wait()
