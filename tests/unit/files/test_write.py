"""Files that appear whole, as anybody's files do."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from windtunnel.errors import InputFileError
from windtunnel.faces.report.run_list import RunList
from windtunnel.files.write import check_writable, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def test_a_file_has_the_mode_of_any_other_and_the_umask_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The umask belongs to all threads: others make files meanwhile."""
    (tmp_path / "any").touch()

    def set_by_us(mask: int) -> int:
        raise AssertionError(f"the umask of all threads was set to {mask}")

    monkeypatch.setattr(os, "umask", set_by_us)
    write_atomically(tmp_path / "ours", b"x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_what_cannot_be_put_in_place_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(InputFileError, match="cannot be written"):
        write_atomically(tmp_path / "taken", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("name", ["9" * 400, "\N{COLLISION SYMBOL}" * 100, "a" * 300 + "/b.csv"])
def test_a_name_too_long_for_a_file_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    for place in (tmp_path / name, Path(name)):
        with pytest.raises(InputFileError, match="cannot be written"):
            check_writable(place)


def test_of_many_writers_one_is_read(tmp_path: Path) -> None:
    texts = [bytes([65 + number]) * 100_000 for number in range(8)]
    writers: list[Any] = [threading.Thread(target=write_atomically, args=(tmp_path / "f", text)) for text in texts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (tmp_path / "f").read_bytes() in texts
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("act", [lambda runs, name: runs.delete(name), lambda runs, name: runs.tag(name, "late")])
def test_a_run_that_another_tab_deletes_first_is_one_clear_message(tmp_path: Path, act: Callable[..., Any]) -> None:
    name = "0123456789ab"
    (tmp_path / name).mkdir()
    (tmp_path / name / "result.json").write_text("{}")
    runs: Any = RunList(tmp_path)

    @contextmanager
    def after_the_other() -> Iterator[None]:
        shutil.rmtree(tmp_path / name)
        yield

    runs._lock = after_the_other()
    with pytest.raises(InputFileError, match="is no run of this list"):
        act(runs, name)
    assert runs.tags() == {}


def test_a_pipe_or_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    write_atomically(tmp_path / "pipe", b"x" * 100_000)
    reader.join(10)
    assert read == [b"x" * 100_000]
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to("/dev/full")
    with pytest.raises(InputFileError, match="No space left"):
        write_atomically(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
