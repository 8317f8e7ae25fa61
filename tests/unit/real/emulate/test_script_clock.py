"""Times that are asked for, timelines and prices."""

import gzip
import json
import statistics
import threading
import time
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")

from windtunnel.files.trace import trace_bytes
from windtunnel.physics.hardware import parse_cluster
from windtunnel.real.capture.virtual_world.work import wait_until
from windtunnel.real.emulate.clock import script_clock
from windtunnel.real.emulate.clock.script_clock import Awaited, HangError, ScriptClock
from windtunnel.real.emulate.conductor import Conductor, Ticket
from windtunnel.real.emulate.observe import ObservedStep
from windtunnel.real.emulate.peers.arrivals import Span
from windtunnel.real.emulate.peers.cohort import Watched
from windtunnel.real.emulate.peers.host_program import Event
from windtunnel.real.emulate.peers.prices import group_on, seconds_on
from windtunnel.real.emulate.timeline import events_of_peer, events_of_real, from_first
from windtunnel.studies.programs.communication import Communication


def call(sequence: int = 0, kind: str = "all_reduce", size: int = 1024, **more: Any) -> Communication:
    return Communication(kind, "0", (0, 1), 0, size, sequence=sequence, **more)


def due(ask: Any, thread: int | None = None) -> Awaited:
    def span() -> Span | None:
        at = ask()
        return None if at is None else Span(at, at)

    ticket = Ticket(0, None, span, 0.0)
    return Awaited(ticket, call(), threading.get_ident() if thread is None else thread, lambda one: 4.0)


def test_the_first_who_asks_how_long_there_is_left_begins_to_wait() -> None:
    one = due(lambda: time.perf_counter() + 50.0)
    assert one.asked_at is None
    assert one.seconds_left() == pytest.approx(50.0, abs=5.0)
    assert one.asked_at == 4.0


def test_a_time_that_is_not_known_yet_is_asked_for_again() -> None:
    known: list[float] = []
    one = due(lambda: known[0] if known else None, thread=-1)
    assert one.end_s() is None
    assert 0.0 < one.seconds_left() < 0.01
    known.append(50.0)
    assert one.end_s() == 50.0
    assert one.asked_at is None  # another thread is not the one that waits


@pytest.fixture
def clock_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A microsecond passes with every look at the clock, whatever else the machine does."""
    now = [100.0]

    def look() -> float:
        now[0] += 1e-6
        return now[0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    for name, one in (("perf_counter", look), ("thread_time", look), ("sleep", sleep)):
        monkeypatch.setattr(time, name, one)


@pytest.mark.usefixtures("clock_of_its_own")
def test_a_wait_for_what_never_comes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_clock, "PATIENCE_S", 0.5)
    one = due(lambda: None)
    assert one.seconds_left() > 0.0
    time.sleep(1.0)
    with pytest.raises(HangError, match=r"waits for all_reduce in group 0 .*would hang here too"):
        one.seconds_left()


@pytest.mark.usefixtures("clock_of_its_own")
def test_a_listener_sees_when_the_host_began_to_wait() -> None:
    made = Conductor(0, 2, lambda one: 0.02, range(2))
    listening = ScriptClock(made)
    listening.end_step()
    for number in range(2):
        asked = listening.begin(call(number))
        assert asked is not None
        wait_until(asked)
        listening.on_wait(call(number))
        listening.end_step()
    assert made.steps[-1].events == (Event(False, 0), Event(True, 0))
    assert made.steps[-1].blocked == pytest.approx(0.02, abs=0.01)
    assert sum(made.steps[-1].seconds) < 0.01


def steps_of(price_s: float, virtual_s: float, computing_s: float) -> tuple[list[float], list[ObservedStep]]:
    """Seven steps of a call that takes the virtual world some time, a wait, and computing: by the wall, and as seen."""
    made = Conductor(0, 2, lambda one: price_s, range(2))
    listening = ScriptClock(made)

    @listening.own.around
    def answered(number: int) -> Any:
        asked = listening.begin(call(number))
        spin(virtual_s)
        return asked

    listening.end_step()
    wall = []
    for number in range(7):
        begun = time.perf_counter()
        wait_until(answered(number))
        listening.on_wait(call(number))
        spin(computing_s)
        wall.append(time.perf_counter() - begun)
        listening.end_step()
    return wall, list(made.steps)


@pytest.mark.usefixtures("clock_of_its_own")
def test_what_the_virtual_world_computes_is_made_up_for_by_a_wait() -> None:
    wall, seen = steps_of(price_s=0.02, virtual_s=0.01, computing_s=0.01)
    quickest = min(one.ended - one.begin_s for one in seen)
    assert 0.03 <= quickest < 0.038
    assert 0.02 < min(wall) < 0.038
    # The median: on a busy machine a step may lose its core in the middle of the wait, or before it.
    assert statistics.median(one.blocked for one in seen) == pytest.approx(0.02, abs=0.005)


@pytest.mark.usefixtures("clock_of_its_own")
def test_what_no_wait_makes_up_for_lengthens_the_script_not_the_rank() -> None:
    wall, seen = steps_of(price_s=0.0, virtual_s=0.02, computing_s=0.01)
    assert min(wall) >= 0.03
    assert 0.01 <= min(one.ended - one.begin_s for one in seen) < 0.02


@pytest.mark.usefixtures("clock_of_its_own")
def test_a_wait_that_nobody_sees_makes_up_for_it_by_the_optimizer() -> None:
    """DDP's reducer waits in C++: what was begun in the step and is done was waited for."""
    listening = ScriptClock(Conductor(0, 2, lambda one: 0.03, range(2)))
    listening.end_step()
    behind = []
    for number in range(5):
        with listening.own.standing():
            asked = listening.begin(call(number))
            spin(0.01)
        assert isinstance(asked, Awaited)
        while (due := asked.end_s()) is None or time.perf_counter() < due:
            pass
        listening.optimizer()
        behind.append(listening.own.behind)
        listening.end_step()
    assert min(behind) < 0.003


