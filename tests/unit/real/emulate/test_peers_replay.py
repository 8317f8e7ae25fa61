"""The replay of the whole job around one real rank."""

from collections.abc import Sequence

import numpy as np
import pytest

from windtunnel.errors import UserError
from windtunnel.real.emulate.peers.host_program import Event, HostProgram
from windtunnel.real.emulate.peers.peers_replay import Replay
from windtunnel.studies.programs.communication import Communication

PRICE = 0.5


def seconds_of(call: Communication) -> float:
    return PRICE


def collective(members: Sequence[int], rank: int, group: str = "0", kind: str = "all_reduce") -> Communication:
    return Communication(kind, group, tuple(members), tuple(members).index(rank), 1024)


def message(kind: str, members: Sequence[int], rank: int, peer: int) -> Communication:
    return Communication(kind, "1", tuple(members), tuple(members).index(rank), 1024, peer=peer)


def program(calls: Sequence[Communication], events: str, seconds: Sequence[float], rank: int = 0) -> HostProgram:
    """events: "b0 w0 b1"."""
    parsed = tuple(Event(word[0] == "w", int(word[1:])) for word in events.split())
    return HostProgram(rank, tuple(calls), parsed, np.array([seconds], dtype=float))


def finish(replay: Replay, key: tuple[int, int]) -> float | None:
    span = replay.span(key)
    return None if span is None else span.finish


def test_equal_ranks_step_in_the_sum_of_their_parts() -> None:
    one = program([collective(range(4), 0)], "b0 w0", [1.0, 0.25, 0.25])
    replay = Replay([(one, range(4))], 4, seconds_of)
    replay.run(3)
    ends = [end.tolist() for end in replay.cohorts[0].step_ends]
    assert ends == [[pytest.approx(step * 1.75)] * 4 for step in (1, 2, 3)]  # 0.25 of the collective is hidden


def test_everybody_waits_for_the_slow_one() -> None:
    one = program([collective(range(4), 0)], "b0 w0", [1.0, 0.0, 0.0])
    replay = Replay([(one, range(4))], 4, seconds_of, slow={3: 1.2})
    replay.run(1)
    assert replay.cohorts[0].step_ends[0].tolist() == pytest.approx([1.7] * 4)


def test_a_slow_rank_reaches_others_through_the_groups_of_its_peers() -> None:
    """Rank 3 slows its tensor-parallel peer 2, which slows rank 0 through the data-parallel group of 0 and 2."""
    calls = [collective((0, 1), 0, "1"), collective((0, 2), 0, "2")]
    one = program(calls, "b0 w0 b1 w1", [1.0, 0.0, 0.0, 0.0, 0.0])
    replay = Replay([(one, range(4))], 4, seconds_of, slow={3: 2.0}, real=0)
    key = replay.begin(calls[0], 1.0)
    assert finish(replay, key) == pytest.approx(1.5)
    key = replay.begin(calls[1], 1.5)
    assert finish(replay, key) == pytest.approx(3.0)  # 2.0 + 0.5 of ranks 2 and 3, then 0.5


def test_the_real_rank_meets_its_slowest_peer_at_its_own_time() -> None:
    one = program([collective(range(8), 2)], "b0 w0", [1.0, 0.0, 0.5], rank=2)
    replay = Replay([(one, range(8))], 8, seconds_of, slow={5: 1.5}, real=2, begin_at=100.0)
    assert finish(replay, replay.begin(one.calls[0], 101.2)) == pytest.approx(102.0)
    replay.end_step(102.5)
    late = replay.begin(one.calls[0], 110.0)  # peers wait for it now
    assert finish(replay, late) == pytest.approx(110.5)


def pipeline(stages: int = 2, micro_batches: int = 1, forward: float = 1.0, real: int | None = 0) -> Replay:
    members = tuple(range(stages))
    programs = []
    for stage in range(stages):
        calls: list[Communication] = []
        words: list[str] = []
        seconds: list[float] = []

        def add(kind: str, peer: int, before: float) -> None:
            calls.append(message(kind, members, stage, peer))  # noqa: B023
            number = len(calls) - 1  # noqa: B023
            words.append(f"b{number}")  # noqa: B023
            seconds.append(before)  # noqa: B023
            if kind == "recv":
                words.append(f"w{number}")  # noqa: B023
                seconds.append(0.0)  # noqa: B023

        for _ in range(micro_batches):  # gpipe: all forward
            if stage:
                add("recv", stage - 1, 0.0)
            if stage < stages - 1:
                add("send", stage + 1, forward)
        for number in range(micro_batches):
            if stage < stages - 1:
                add("recv", stage + 1, 0.0)
            if stage:
                add("send", stage - 1, 2 * forward + (forward if stage == stages - 1 and number == 0 else 0.0))
        programs.append((program(calls, " ".join(words), [*seconds, 0.0], stage), [stage]))
    return Replay(programs, stages, seconds_of, real=real)


def test_a_pipeline_of_virtual_stages_takes_its_way_there_and_back() -> None:
    replay = pipeline(real=None)
    replay.run(1)
    # forward 1, message 0.5, forward and backward of the last stage 3, message 0.5
    assert replay.cohorts[0].step_ends[0][0] == pytest.approx(5.0)


