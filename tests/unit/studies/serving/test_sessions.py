"""Sessions: a turn waits for the answer before it and for its delay, and finds its history in the cache."""

import json

import pytest
from prices import plain_times

from windtunnel.errors import InputFileError
from windtunnel.studies.serving.loop import simulate
from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.rules import Rules
from windtunnel.studies.serving.replica.sequence import NO_NAMES
from windtunnel.studies.serving.routing import ROUTERS
from windtunnel.studies.serving.workload.files import read_workload

TURNS, SESSIONS, DELAY_S = 4, 6, 2.0


def written(path, **changed):
    rows = [
        {
            "session_id": f"s{session}",
            "timestamp": 500 * session,
            "input_length": 640 * (turn + 1),
            "output_length": 40,
            "delay_s": DELAY_S if turn else 0,
            "shared_tokens": 320,
            **changed,
        }
        for turn in range(TURNS)
        for session in range(SESSIONS)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def sent_by(load, servers=1, caching=True):
    rules = Rules(prefix_caching=caching)
    fleet = [Replica(plain_times(), rules, 5000) for _ in range(servers)]
    router = ROUTERS["prefix-aware"]() if servers > 1 else None
    sent, refused = simulate(load, fleet, router, block_size=rules.block_size)
    assert not refused
    assert not NO_NAMES  # all that share nothing have the same list
    return {one.index: one for one in sent}, fleet


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("lanes", [None, 2])
def test_a_turn_comes_its_delay_after_the_answer(tmp_path, servers, lanes):
    load = read_workload(written(tmp_path / "sessions.jsonl"), concurrency=lanes)
    sent, _ = sent_by(load, servers)
    assert len(sent) == TURNS * SESSIONS
    for before, after in enumerate(load.turns.following.tolist()):
        if after >= 0:
            waited = sent[after].arrival_ns - sent[before].last_ns
            assert 0 <= waited - DELAY_S * 1e9 <= 1  # a step ends within a nanosecond


def test_lanes_hold_a_session_each(tmp_path):
    load = read_workload(written(tmp_path / "sessions.jsonl"), concurrency=2)
    sent, _ = sent_by(load)
    spans = [(sent[s].arrival_ns, sent[s + SESSIONS * (TURNS - 1)].last_ns) for s in range(SESSIONS)]
    assert max(sum(begin <= at < end for begin, end in spans) for at, _ in spans) == 2


def test_sessions_begin_at_their_times_and_share_what_is_common(tmp_path):
    load = read_workload(written(tmp_path / "sessions.jsonl"))
    sent, _ = sent_by(load)
    assert [sent[s].arrival_ns for s in range(SESSIONS)] == [s * 500_000_000 for s in range(SESSIONS)]
    assert load.load().rate_per_s == pytest.approx(2.0)
    assert sent[1].cached_len == 320  # another session's instructions
    assert sent[SESSIONS].cached_len == 640  # the prompt before
    without, _ = sent_by(load, caching=False)
    assert sum(one.first_ns - one.arrival_ns for one in sent.values()) < sum(
        one.first_ns - one.arrival_ns for one in without.values()
    )


@pytest.mark.parametrize("changed", [{"session_id": ""}, {"delay_s": -1}, {"delay_s": "soon"}])
def test_a_faulty_row_is_named(tmp_path, changed):
    with pytest.raises(InputFileError, match="line"):
        read_workload(written(tmp_path / "sessions.jsonl", **changed))