@pytest.mark.usefixtures("clock_of_its_own")
def test_time_that_is_given_up_is_told() -> None:
    """Each step of 2 ms takes the virtual world 10 ms more: no wait makes up for that, and it is not carried along."""
    listening = ScriptClock(Conductor(0, 2, lambda one: 0.0, range(2)))
    listening.end_step()
    took = 0.0  # by the clock: on a busy machine it is more than was spun
    for number in range(5):
        begun = time.perf_counter()
        with listening.own.standing():
            listening.begin(call(number))
            spin(0.01)
        took += time.perf_counter() - begun
        spin(0.002)
        listening.end_step()
    assert 0.045 <= listening.own.behind + listening.own.given_up <= 1.1 * took
    assert listening.own.given_up > 0.0


def spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_control_messages_are_answered_at_once() -> None:
    told: list[object] = []
    listening = ScriptClock(Conductor(0, 2, lambda one: 1.0, range(2)), started=lambda *one: told.append(one))
    one = call(is_control=True)
    assert listening.begin(one) is None
    assert told == [(one, None)]


def test_prices_know_where_the_members_lie() -> None:
    price = seconds_on(parse_cluster("h100-sxm:16"))
    near = Communication("all_reduce", "0", tuple(range(8)), 0, 1 << 26)
    far = Communication("all_reduce", "1", (0, 8), 0, 1 << 26)
    assert price(far) > price(near) > 0.0
    message = Communication("send", "0", tuple(range(16)), 0, 1 << 26, peer=1)
    assert price(message) < price(Communication("send", "0", tuple(range(16)), 0, 1 << 26, peer=8))
    assert price(call(size=0)) == 0.0
    assert group_on((0, 8), 8).per_domain == 1
    assert group_on(tuple(range(8)), 8).per_domain == 8


def test_the_timeline_has_real_and_virtual_ranks_from_its_first_event_on() -> None:
    step = ObservedStep(
        (call(),), (Event(False, 0), Event(True, 0)), (1.0, 0.0, 0.5), 100.0, 102.0, 0.5,
        spans=((101.0, 101.5),), waits=((0, 101.0, 101.5),),
    )  # fmt: skip
    watched = [
        Watched("compute", 0, 100.0, 101.2),
        Watched("wait", 0, 101.2, 101.5, call()),
        Watched("communication", 0, 101.2, float("nan"), call(), None),
    ]
    events = [*events_of_real(0, step), *events_of_peer(3, watched, "slow by 1.2")]
    document = json.loads(gzip.decompress(trace_bytes("a title", from_first(events), {"cluster": "c"})))
    assert document["otherData"] == {"title": "a title", "cluster": "c"}
    bars = [(one["pid"], one["name"], one["ts"], one["dur"]) for one in document["traceEvents"] if one["ph"] == "X"]
    assert bars == [
        (0, "compute", 0.0, 1e6),
        (0, "wait for all_reduce", 1e6, 5e5),
        (0, "compute", 1.5e6, 5e5),
        (0, "all_reduce 1.02 kB", 1e6, 5e5),
        (3, "compute", 0.0, 1.2e6),
        (3, "wait for all_reduce", 1.2e6, pytest.approx(3e5)),
    ]
    names = [one["args"]["name"] for one in document["traceEvents"] if one["name"] == "process_name"]
    assert names == ["rank 0 (real)", "rank 3 (virtual, slow by 1.2)"]