def test_the_real_first_stage_gets_its_gradient_when_the_last_has_made_it() -> None:
    replay = pipeline()
    calls = replay.cohorts[0].program.calls
    sent = replay.begin(calls[0], 1.0)
    assert finish(replay, sent) == pytest.approx(1.5)
    assert finish(replay, replay.begin(calls[1], 1.1)) == pytest.approx(5.0)


def test_a_receive_posted_before_what_it_hangs_on_is_known_once_that_is_sent() -> None:
    members = (0, 1)
    first = program([message("recv", members, 0, 1), message("send", members, 0, 1)], "b0 b1 w0", [0, 1.0, 0, 0])
    last = program([message("recv", members, 1, 0), message("send", members, 1, 0)], "b0 w0 b1", [0, 0, 3.0, 0], 1)
    replay = Replay([(first, [0]), (last, [1])], 2, seconds_of, real=0)
    asked = replay.begin(first.calls[0], 0.0)
    assert finish(replay, asked) is None
    replay.begin(first.calls[1], 1.0)
    assert finish(replay, asked) == pytest.approx(1.0 + 0.5 + 3.0 + 0.5)


def test_without_the_programs_of_other_stages_messages_come_at_once() -> None:
    call = message("recv", (0, 1), 0, 1)
    one = program([call], "b0 w0", [1.0, 0.0, 0.0])
    replay = Replay([(one, [0, 1])], 2, seconds_of, real=0, messages_meet=False)
    assert finish(replay, replay.begin(call, 7.0)) == pytest.approx(7.5)


def test_a_hang_names_who_waits_for_what() -> None:
    one = program([message("recv", (0, 1), 0, 1)], "b0 w0", [0.0, 0.0, 0.0])
    other = program([message("recv", (0, 1), 1, 0)], "b0 w0", [0.0, 0.0, 0.0], 1)
    replay = Replay([(one, [0]), (other, [1])], 2, seconds_of)
    with pytest.raises(UserError, match=r"rank 0 waits for recv from rank 1 of group 1 .*; rank 1 waits for recv"):
        replay.run(1)


def test_samples_are_drawn_for_each_rank_and_step() -> None:
    events = (Event(False, 0), Event(True, 0))
    one = HostProgram(0, (collective(range(3), 0),), events, np.array([[1.0, 0, 0], [4, 0, 0]]))
    draws = iter([np.array([0, 1, 0]), np.array([0, 0, 0]), np.array([0, 0, 0])])
    replay = Replay([(one, range(3))], 3, seconds_of, draw=lambda ranks, samples: next(draws))
    replay.run(2)
    assert [end[0] for end in replay.cohorts[0].step_ends] == pytest.approx([4.5, 6.0])


def test_ranks_of_one_class_that_send_to_each_other_are_kept_apart() -> None:
    """The middle of a pipeline is one class; its stages are not in step."""
    world, calls = 3, [message("recv", range(3), 1, 0), message("send", range(3), 1, 2)]
    middle = program(calls, "b0 w0 b1", [0, 0, 1.0, 0], 1)
    replay = Replay([(middle, [0, 1, 2])], world, seconds_of)  # a ring of three: hangs, but as three cohorts
    assert [cohort.ranks.tolist() for cohort in replay.cohorts] == [[0], [1], [2]]


def test_two_groups_of_one_shape_are_two_streams() -> None:
    calls = [collective((0, 1), 0, "1"), collective((0, 1), 0, "2")]
    one = program(calls, "b0 b1 w0 w1", [1.0, 0.0, 0.0, 0.0, 0.0])
    replay = Replay([(one, range(2))], 2, seconds_of)
    replay.run(1)
    assert replay.cohorts[0].step_ends[0][0] == pytest.approx(1.5)
    same = program([calls[0], calls[0]], "b0 b1 w0 w1", [1.0, 0.0, 0.0, 0.0, 0.0])
    replay = Replay([(same, range(2))], 2, seconds_of)
    replay.run(1)
    assert replay.cohorts[0].step_ends[0][0] == pytest.approx(2.0)


@pytest.mark.parametrize(("beside", "ends"), [(2.0, 3.5), (0.2, 1.7), (0.0, 1.5)])
def test_a_communication_that_takes_the_processor_slows_what_is_computed_beside_it(beside: float, ends: float) -> None:
    """0.5 s of both share one core: half each while both go on. Never more than one after the other."""
    one = program([collective(range(2), 0)], "b0 w0", [1.0, beside, 0.0])
    replay = Replay([(one, range(2))], 2, seconds_of, processor_s_of=seconds_of)
    replay.run(1)
    assert replay.cohorts[0].step_ends[0].tolist() == pytest.approx([ends] * 2)


@pytest.mark.parametrize(("beside", "adds"), [(0.0, 0.5), (0.1, 0.4), (0.3, 0.2), (2.0, 0.2)])
def test_what_is_waiting_of_a_communication_is_hidden_by_computing(beside: float, adds: float) -> None:
    """Of 0.5 s it takes the processor for 0.2: it adds the rest of the 0.5, and never less than the 0.2."""
    one = program([collective(range(2), 0)], "b0 w0", [1.0, beside, 0.0])
    replay = Replay([(one, range(2))], 2, seconds_of, processor_s_of=lambda call: 0.2)
    replay.run(1)
    assert replay.cohorts[0].step_ends[0].tolist() == pytest.approx([1.0 + beside + adds] * 2)
