"""Examples, mistakes and the file format of pipeline schedules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from complete_schedule import check
from ideal_schedule import in_flight, makespan

from windtunnel.errors import LayoutError, ScheduleError, UnknownNameError
from windtunnel.studies.training.schedules import (
    Kind,
    Schedule,
    schedule,
    walk,
)

LETTER = {Kind.FORWARD: "F", Kind.BACKWARD: "B", Kind.BACKWARD_INPUT: "I", Kind.BACKWARD_WEIGHT: "W"}


def row(s: Schedule, rank: int) -> str:
    """A rank's program: kind, chunk, dot, micro-batch; `&` joins an overlapped pair."""
    text = ""
    for i in range(s.rank_offset[rank], s.rank_offset[rank + 1]):
        join = "&" if 0 <= s.overlap[i] < i else " "
        text += f"{join}{LETTER[Kind(int(s.kind[i]))]}{s.chunk[i]}.{s.micro_batch[i]}"
    return text.strip()


def test_gpipe_by_hand():
    assert row(schedule("gpipe", 3, 2), 1) == "F0.0 F0.1 B0.0 B0.1"


def test_1f1b_by_hand():
    s = schedule("1f1b", 3, 4)
    assert row(s, 0) == "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3"
    assert row(s, 1) == "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 B0.3"
    assert row(s, 2) == "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3"


def test_interleaved_by_hand():
    s = schedule("interleaved", 2, 4, 2)
    assert s.virtual_stage.tolist() == [[0, 2], [1, 3]]
    assert row(s, 1) == ("F0.0 F0.1 F1.0 B1.0 F1.1 B1.1 F0.2 B0.0 F0.3 B0.1 F1.2 B1.2 F1.3 B1.3 B0.2 B0.3")
    assert row(s, 0).startswith("F0.0 F0.1 F1.0 F1.1 F0.2 B1.0 F0.3 B1.1 F1.2 B0.0")


def test_zb_h1_by_hand():
    s = schedule("zb-h1", 2, 3)
    assert row(s, 0) == "F0.0 F0.1 I0.0 W0.0 F0.2 I0.1 W0.1 I0.2 W0.2"
    assert row(s, 1) == "F0.0 I0.0 F0.1 I0.1 W0.0 F0.2 I0.2 W0.1 W0.2"


def test_zb_v_by_hand():
    s = schedule("zb-v", 2, 3)
    assert s.virtual_stage.tolist() == [[0, 3], [1, 2]]
    assert row(s, 0) == "F0.0 F0.1 F0.2 F1.0 I1.0 W1.0 F1.1 I1.1 W1.1 I0.0 W0.0 F1.2 I1.2 W1.2 I0.1 W0.1 I0.2 W0.2"
    assert row(s, 1) == "F0.0 F1.0 F0.1 F1.1 I1.0 W1.0 F0.2 I0.0 W0.0 F1.2 I1.1 W1.1 I0.1 I1.2 I0.2 W0.1 W1.2 W0.2"


def test_dualpipe_v_by_hand():
    s = schedule("dualpipe-v", 2, 4)
    assert row(s, 0) == (
        "F0.0 F0.1 F0.2 F1.0 I1.0 W1.0 F1.1 F0.3&B1.1 F1.2&B0.0 B1.2 F1.3&B0.1 B1.3 I0.2 W0.2 I0.3 W0.3"
    )
    assert row(s, 1) == "F0.0 F1.0 F0.1 F1.1 F0.2 B1.0 F1.2&B0.0 F0.3&B1.1 F1.3&B0.1 B1.2 B0.2 I1.3 I0.3 W1.3 W0.3"


def test_dualpipe_is_two_v_schedules_face_to_face():
    both, one = schedule("dualpipe", 4, 12), schedule("dualpipe-v", 2, 6)
    for rank in range(2):
        assert row(both, rank).count("F") == 2 * 6
        near, far = (slice(both.rank_offset[r], both.rank_offset[r + 1]) for r in (rank, 3 - rank))
        assert np.array_equal(both.kind[near], both.kind[far])
        assert np.array_equal(both.chunk[near], 1 - both.chunk[far])
        mine = slice(one.rank_offset[rank], one.rank_offset[rank + 1])
        assert np.array_equal(both.kind[near], one.kind[mine])


