"""Captured folders that are not whole."""

from pathlib import Path

import pytest

from windtunnel.errors import InputFileError
from windtunnel.programs.folder import FORMAT, NAME, VERSION, CapturedFolder


def test_a_document_that_was_cut_short_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(f"format: {FORMAT}\nversion: {VERSION}\nworld_size: 2\n")
    with pytest.raises(InputFileError, match=r"has no `grid`: it was cut short or changed"):
        CapturedFolder(tmp_path)
    with (tmp_path / NAME).open("a") as file:
        file.write("grid: {sizes: 2, names: [dp]}\n")
    with pytest.raises(InputFileError, match="is malformed"):
        CapturedFolder(tmp_path)
