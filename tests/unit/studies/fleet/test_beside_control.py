"""The ladder of the controller beside a service, window by window, as laws of a pure function."""

from dataclasses import replace
from itertools import pairwise

import pytest

from windtunnel.studies.fleet.live.control import PATIENCE, Controller, Window
from windtunnel.studies.fleet.live.groups import LEAST_CORES
from windtunnel.studies.fleet.policies.beyond.oversubscribe import RULES, Running

ALONE_S, TARGET_S = 0.010, 0.011


def guest(number, began_s=0.0, since_checkpoint_s=0.0):
    return Running(number, began_s, 0.5, since_checkpoint_s, 0, True)


def window(p95_s, *, guests=(), cores=2.0, frozen=(), waiting=False, memory=0.5):
    return Window(
        p95_s=p95_s, alone_s=ALONE_S, target_s=TARGET_S, late_s=TARGET_S, lately_late_s=TARGET_S, batch_cores=cores,
        memory_use=memory, guests=guests, frozen=frozenset(frozen), waiting=waiting,
    )  # fmt: skip


def test_cores_fall_by_half_at_most_while_it_is_late_and_never_to_nothing():
    controller = Controller(2.0, own=2)
    cores = []
    for _ in range(12):
        controller.decide(window(0.1, guests=[guest(0)], cores=controller.quota))
        cores.append(controller.quota)
    assert cores[0] == pytest.approx(1.0)
    assert all(later >= max(LEAST_CORES, before / 2) - 1e-12 for before, later in pairwise(cores))
    assert cores[-1] == LEAST_CORES


def test_a_little_late_is_cut_by_as_much():
    controller = Controller(2.0, own=2)
    controller.decide(window(0.0121))
    assert controller.quota == pytest.approx(2.0 * 0.011 / 0.0121)


def test_beyond_the_services_own_cores_there_are_whole_ones_and_each_try_waits_twice_as_long():
    controller = Controller(8.0, own=2)
    assert controller.quota == 2.0
    waits = []
    for _ in range(3):
        calm = 0
        while controller.quota == 2.0:
            controller.decide(window(ALONE_S, guests=[guest(0)]))
            calm += 1
        waits.append(calm)
        assert controller.quota == 3.0
        controller.decide(window(0.02, guests=[guest(0)], cores=3.0))
        assert controller.quota == 2.0
    assert waits == [PATIENCE, 2 * PATIENCE, 4 * PATIENCE]
    controller.decide(window(0.02, guests=[guest(0)], cores=2.0))
    assert controller.quota < 2.0
    for _ in range(2):  # what is the service's own comes back at once
        controller.decide(window(ALONE_S, guests=[guest(0)]))
    assert controller.quota == 2.0


def test_disks_are_a_share_of_what_was_moved_at_most_and_all_with_all_cores():
    controller = Controller(2.0, own=2, quota=0.2)
    assert controller.disk_rate is None  # nobody knows yet what they move
    controller.decide(replace(window(ALONE_S, guests=[guest(0)]), disk_rate=400e6))
    assert controller.disk_rate == pytest.approx(0.2 * 400e6)  # .4 of 2 cores
    controller.decide(replace(window(0.1, guests=[guest(0)], cores=controller.quota), disk_rate=80e6))
    assert controller.disk_rate == pytest.approx(0.1 * 400e6)
    for _ in range(20):
        controller.decide(window(ALONE_S, guests=[guest(0)]))
    assert controller.disk_rate is None


def test_the_ladder_is_cores_then_frozen_then_out_and_the_way_back():
    controller = Controller(2.0, RULES["rose"], own=2)
    guests, frozen, steps = [guest(0, began_s=1.0), guest(1, began_s=2.0)], set(), []
    for _ in range(30):
        action = controller.decide(window(0.1, guests=guests, cores=controller.quota, frozen=frozen))
        if action.freeze is not None:
            frozen.add(action.freeze)
            steps.append(("freeze", action.freeze))
        if action.leave is not None:
            guests = [one for one in guests if one.task != action.leave]
            frozen.discard(action.leave)
            steps.append(("leave", action.leave))
    assert steps == [("freeze", 1), ("freeze", 0), ("leave", 1), ("leave", 0)]  # the youngest first
    assert controller.decide(window(ALONE_S, frozen={0})).thaw == 0
    for _ in range(10):
        assert not controller.decide(window(ALONE_S, guests=[guest(2)], waiting=True)).admit
    assert controller.decide(window(ALONE_S, guests=[guest(2)], waiting=True)).admit  # only with all cores back
    assert controller.quota == 2.0


def test_late_windows_of_lately_cost_cores_and_no_more():
    controller = Controller(2.0, own=2)
    lately = [replace(window(0.0105, guests=[guest(0)]), lately_s=0.0121) for _ in range(40)]
    actions = [controller.decide(lately[0])]
    assert controller.quota == pytest.approx(2.0 * 0.011 / 0.0121)
    actions += [controller.decide(window) for window in lately[1:]]
    assert controller.quota == LEAST_CORES
    assert not any(action.freeze is not None or action.leave is not None for action in actions)


def test_who_was_evicted_comes_back_once_the_service_is_in_time():
    controller = Controller(2.0)
    assert not controller.decide(window(0.1, waiting=True)).admit
    assert not controller.decide(window(ALONE_S, waiting=True, memory=0.97)).admit
    assert controller.decide(window(0.0108, waiting=True)).admit
    assert controller.decide(window(None, waiting=True)).admit
    assert not controller.decide(window(None, guests=[guest(0)], waiting=True)).admit


def test_between_calm_and_late_nothing_moves():
    controller = Controller(2.0, quota=1.0)
    action = controller.decide(window(0.0108, guests=[guest(1)], frozen={1}, waiting=True))
    assert (action.freeze, action.thaw, action.leave, action.admit) == (None, None, None, False)
    controller.decide(window(None))
    assert controller.quota == 1.0


def test_memory_goes_first_and_the_victim_is_the_policys():
    guests = [guest(0, began_s=9.0, since_checkpoint_s=900.0), guest(1, began_s=1.0)]
    full = window(ALONE_S, guests=guests, memory=0.97)
    assert Controller(2.0, RULES["rose"]).decide(full).leave == 0  # the youngest
    assert Controller(2.0, RULES["rose-qos"]).decide(full).leave == 1  # that has just saved
