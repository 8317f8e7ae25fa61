"""Who plays which rank: laws of the state machine under any order of starts, deaths, leaves and steps."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.studies.resilience.membership import Abandon, Action, Finish, Membership, Publish, Start, View


class World:
    """Processes as the membership believes them to be, and what it asked for."""

    def __init__(self, size: int, standbys: int) -> None:
        self.machine = Membership(size, standbys)
        self.alive: set[str] = set()
        self.views: list[View] = []
        self.abandoned = False
        self.perform(self.machine.start())

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Start(name):
                    assert name not in self.alive
                    self.alive.add(name)
                case Publish(view):
                    self.views.append(view)
                case Abandon(_):
                    self.abandoned = True
                case Finish():
                    pass

    def warm_all(self) -> None:
        for name in list(self.machine.starting):
            self.perform(self.machine.is_warm(name))

    def kill(self, names: list[str], at_s: float = 0.0) -> None:
        self.alive -= set(names)
        self.perform(self.machine.died(names, at_s))


def test_a_job_starts_and_a_standby_takes_the_very_rank() -> None:
    world = World(4, 1)
    assert len(world.alive) == 5
    assert not world.views
    world.warm_all()
    first = world.views[-1]
    assert (first.generation, len(first.members)) == (0, 4)
    spare = world.machine.warm[0]
    world.kill([first.members[2]])
    second = world.views[-1]
    assert second.members == (*first.members[:2], spare, first.members[3])
    assert len(world.alive) == 5  # another standby was started


def test_a_pair_waits_for_a_process_that_is_started_for_it() -> None:
    world = World(4, 1)
    world.warm_all()
    world.kill([world.views[0].members[0], world.views[0].members[3]])
    assert len(world.views) == 1
    world.warm_all()
    assert world.views[-1].members[1:3] == world.views[0].members[1:3]
    assert set(world.views[-1].members) <= world.alive


def test_a_planned_change_comes_to_nothing_when_somebody_dies() -> None:
    world = World(3, 1)
    world.warm_all()
    before = world.views[-1].members
    world.perform(world.machine.leave(1))
    planned = world.views[-1]
    assert planned.planned
    assert planned.members[0::2] == before[0::2]
    world.warm_all()
    world.kill([before[0]])
    assert not world.views[-1].planned
    assert set(world.views[-1].members) <= world.alive
    assert world.views[-1].members[1] == before[1]


def test_a_planned_change_that_works_lets_the_leaver_go() -> None:
    world = World(3, 1)
    world.warm_all()
    world.perform(world.machine.leave(0))
    leaver, joiner = world.views[-2].members[0], world.views[-1].members[0]
    world.perform(world.machine.on_swap())
    assert world.machine.members[0] == joiner
    views = len(world.views)
    world.kill([leaver])  # it ends, and nobody cares
    assert len(world.views) == views


def test_a_process_that_has_left_is_not_put_back_when_another_dies() -> None:
    world = World(3, 1)
    world.warm_all()
    before = world.views[-1].members
    world.perform(world.machine.leave(1))
    world.alive.discard(before[1])  # it has swapped, and ends before a step of the new view is seen
    world.perform(world.machine.on_process_left(before[1]))
    world.warm_all()
    world.kill([before[0]])
    assert set(world.views[-1].members) <= world.alive
    assert world.views[-1].members[2] == before[2]


def test_members_whose_group_comes_apart_meet_again_but_not_for_ever() -> None:
    world = World(2, 1)
    world.warm_all()
    for number in range(1, 30):
        world.perform(world.machine.broken(float(number * 20)))
        assert world.views[-1] == View(number, world.views[0].members)
    world.perform(world.machine.broken(world.machine.give_up_s + 21))
    assert world.abandoned


def test_a_job_is_given_up_by_time_without_a_step_and_not_by_a_count_of_processes() -> None:
    world = World(2, 1)
    for at in range(300):
        world.kill(list(world.machine.starting), float(at))
    assert not world.abandoned
    world.perform(world.machine.progressed())
    world.kill(list(world.machine.starting), 5_000.0)
    assert not world.abandoned  # a step was done meanwhile
    world.kill(list(world.machine.starting), 5_000.0 + world.machine.give_up_s + 1)
    assert world.abandoned


def test_a_job_that_starts_anew_has_other_ranks_and_keeps_its_standby() -> None:
    world = World(3, 1)
    world.warm_all()
    before, spare = set(world.views[-1].members), world.machine.warm[0]
    world.alive -= before
    world.perform(world.machine.start_anew([world.views[-1].members[0]], 0.0))
    world.warm_all()
    after = world.views[-1]
    assert not before & set(after.members)
    assert spare in (*after.members, *world.machine.warm)
    assert after.generation == world.machine.began


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 5), st.integers(0, 3), st.data())
def test_views_hold_the_living_each_once_and_survivors_keep_their_rank(
    size: int, standbys: int, data: st.DataObject
) -> None:
    world = World(size, standbys)
    world.warm_all()
    for _ in range(data.draw(st.integers(0, 25))):
        before = list(world.machine.members)
        views = len(world.views)
        match data.draw(st.sampled_from(["kill", "warm", "step", "leave", "swap", "left", "broken"])):
            case "kill":
                number = data.draw(st.integers(1, min(3, len(world.alive)))) if world.alive else 0
                world.kill(data.draw(st.permutations(sorted(world.alive)))[:number])
            case "warm":
                world.warm_all()
            case "step":
                world.perform(world.machine.progressed())
            case "leave":
                world.perform(world.machine.leave(data.draw(st.integers(0, size - 1))))
            case "swap":
                world.perform(world.machine.on_swap())
                before = list(world.machine.members)
            case "broken":
                world.perform(world.machine.broken())
                assert world.machine.preparing is None or None in world.machine.members
            case "left" if world.machine.preparing:
                (leaver,) = set(before) - set(world.machine.preparing)
                world.alive.discard(leaver)
                world.perform(world.machine.on_process_left(leaver))
                before = list(world.machine.members)
        if world.abandoned:
            return
        for view in world.views[views:]:
            assert len(set(view.members)) == size
            assert set(view.members) <= world.alive
            if not view.planned:
                kept = [(a, b) for a, b in zip(before, view.members, strict=True) if a in world.alive]
                assert all(a == b for a, b in kept)
        generations = [view.generation for view in world.views]
        assert generations == sorted(set(generations))
        spare = len(world.machine.warm) + len(world.machine.starting)
        assert spare >= standbys + sum(name is None for name in world.machine.members)
    world.warm_all()
    world.perform(world.machine.on_member_done())
    assert world.views[-1].members == ()


def on_two_hosts() -> Membership:
    machine = Membership(2, 1, hosts=2)
    machine.start()
    machine.host_of |= {"p0": 0, "p1": 1, "p2": 0}
    return machine


def test_a_job_begins_on_both_hosts_though_one_of_them_is_slow() -> None:
    machine = on_two_hosts()
    assert machine.is_warm("p0") == machine.is_warm("p2") == []  # both on host 0: it would hold both copies of a shard
    assert machine.is_warm("p1") == [Publish(View(0, ("p0", "p1")))]
    assert machine.warm == ["p2"]


def test_a_job_begins_without_a_host_that_died_meanwhile() -> None:
    machine = on_two_hosts()
    assert machine.is_warm("p0") == machine.is_warm("p2") == []
    assert Publish(View(0, ("p0", "p2"))) in machine.died(["p1"])
