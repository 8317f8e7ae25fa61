"""Verdicts from logs written by hand: hangs, circles, slow ranks, and calm jobs that accuse nobody."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import InputFileError
from windtunnel.faces.cli.app import main
from windtunnel.real.survive.watch.log import COLLECTIVE, ROWS, SEGMENT, RankLog, RankView, read_logs
from windtunnel.real.survive.watch.verdict import find_silent, find_slow, own_times, verdict

GROUPS = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}


def view(rank: int, calls: list[tuple[str, int, float, float]], beat: float, ended: bool = False) -> RankView:
    names = tuple(GROUPS)
    rows = np.array([[COLLECTIVE, names.index(name), n, a, b] for name, n, a, b in calls] or np.zeros((0, 5)))
    return RankView(rank, beat, ended, names, {k: v for k, v in GROUPS.items() if rank in v}, rows.reshape(-1, 5))


def calm(rank: int, until: int) -> list[tuple[str, int, float, float]]:
    mine = [name for name, members in GROUPS.items() if rank in members]
    return [(name, n, 1.0 * n, n + 0.5) for n in range(until) for name in mine]


def test_the_end_of_the_chain_is_the_culprit() -> None:
    """Rank 3 computes for ever; 2 waits for it in tp1, 0 for 2 in dp0, 1 for 0 in tp0."""
    views = [
        view(0, [*calm(0, 5), ("tp0", 5, 5.0, 5.5), ("dp0", 5, 5.6, 0.0)], beat=20.0),
        view(1, [*calm(1, 5), ("tp0", 5, 5.0, 5.5), ("dp1", 5, 5.6, 0.0)], beat=20.0),
        view(2, [*calm(2, 5), ("tp1", 5, 5.0, 0.0)], beat=20.0),
        view(3, calm(3, 5), beat=20.0),
    ]
    assert [one.rank for one in find_silent(views, 20.0, 3.0)] == [3]
    assert "comes to no collective" in find_silent(views, 20.0, 3.0)[0].sentence
    assert find_silent(views, 7.0, 3.0) == []  # not yet


def test_a_rank_that_is_stopped_inside_is_told_by_its_beat() -> None:
    views = [
        view(rank, [*calm(rank, 5), ("tp0" if rank < 2 else "tp1", 5, 5.0, 0.0)], beat=5.1 if rank == 1 else 20.0)
        for rank in range(4)
    ]
    found = find_silent(views[:2], 20.0, 3.0)
    assert [one.rank for one in found] == [1]
    assert "has stopped inside tp0 number 5" in found[0].sentence


def test_a_crossed_order_is_a_circle() -> None:
    views = [
        view(0, [*calm(0, 5), ("tp0", 5, 5.0, 0.0)], beat=20.0),
        view(1, [*calm(1, 5), ("dp1", 5, 5.0, 0.0)], beat=20.0),
        view(2, [*calm(2, 5), ("dp0", 5, 5.0, 0.0)], beat=20.0),
        view(3, [*calm(3, 5), ("tp1", 5, 5.0, 0.0)], beat=20.0),
    ]
    assert "circle" in find_silent(views, 20.0, 3.0)[0].sentence


def test_a_job_that_has_ended_hangs_nowhere() -> None:
    assert find_silent([view(rank, calm(rank, 5), 5.0, ended=True) for rank in range(4)], 99.0, 3.0) == []


def segments(rank: int, lengths: dict[str, list[float]]) -> RankView:
    names = tuple(lengths)
    rows, now = [], 0.0
    for name, each in lengths.items():
        for number, seconds in enumerate(each):
            rows.append([SEGMENT, names.index(name), number, now, now + seconds])
            now += seconds
    return RankView(rank, now, False, names, {}, np.array(rows))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), rank=st.integers(0, 7), where=st.sampled_from(["input", "forward", "copy", None]))
def test_the_slow_rank_is_named_and_nobody_else(seed: int, rank: int, where: str | None) -> None:
    random = np.random.default_rng(seed)
    views = []
    for each in range(8):
        lengths = {name: list(0.01 * random.lognormal(0.0, 0.15, 20)) for name in ("input", "forward", "copy")}
        if each == rank and where is not None:
            lengths[where] = [one + 0.02 for one in lengths[where]]
        views.append(segments(each, lengths))
    found = find_slow(own_times(views))
    assert [(one.rank, one.where) for one in found] == ([(rank, where)] if where else [])


def test_rare_garbage_collection_counts_by_its_mean() -> None:
    views = [segments(rank, {"forward": [0.01] * 30, "garbage collection": [0.001] * 3}) for rank in range(3)]
    views.append(segments(3, {"forward": [0.01] * 30, "garbage collection": [0.2] * 3}))
    (found,) = find_slow(own_times(views))
    assert (found.rank, found.where) == (3, "garbage collection")
    assert found.excess_s == pytest.approx(0.02, rel=0.01)


def test_collectives_alone_tell_who_comes_late() -> None:
    views = []
    for rank in range(4):
        own = 0.03 if rank == 2 else 0.01
        calls = [("dp0", n, n + own, n + 0.99) for n in range(20)]
        views.append(view(rank, calls, 20.0))
    assert [one.rank for one in find_slow(own_times(views))] == [2]


def test_a_log_written_and_read_is_the_same_even_around_the_ring(tmp_path: Path) -> None:
    log = RankLog.create(tmp_path / "0.log", 0, {"dp": (0, 1)})
    for _ in range(ROWS // 2 + 100):
        with log.segment("input"), log.collective("dp"):
            pass
    (read,) = read_logs(tmp_path)
    assert read.members == {"dp": (0, 1)}
    assert len(read.events) == ROWS - 1
    assert (np.diff(read.events[:, 3]) >= 0).all()
    assert read.events[-1, 2] == ROWS // 2 + 99
    assert not read.ended


def test_watch_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        log = RankLog.create(tmp_path / f"{rank}.log", rank, {"dp": range(4)})
        for _ in range(12):
            with log.segment("input"):
                time.sleep(0.012 if rank == 2 else 0.001)
            with log.collective("dp"):
                pass
        log.end()
    assert main(["watch", str(tmp_path), "--report", str(tmp_path / "heat.html")]) == 0
    assert "rank 2 takes" in capsys.readouterr().out
    assert "rank 2 takes" in (tmp_path / "heat.html").read_text()
    assert main(["watch", str(tmp_path / "nowhere")]) == 2
    capsys.readouterr()
    assert main(["explain", str(tmp_path), "--silent", "--json"]) == 0
    assert '"rank": 2' in capsys.readouterr().out


def test_a_cut_off_log_is_one_clear_error(tmp_path: Path) -> None:
    RankLog.create(tmp_path / "0.log", 0)
    whole = (tmp_path / "0.log").read_bytes()
    (tmp_path / "0.log").write_bytes(whole[:-9])
    with pytest.raises(InputFileError, match="cut off"):
        read_logs(tmp_path)
    assert verdict([], 0.0).culprits == ()


def test_a_log_that_is_being_made_is_not_read_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RankLog.create(tmp_path / "a.log", 0)
    write = Path.write_text

    def meanwhile(self: Path, text: str) -> int:
        assert [view.rank for view in read_logs(tmp_path)] == [0]
        return write(self, text)

    monkeypatch.setattr(Path, "write_text", meanwhile)
    RankLog.create(tmp_path / "b.log", 1)
    assert [view.rank for view in read_logs(tmp_path)] == [0, 1]
