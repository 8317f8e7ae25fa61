"""What real ranks tell each other of their times."""

from pathlib import Path

from windtunnel.real.emulate.several.board import DONE, RECORDS, RUNS, WAITS, Board, tag_of
from windtunnel.studies.programs.communication import Communication


def call(rank: int, kind: str = "all_reduce", members: tuple[int, ...] = (0, 8), **more: int) -> Communication:
    return Communication(kind, "g", members, members.index(rank), **{"bytes": 64, **more})


def test_one_rank_reads_what_another_wrote(tmp_path: Path) -> None:
    one, other = Board(tmp_path, 0, (0, 8)), Board(tmp_path, 8, (0, 8))
    assert one.at(8, 3, 0) is None
    mine, theirs = call(0), call(8)
    ident = other.ident(theirs)
    assert one.ident(mine) == ident  # the same communication, on both members
    other.record_arrival(theirs, ident, 3, 0, 1.5)
    assert one.at(8, 3, 0) == (1.5, tag_of(mine))
    assert one.peer_arrival_s(8, ident) == 1.5
    assert not one.has_ended(8, 3)
    other.record_step_end(3, 1, 2.0)
    assert one.has_ended(8, 3)
    assert not one.has_ended(8, 4)


def test_both_ends_of_a_message_name_it_alike_and_the_next_is_another(tmp_path: Path) -> None:
    one, other = Board(tmp_path, 0, (0, 8)), Board(tmp_path, 8, (0, 8))
    sent = [one.ident(call(0, "send", peer=8)) for _ in range(2)]
    assert sent == [other.ident(call(8, "recv", peer=0)) for _ in range(2)]
    back = one.ident(call(0, "recv", peer=8))
    assert len({*sent, back}) == 3


def test_what_a_step_of_long_ago_left_is_forgotten_and_the_ring_goes_round(tmp_path: Path) -> None:
    one, other = Board(tmp_path, 0, (0, 8)), Board(tmp_path, 8, (0, 8))
    each = RECORDS // 8
    for step in range(12):
        for place in range(each):
            theirs = call(8)
            other.record_arrival(theirs, other.ident(theirs), step, place, step + place / each)
        other.record_step_end(step, each, step + 1.0)
        assert one.at(8, step, each - 1) == (step + (each - 1) / each, tag_of(call(0)))
    assert one.at(8, 2, 0) is None
    assert one.has_ended(8, 11)


def test_all_wait_or_somebody_runs(tmp_path: Path) -> None:
    boards = {rank: Board(tmp_path, rank, (0, 8, 16)) for rank in (0, 8, 16)}
    assert boards[0].pulse() is None
    for rank in (8, 16):
        boards[rank].does(WAITS)
    assert boards[0].pulse() == (0, 0)
    boards[8].does(RUNS)
    assert boards[0].pulse() is None
    boards[8].does(DONE)
    assert boards[0].is_done(8)
    assert boards[0].has_ended(8, 10**6)
