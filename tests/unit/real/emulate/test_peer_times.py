"""Times of a rank, written by one run and read by another."""

import json
from pathlib import Path

import numpy as np
import pytest

from windtunnel.errors import InputFileError, UserError
from windtunnel.real.emulate.peers.host_program import Event, HostProgram
from windtunnel.real.emulate.peers.other_classes import other_classes
from windtunnel.real.emulate.peers.peer_times import by_class, document, load_times
from windtunnel.studies.programs.communication import Communication
from windtunnel.studies.programs.job import CapturedJob
from windtunnel.studies.programs.program import Op, RankProgram


def call(kind: str, rank: int, peer: int = -1, size: int = 8) -> Communication:
    return Communication(kind, "0", (0, 1, 2, 3), rank, size, "float32", peer)


CALLS = (call("recv", 1, 0), call("all_to_all", 1))
EVENTS = (Event(False, 0), Event(True, 0), Event(False, 1), Event(True, 1, 1))
MEASURED = HostProgram(1, CALLS, EVENTS, np.array([[1.0, 2.0, 3.0, 4.0, 5.0], [3.0, 2.0, 1.0, 0.0, 5.0]]))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "rank1.json"
    path.write_text(json.dumps(document(MEASURED, 4)))
    return path


@pytest.fixture
def job() -> CapturedJob:
    ops = [
        Op("c10d.recv_", "communication", communication=CALLS[0]),
        Op("c10d.send", "communication", communication=Communication("send", "0", (0, 1, 2, 3), 1, 8, is_control=True)),
        Op("aten.mm", "compute", flops=7.0),
        Op("c10d.alltoall_", "communication", communication=CALLS[1]),
    ]
    first = RankProgram(0, 4, (Op("aten.mm", "compute", flops=1.0),))
    return CapturedJob(4, {0: first, 1: RankProgram(1, 4, tuple(ops))}, np.array([0, 1, 1, 0], np.int32), ())


def test_what_is_read_is_what_was_written_with_one_typical_step(written: Path) -> None:
    program, world_size = load_times(written)
    assert (program.rank, program.calls, program.events, world_size) == (1, CALLS, EVENTS, 4)
    assert program.seconds.tolist() == [[2.0, 2.0, 2.0, 2.0, 5.0]]


def test_a_class_that_was_measured_needs_no_price(job: CapturedJob, written: Path) -> None:
    _, others = other_classes(job, 0, lambda op: (op.flops, 0), by_class(job, 0, [written]))
    ((program, ranks),) = others(HostProgram(0, (), (), np.array([[1.0]])))
    assert program.seconds.tolist() == [[2.0, 2.0, 2.0, 2.0, 5.0]]
    assert list(ranks) == [1, 2]


def test_any_rank_of_a_class_may_have_measured_it(job: CapturedJob, tmp_path: Path) -> None:
    """Its groups and peers are others than those of the captured rank, and so are amounts of uneven exchanges."""
    calls = (
        Communication("recv", "7", (0, 1, 2, 3), 2, 8, "float32", 3),
        Communication("all_to_all", "8", (0, 1, 2, 3), 2, 24, "float32"),
    )
    path = tmp_path / "rank2.json"
    path.write_text(json.dumps(document(HostProgram(2, calls, EVENTS, MEASURED.seconds), 4)))
    assert by_class(job, 0, [path])[1].calls == calls


def test_times_that_cannot_be_of_this_job_are_refused(job: CapturedJob, written: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="rank 1, which runs what rank 2 does"):
        by_class(job, 2, [written])
    with pytest.raises(UserError, match="given already"):
        by_class(job, 0, [written, written])
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document(MEASURED, 8)))
    with pytest.raises(UserError, match="among 8 ranks"):
        by_class(job, 0, [other])
    changed = HostProgram(1, (CALLS[0], call("all_reduce", 1)), EVENTS, MEASURED.seconds)
    other.write_text(json.dumps(document(changed, 4)))
    with pytest.raises(UserError, match=r"another program.*number 1 differs"):
        by_class(job, 0, [other])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("[]", "holds no times"),
        ('{"format": "windtunnel times of a rank 1"}', "cut short"),
    ],
)
def test_another_file_is_named(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputFileError, match=says):
        load_times(path)
    with pytest.raises(InputFileError, match="cannot be read"):
        load_times(tmp_path / "none.json")


def test_seconds_that_are_too_few_are_cut_short(tmp_path: Path) -> None:
    found = document(MEASURED, 4)
    found["seconds"] = found["seconds"][:-1]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(found))
    with pytest.raises(InputFileError, match="do not fit together"):
        load_times(path)
