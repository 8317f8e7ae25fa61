"""What is measured survives: cut lines, damage, another device."""

from __future__ import annotations

from pathlib import Path

import pytest

from windtunnel.errors import InputFileError
from windtunnel.real.calibrate.journal import journal_path, open_journal
from windtunnel.real.calibrate.session import recalled

IDENTITY: dict[str, object] = {"device": "a CPU", "kind": "cpu", "threads": 2, "torch": "2.13.0"}
POINT = {
    **{"kind": "gemm", "phase": "forward", "dtype": "fp32", "shape": [128, 256, 256]},
    **{"median_s": 2e-4, "p10_s": 1e-4, "p90_s": 3e-4, "n": 9, "outliers": 0, "disturbed": 1, "spent_s": 4.5},
}


def written(path: Path) -> bytes:
    journal, kept = open_journal(path, IDENTITY)
    assert not kept.records
    journal.append(POINT)
    journal.append({"group": "host", "name": "launch_eager_s", "value": 2e-6, "spent_s": 5.0})
    journal.append({"note": "warm"})
    journal.close()
    return path.read_bytes()


def test_what_was_written_is_read_again(tmp_path: Path) -> None:
    path = journal_path(tmp_path / "my.yaml")
    written(path)
    journal, kept = open_journal(path, IDENTITY)
    journal.close()
    found = recalled(kept)
    assert (found.n_points, kept.damaged, kept.spent_s) == (1, 0, 5.0)
    assert found.values["host"]["launch_eager_s"] == 2e-6
    assert found.notes == ["warm"]


def test_every_cut_keeps_the_whole_lines_before_it(tmp_path: Path) -> None:
    path = tmp_path / "j"
    data = written(path)
    header = data.index(b"\n") + 1
    for cut in range(header, len(data)):
        path.write_bytes(data[:cut])
        journal, kept = open_journal(path, IDENTITY)
        journal.append({"note": "after"})
        journal.close()
        assert len(kept.records) == data[:cut].count(b"\n") - 1
        again, kept = open_journal(path, IDENTITY)
        again.close()
        assert kept.damaged == 0
        assert kept.records[-1] == {"note": "after"}


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "j"
    data = written(path).splitlines(keepends=True)
    path.write_bytes(b"".join([data[0], b"\xff\x00rubbish\n", b"[1, 2]\n", *data[1:]]))
    journal, kept = open_journal(path, IDENTITY)
    journal.close()
    assert kept.damaged == 2
    assert recalled(kept).n_points == 1


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "nonsense"},
        {"phase": "sideways"},
        {"shape": "x"},
        {"median_s": -1.0},
        {"p10_s": 1.0},
        {"n": None},
    ],
)
def test_records_without_sense_are_left_out(tmp_path: Path, change: dict[str, object]) -> None:
    journal, _ = open_journal(tmp_path / "j", IDENTITY)
    journal.append({**POINT, **change})
    journal.close()
    journal, kept = open_journal(tmp_path / "j", IDENTITY)
    journal.close()
    assert recalled(kept).n_points == 0


def test_another_device_is_refused_and_its_journal_kept(tmp_path: Path) -> None:
    data = written(tmp_path / "j")
    with pytest.raises(InputFileError, match=r"threads 2, and this is 4.*remove it"):
        open_journal(tmp_path / "j", {**IDENTITY, "threads": 4})
    (tmp_path / "other").write_text("dear diary\n")
    with pytest.raises(InputFileError, match="no journal"):
        open_journal(tmp_path / "other", IDENTITY)
    assert (tmp_path / "j").read_bytes() == data
    assert (tmp_path / "other").read_text() == "dear diary\n"


def test_a_finished_journal_goes(tmp_path: Path) -> None:
    journal, _ = open_journal(tmp_path / "deep" / "j", IDENTITY)
    journal.close(remove=True)
    assert not (tmp_path / "deep" / "j").exists()
