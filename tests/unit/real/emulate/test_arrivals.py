"""Groups of other ranks by analogy, and when a communication is done."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.real.emulate.peers.arrivals import Meeting, box_of, idle, pairs, roster


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_groups_of_a_mesh_are_those_the_mesh_has(sizes: list[int], data: st.DataObject) -> None:
    """Whatever dimensions of a mesh a group spans, the others like it are found from one of them."""
    world = int(np.prod(sizes))
    mesh = np.arange(world).reshape(sizes)
    chosen = data.draw(st.sets(st.integers(0, len(sizes) - 1), min_size=1))
    rest = [axis for axis in range(len(sizes)) if axis not in chosen]
    flat = np.transpose(mesh, [*rest, *sorted(chosen)]).reshape(-1, int(np.prod([sizes[axis] for axis in chosen])))
    wanted = {tuple(row) for row in flat.tolist()}
    seed = data.draw(st.sampled_from(sorted(wanted)))
    found = roster(seed, world)
    groups = {tuple(np.flatnonzero(found.group_of == number).tolist()) for number in range(len(found.expected))}
    assert groups == wanted


def test_members_that_are_no_box_are_a_group_and_everybody_else_is_alone() -> None:
    assert box_of((1, 2, 4)) is None
    assert box_of((1, 2)) is None  # the rank numbers are not tiled by it
    found = roster((1, 2, 4), 6)
    assert sorted(found.expected.tolist()) == [1, 1, 1, 3]
    assert len({int(found.group_of[rank]) for rank in (1, 2, 4)}) == 1


def test_neighbours_go_round() -> None:
    ring = roster((0, 2, 4), 6)
    ranks = np.arange(6)
    assert ring.neighbour(ranks, 1).tolist() == [2, 3, 4, 5, 0, 1]
    assert ring.neighbour(ranks, 2).tolist() == [4, 5, 0, 1, 2, 3]


@given(st.lists(st.floats(0, 10), min_size=4, max_size=4), st.floats(0, 5), st.floats(0, 12))
def test_it_starts_with_its_last_member_after_the_one_before(times: list[float], seconds: float, busy: float) -> None:
    of = roster((0, 1, 2, 3), 4)
    free_at = idle(of)
    free_at[:] = busy
    meeting = Meeting(of)
    for rank in range(3):
        meeting.arrive(of.group_of[[rank]], np.array([times[rank]]), seconds, free_at)
        assert np.isnan(meeting.finish[0])
    meeting.arrive(of.group_of[[3]], np.array([times[3]]), seconds, free_at)
    assert meeting.start[0] == max(*times, busy)
    assert meeting.finish[0] == free_at[0] == pytest.approx(max(*times, busy) + seconds)


@given(st.floats(0, 10), st.floats(0, 5), st.floats(0, 5), st.floats(0, 12))
def test_in_a_queue_it_takes_what_it_takes_there_and_never_longer(
    comes: float, seconds: float, queued_s: float, busy: float
) -> None:
    of = roster((0, 1), 2)
    free_at = idle(of)
    free_at[:] = busy
    meeting = Meeting(of)
    meeting.arrive(of.group_of, np.array([comes, comes]), seconds, free_at, queued_s)
    late = busy + min(seconds, queued_s)
    assert meeting.finish[0] == free_at[0] == pytest.approx(max(comes + seconds, late))
    assert meeting.finish[0] <= max(comes, busy) + seconds


def test_messages_need_two() -> None:
    of = pairs(4)
    free_at, meeting = idle(of), Meeting(of)
    meeting.arrive(np.array([1, 2]), np.array([1.0, 2.0]), 0.5, free_at)
    assert np.isnan(meeting.finish).all()
    meeting.arrive(np.array([1]), np.array([4.0]), 0.5, free_at)
    assert meeting.finish[1] == 4.5
    assert np.isnan(meeting.finish[2])