def test_the_same_arguments_give_the_same_frozen_object():
    s = schedule("1f1b", 4, 8)
    assert schedule("1f1b", 4, 8) is s
    with pytest.raises(ValueError, match="read-only"):
        s.kind[0] = 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("interleaved", 4, 10, 2), "multiple of 4"),
        (("interleaved", 4, 3, 2), "groups of 4"),
        (("interleaved", 4, 8, 1), "choose 1f1b"),
        (("interleaved", 4, 8, 2, 9), "micro_batch_group 8 or less"),
        (("1f1b", 4, 8, 2), "choose interleaved"),
        (("zb-v", 4, 8, 3), "2 model chunks"),
        (("1f1b", 0, 8), "at least 1"),
        (("gpipe", 4, 0), "at least 1"),
        (("dualpipe", 3, 12), "even number of stages"),
        (("dualpipe", 4, 9), "even number of at least 8"),
        (("dualpipe", 4, 6), "at least 8"),
        (("dualpipe-v", 4, 7), "at least 8"),
    ],
)
def test_illegal_numbers_are_one_clear_error(arguments, says):
    with pytest.raises(LayoutError, match=says):
        schedule(*arguments)


def test_unknown_name():
    with pytest.raises(UnknownNameError, match="did you mean 1f1b"):
        schedule("1F1B", 4, 8)


def without(s: Schedule, action: int) -> Schedule:
    keep = np.arange(len(s.rank)) != action
    offset = s.rank_offset - (s.rank_offset > action)
    names = ("rank", "kind", "chunk", "micro_batch", "overlap")
    return replace(s, rank_offset=offset, **{name: getattr(s, name)[keep] for name in names})


def swapped(s: Schedule, one: int, two: int) -> Schedule:
    order = np.arange(len(s.rank))
    order[[one, two]] = two, one
    return replace(s, **{name: getattr(s, name)[order] for name in ("kind", "chunk", "micro_batch")})


def test_check_names_what_is_missing():
    s = schedule("1f1b", 3, 4)
    with pytest.raises(ScheduleError, match="lacks the forward of micro-batch 1 on stage 0"):
        check(without(s, 1))
    with pytest.raises(ScheduleError, match=r"lacks the backward of micro-batch 3 on stage 0 \(rank 0\)"):
        check(without(s, 7))
    split = schedule("zb-h1", 2, 3)
    with pytest.raises(ScheduleError, match="lacks the weight gradient of micro-batch 2 on stage 1"):
        check(without(split, len(split.rank) - 1))


def test_check_names_what_is_done_twice():
    s = schedule("1f1b", 3, 4)
    with pytest.raises(ScheduleError, match="twice: rank 0: forward of micro-batch 0"):
        check(replace(s, micro_batch=np.where(np.arange(24) == 1, 0, s.micro_batch)))


def test_check_finds_a_deadlock_and_names_both_ends():
    s = schedule("1f1b", 2, 2)
    assert row(s, 0) == "F0.0 F0.1 B0.0 B0.1"
    check(swapped(s, 1, 2))  # F0 B0 F1 B1 on rank 0 is slower, but ends
    stuck = swapped(s, 0, 2)  # B0 before its own F0
    ends = r"rank 1: forward of micro-batch 0 .* waits for rank 0: .* stopped at rank 0: backward of micro-batch 0"
    with pytest.raises(ScheduleError, match=ends):
        check(stuck)
    with pytest.raises(ScheduleError, match="deadlocks"):
        walk(stuck, 1.0)


def test_check_finds_a_pair_that_waits_for_itself():
    s = schedule("1f1b", 2, 2)
    paired = replace(s, overlap=np.array([-1, -1, -1, -1, 5, 4, -1, -1], np.int32))  # F0 of the last rank with its B0
    assert makespan(paired, 1, 1, 1) == makespan(s, 1, 1, 1)
    with pytest.raises(ScheduleError, match="deadlocks"):
        check(paired)


def test_uneven_stages_and_weights():
    s = schedule("1f1b", 2, 4)
    assert makespan(s, [[1.0], [2.0]], 1.0, 1.0) == 1 + 4 * 4 + 2
    assert in_flight(s, weight=[[10.0], [3.0]]).tolist() == [20.0, 3.0]
