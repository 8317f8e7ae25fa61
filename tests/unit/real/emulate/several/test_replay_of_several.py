"""The replay around one of several real ranks: the others come when they say that they do."""

import math
from collections.abc import Sequence

import numpy as np

from windtunnel.real.emulate.peers.host_program import Event, HostProgram
from windtunnel.real.emulate.peers.peers_replay import Replay
from windtunnel.studies.programs.communication import Communication

TAKES = 0.5


def program(rank: int, world: int, seconds: float) -> HostProgram:
    """Computes, sums over all, waits; twice a step."""
    call = Communication("all_reduce", "world", tuple(range(world)), rank, 64)
    events = (Event(False, 0), Event(True, 0), Event(False, 1), Event(True, 1))
    return HostProgram(rank, (call, call), events, np.array([[seconds, 0.0, seconds, 0.0, 0.0]]))


class Others:
    """What other real ranks are known to have done."""

    def __init__(self, times: dict[int, dict[tuple[int, int], float]]) -> None:
        self.times = times

    @property
    def ranks(self) -> Sequence[int]:
        return tuple(self.times)

    def arrival_s(self, rank: int, step: int, place: int, call: Communication) -> float | None:
        return self.times[rank].get((step, place))

    def has_ended_step(self, rank: int, step: int) -> bool:
        return (step + 1, 0) in self.times[rank]


def replay(others: Others, world: int = 8) -> Replay:
    return Replay([(program(0, world, 1.0), range(world))], world, lambda call: TAKES, real=0, others=others)


def test_a_real_rank_that_has_not_come_is_waited_for() -> None:
    others = Others({3: {}})
    job = replay(others)
    key = job.begin(job.expected(), 1.0)
    assert job.span(key) is None
    others.times[3][0, 0] = 2.5  # virtual ranks come at 1, this one late
    assert job.span(key) == (2.5, 3.0)


def test_virtual_ranks_go_on_after_the_wait_for_a_late_real_rank() -> None:
    others = Others({3: {(0, 0): 2.5}})
    job = replay(others)
    job.span(job.begin(job.expected(), 1.0))
    others.times[3][0, 1] = 3.2
    key = job.begin(job.expected(), 3.1)  # the virtual ones waited until 3.0, and compute a second
    assert job.span(key) == (4.0, 4.5)


def test_a_real_rank_that_does_something_else_counts_as_virtual() -> None:
    job = replay(Others({3: {(0, 0): math.nan}}))
    assert job.span(job.begin(job.expected(), 1.0)) == (1.0, 1.5)


def test_with_all_ranks_real_only_what_they_say_counts() -> None:
    others = Others({1: {(0, 0): 0.2, (0, 1): 0.9}})
    job = replay(others, world=2)
    assert job.span(job.begin(job.expected(), 0.3)) == (0.3, 0.8)
    assert job.span(job.begin(job.expected(), 0.85)) == (0.9, 1.4)


def test_collectives_of_two_kinds_in_one_group_do_not_meet_each_other() -> None:
    members = (0, 1)
    gather, scatter = (Communication(kind, "g", members, 0, 64) for kind in ("all_gather", "reduce_scatter"))
    events = (Event(False, 0), Event(True, 0), Event(False, 1), Event(True, 1))
    one = HostProgram(0, (gather, scatter), events, np.array([[1.0, 0.0, 1.0, 0.0, 0.0]]))
    job = Replay([(one, [0]), (one, [1])], 2, lambda call: TAKES)
    job.run(2)  # it hung where two classes met, and the second took no time where one did
    assert [float(cohort.step_ends[-1][0]) for cohort in job.cohorts] == [6.0, 6.0]
