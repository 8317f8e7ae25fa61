"""Captured folders that are not whole."""

import os
from pathlib import Path

import pytest

from windtunnel.errors import InputFileError
from windtunnel.studies.programs.folder import FORMAT, NAME, VERSION, CapturedFolder, sweep_place


def test_a_document_that_was_cut_short_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(f"format: {FORMAT}\nversion: {VERSION}\nworld_size: 2\n")
    with pytest.raises(InputFileError, match=r"has no `grid`: it was cut short or changed"):
        CapturedFolder(tmp_path)
    with (tmp_path / NAME).open("a") as file:
        file.write("grid: {sizes: 2, names: [dp]}\n")
    with pytest.raises(InputFileError, match="is malformed"):
        CapturedFolder(tmp_path)


def test_what_a_killed_capture_left_beside_its_folder_goes_and_the_earlier_folder_comes_back(tmp_path: Path) -> None:
    out = tmp_path / "job"
    stale, mine = tmp_path / ".job.windtunnel-999999999-ab", tmp_path / ".job.mine"
    (stale / "old").mkdir(parents=True)
    (stale / "old" / NAME).write_text("earlier")
    mine.mkdir()
    living = tmp_path / f".job.windtunnel-{os.getpid()}-ab"
    living.mkdir()
    sweep_place(out)
    assert (out / NAME).read_text() == "earlier"
    assert mine.exists()
    assert living.exists()
    assert not stale.exists()
