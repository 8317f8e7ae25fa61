"""One real rank, played by a clock of our own, among virtual peers."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from windtunnel.real.emulate.conductor import WARM_UP, Conductor
from windtunnel.real.emulate.observe import NO_CPU, Came, Observer, typical
from windtunnel.studies.programs.communication import Communication

PRICE = 0.01
MEMBERS = tuple(range(4))


def call(number: int, group: str = "0", kind: str = "all_reduce") -> Communication:
    return Communication(kind, group, MEMBERS, 0, 1024, sequence=number)


class Script:
    """A rank that computes, begins and waits, with a clock that only moves as it says."""

    def __init__(self, conductor: Conductor, parts: Callable[[int], Sequence[float]], visible: bool = True) -> None:
        self.conductor, self.parts, self.visible = conductor, parts, visible
        self.now, self.cpu, self.sequence = 100.0, 0.0, 0
        self.step_seconds: list[float] = []

    def compute(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds

    def step(self, number: int, calls: int = 2) -> None:
        begun = self.now
        *before, after = self.parts(number)
        asked = []
        for seconds in before[:calls]:
            self.compute(seconds)
            made = call(self.sequence)
            self.sequence += 1
            asked.append((made, self.conductor.begin(made, self.now, self.cpu)))
        for made, ticket in asked:
            entered = self.now
            self.now = max(self.now, ticket.due() or 0.0)
            if self.visible:
                self.conductor.on_wait(made, entered, self.now, self.cpu)
        self.conductor.optimizer(self.now, self.cpu)
        self.compute(after)
        self.conductor.end_step(self.now, self.cpu)
        self.step_seconds.append(self.now - begun)


def conductor(**others: object) -> Conductor:
    return Conductor(0, 4, lambda call: PRICE, range(4), **others)  # type: ignore[arg-type]


@pytest.mark.parametrize("visible", [True, False])
def test_peers_like_me_cost_what_the_communication_costs(visible: bool) -> None:
    played = Script(conductor(), lambda step: (1.0, 0.5, 0.25), visible)
    for number in range(12):
        played.step(number)
    assert played.step_seconds[1:] == pytest.approx([1.76] * 11)  # the first is hidden behind 0.5 s
    assert played.conductor.settled_at is not None
    assert played.conductor.replayed_step_s == pytest.approx(1.76)


@pytest.mark.parametrize("visible", [True, False])
def test_the_real_rank_waits_for_a_slow_peer_and_its_own_program_stays_as_fast(visible: bool) -> None:
    played = Script(conductor(slow={3: 1.5}), lambda step: (1.0, 0.5, 0.25), visible)
    for number in range(20):
        played.step(number)
    assert played.step_seconds[-1] == pytest.approx(1.5 * 1.75 + PRICE)
    program = played.conductor.replay.cohorts[0].program  # type: ignore[union-attr]
    assert program.seconds.sum() == pytest.approx(1.75)


def test_the_plan_holds_once_arrivals_move_by_less_than_a_thousandth() -> None:
    random = np.random.default_rng(1)
    played = Script(conductor(), lambda step: tuple(random.normal((1.0, 0.5, 0.25), 0.002)))
    for number in range(60):
        played.step(number)
    assert played.conductor.settled_at is not None
    assert played.conductor.movement < 1e-3
    assert played.step_seconds[-1] == pytest.approx(1.76, rel=0.02)


def test_a_step_of_another_kind_has_peers_come_with_me_and_the_plan_goes_on() -> None:
    played = Script(conductor(slow={3: 1.5}), lambda step: (1.0, 0.5, 0.25))
    for number in range(10):
        played.step(number)
    played.step(10, calls=1)  # evaluation
    assert played.conductor.unplanned == 0  # it merely ends early
    played.step(11)
    played.step(12)
    assert played.step_seconds[-1] == pytest.approx(1.5 * 1.75 + PRICE, rel=0.01)


def test_a_program_that_changes_for_good_is_learnt_again() -> None:
    played = Script(conductor(slow={3: 1.5}), lambda step: (1.0, 0.5, 0.25))
    for number in range(8):
        played.step(number)
    for number in range(8, 20):
        played.step(number, calls=1)
    assert played.step_seconds[-1] == pytest.approx(1.5 * 1.25 + PRICE, rel=0.01)


def test_peers_are_drawn_from_the_steps_of_the_real_rank() -> None:
    """Of two ranks that take 1 or 2 s at random the slower takes 1.75 s on average."""
    random = np.random.default_rng(2)
    made = Conductor(0, 2, lambda call: 0.0, range(2), jitter=True, seed=3)
    played = Script(made, lambda step: (float(random.integers(1, 3)), 0.0, 0.0))
    for number in range(400):
        played.step(number)
    assert np.mean(played.step_seconds[WARM_UP + 10 :]) == pytest.approx(1.75, abs=0.07)


def test_blocking_that_leaves_no_mark_is_told_by_processor_time() -> None:
    observer = Observer(0.0, 0.0)
    place = observer.begin(call(0), 1.0, 0.5)  # runs at half speed: two wall seconds for one of the processor
    observer.due(place, 5.0)
    observer.optimizer(5.5, 1.0)  # 0.5 s of processor: 1 s of computing, 3.5 s blocked
    seen = observer.end(6.0, 1.25)
    assert seen.seconds == pytest.approx((1.0, 1.0, 0.5))
    assert seen.blocked == pytest.approx(3.5)
    assert [event.waits for event in seen.events] == [False, True]


@pytest.mark.parametrize(
    ("beside", "takes", "ends"),
    [(2.0, 0.5, 3.5), (0.2, 0.5, 1.7), (0.0, 0.5, 1.5), (0.1, 0.2, 1.5), (0.3, 0.2, 1.5), (2.0, 0.2, 3.2)],
)
def test_the_real_rank_shares_its_processor_as_its_peers_do(beside: float, takes: float, ends: float) -> None:
    made = Conductor(0, 2, lambda call: 0.5, range(2), processor_s_of=lambda call: takes)
    now = 10.0
    for number in range(12):
        begun = now
        now += 1.0
        came = now
        now += made.share(now)
        ticket = made.begin(call(number), now, came=Came(came))
        now += beside
        entered = now
        now += made.share(now, ticket)
        now = max(now, ticket.due() or 0.0)
        made.on_wait(call(number), entered, now)
        made.end_step(now)
        assert now - begun == pytest.approx(ends)
    assert made.replayed_step_s == pytest.approx(ends)
    assert made.replay is not None
    assert made.replay.cohorts[0].program.seconds.sum() == pytest.approx(1.0 + beside)


@pytest.mark.parametrize(
    ("between", "ends"),
    [
        (0.0, 2.1),  # the first is done 0.5 after the 1.0, each of the others 0.3 later
        (0.1, 2.1),  # what is computed between them delays none, and is done beside the first
        (0.2, 2.2),  # the second takes the processor from 1.5 on, when the first is done: the third begins at 1.7
    ],
)
def test_in_a_queue_the_real_rank_shares_its_processor_as_its_peers_do(between: float, ends: float) -> None:
    made = Conductor(0, 2, lambda call: 0.5, range(2), processor_s_of=lambda call: 0.2, queued_s_of=lambda call: 0.3)
    now, sequence = 10.0, 0
    for _ in range(12):
        begun = now
        now += 1.0
        tickets = []
        for place in range(3):
            now += between if place else 0.0
            came = now
            now += made.share(now)
            tickets.append((call(sequence), made.begin(call(sequence), now, came=Came(came))))
            sequence += 1
        for one, ticket in tickets:
            entered = now
            now += made.share(now, ticket)
            now = max(now, ticket.due() or 0.0)
            made.on_wait(one, entered, now)
        made.end_step(now)
        assert now - begun == pytest.approx(ends)
    assert made.replayed_step_s == pytest.approx(ends)


def test_what_the_next_step_waits_for_is_no_wait_of_this_one() -> None:
    observer = Observer(0.0)
    for step in range(3):
        now = float(step)
        observer.begin(call(step), now + 0.5, NO_CPU)
        if step:
            observer.on_wait(call(step - 1), now + 0.6, now + 0.7, NO_CPU)
        seen = observer.end(now + 1.0, NO_CPU)
    assert [(event.waits, event.steps_ago) for event in seen.events] == [(False, 0), (True, 1)]


def test_typical_parts_add_up_to_the_median_step() -> None:
    rows = np.random.default_rng(4).lognormal(0.0, 0.5, (31, 6))
    assert typical(rows).sum() == pytest.approx(np.median(rows.sum(axis=1)))
