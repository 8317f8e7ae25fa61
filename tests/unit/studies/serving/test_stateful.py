"""`windtunnel serve scale`: placing is exact on few sessions, no session is lost or served twice, bounds are kept."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence

import pytest

from windtunnel.faces.cli import main
from windtunnel.studies.serving.stateful.placing import Room, Session, cost_of, place
from windtunnel.studies.serving.stateful.replay import POLICIES, Arrival, Policy, Replicas, replay

ASKED = ["serve", "scale", "llama-3.1-8b", "--cluster", "h100-sxm:8", "--rate", "6", "--cv", "4", "--prompt", "4000"]
ASKED += ["--output", "3000", "--requests", "300", "--length-ratio", "0.1"]


def _kept(sessions: Sequence[Session], where: Sequence[int], room: Room) -> bool:
    on = {at: [one for one, to in zip(sessions, where, strict=True) if to == at] for at in where}
    return all(
        len(those) == 1
        or (sum(one.load for one in those) <= room.load and sum(one.state for one in those) <= room.memory)
        for those in on.values()
    )


@pytest.mark.parametrize("seed", range(6))
def test_few_sessions_are_placed_as_enumeration_says(seed: int) -> None:
    draw = random.Random(seed)
    room = Room(draw.uniform(6, 10), 8e6)
    sessions = [
        Session(draw.uniform(1, 5), draw.choice([2e4, 2e5, 5e6]), draw.randrange(-1, 2)) for _ in range(5)
    ]  # fmt: skip
    possible = [one for one in itertools.product(range(5), repeat=5) if _kept(sessions, one, room)]
    found = place(sessions, room, [0, 1])
    assert _kept(sessions, found, room)
    assert cost_of(sessions, found) == min(cost_of(sessions, one) for one in possible)


@pytest.mark.parametrize("seed", range(4))
def test_many_sessions_keep_the_room_and_nobody_moves_for_nothing(seed: int) -> None:
    draw = random.Random(seed)
    sessions = [Session(draw.uniform(0.1, 1), draw.uniform(1, 9), draw.randrange(3)) for _ in range(60)]
    room = Room(10.0, 100.0)
    found = place(sessions, room, [0, 1, 2])
    assert _kept(sessions, found, room)
    again = place(
        [Session(one.load, one.state, to) for one, to in zip(sessions, found, strict=True)], room, [*set(found)]
    )
    assert again == found


def test_who_may_not_move_stays() -> None:
    sessions = [Session(4.0, 1.0, 0, fixed=True), Session(1.0, 1.0, 1, fixed=True), Session(2.0, 9.0, 1)]
    assert place(sessions, Room(10.0, 100.0), [0, 1]) == [0, 1, 1]


def _stream(seed: int) -> list[Arrival]:
    draw, now, found = random.Random(seed), 0.0, []
    for number in range(250):
        now += draw.expovariate(4.0 if 60 < number < 160 else 0.5)
        context = draw.uniform(500, 8000)
        found.append(Arrival(now, draw.randint(50, 3000), 2e-4 + 1e-7 * context, context * 1e5, context * 3e-5))
    return found


RULES = Replicas(
    base_s=0.01, room=Room(0.005, 2e10), most=9, link_bytes_per_s=4e10, start_s=5.0, calm_s=20.0, longest_stop_s=0.1
)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_session_is_served_whole_and_once(policy: Policy) -> None:
    stream = _stream(1)
    found = replay(stream, RULES, policy)
    for one, seen in zip(stream, found.sessions, strict=True):
        assert seen.served == pytest.approx(one.tokens)
        assert seen.ended_s - seen.began_s >= one.tokens * RULES.base_s * (1 - 1e-9) + seen.stopped_s
        assert seen.stopped_s <= RULES.longest_stop_s * seen.moves
    assert found.most_replicas <= max(1, RULES.most)


def test_more_replicas_end_the_queue_and_moving_is_late_less_often_than_draining() -> None:
    stream = _stream(2)
    bound = RULES.base_s + RULES.room.load

    def late(policy: Policy) -> int:
        seen = replay(stream, RULES, policy).sessions
        return sum(
            one.ended_s - one.began_s > bound * a.tokens * (1 + 1e-9) for one, a in zip(seen, stream, strict=True)
        )

    assert late("move") < late("drain") < late("fixed")


def test_a_stop_that_is_too_long_moves_nobody() -> None:
    stream = _stream(3)
    rules = Replicas(base_s=0.01, room=RULES.room, most=9, link_bytes_per_s=1.0, start_s=5.0, longest_stop_s=0.1)
    assert not any(seen.moves for seen in replay(stream, rules, "move").sessions)


def test_the_command_says_every_policy_and_refuses_what_cannot_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--tpot", "15ms", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["policies"]
    assert set(found) == set(POLICIES)
    assert found["move"]["mean_s"] < found["fixed"]["mean_s"]
    assert main([*ASKED, "--tpot", "1us"]) == 2
    assert "give more" in capsys.readouterr().err
    assert main([*ASKED, "--tpot", "15ms", "--policy", "teleport"]) == 2
    assert "teleport" in capsys.readouterr().err
