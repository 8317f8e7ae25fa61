"""Files written aside: the script sees what it did, and the folder that it works in stays as it was."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.capture.processes.write_overlay import writes_aside

NAMES = ("a", "b", "sub", "sub/a", "sub/c", "sub/deep", "sub/deep/a", "none/x")


def start(folder: Path) -> None:
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "a").write_text("first")
    (folder / "sub" / "c").write_text("second")


def snapshot(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text() if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


def written(mode: str) -> Callable[[Path, Path], object]:
    def write(path: Path, _: Path) -> object:
        with open(path, mode) as file:
            return file.write(mode)

    return write


def read_raw(path: Path, _: Path) -> object:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 100) if path.is_file() else None
    finally:
        os.close(descriptor)


def write_raw(path: Path, _: Path) -> object:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        return os.write(descriptor, b"raw")
    finally:
        os.close(descriptor)


def scanned(path: Path, _: Path) -> object:
    with os.scandir(path) as entries:
        return sorted((entry.name, entry.is_dir(), entry.is_file()) for entry in entries)


ACTIONS: dict[str, Callable[[Path, Path], object]] = {
    "read": lambda path, _: path.read_text(),
    "write": written("w"),
    "append": written("a"),
    "change": written("r+"),
    "create": written("x"),
    "read raw": read_raw,
    "write raw": write_raw,
    "exists": lambda path, _: (path.exists(), path.is_dir(), path.is_file(), os.access(path, os.R_OK)),
    "size": lambda path, _: path.stat().st_size if path.is_file() else None,
    "list": lambda path, _: sorted(os.listdir(path)),
    "scan": scanned,
    "walk": lambda path, _: sorted((sorted(folders), sorted(files)) for _, folders, files in os.walk(path)),
    "glob": lambda path, _: sorted(one.name for one in path.glob("**/*")),
    "make": lambda path, _: path.mkdir(),
    "make all": lambda path, _: os.makedirs(path, exist_ok=True),
    "remove": lambda path, _: path.unlink(),
    "remove folder": lambda path, _: path.rmdir(),
    "remove tree": lambda path, _: shutil.rmtree(path),
    "move": lambda path, other: os.replace(path, other) if path.is_file() and not other.is_dir() else None,
    "copy": lambda path, other: shutil.copy(path, other) and None,
    "truncate": lambda path, _: os.truncate(path, 2),
}


def outcome(action: Callable[[Path, Path], object], path: Path, other: Path) -> object:
    try:
        return action(path, other)
    except (FileNotFoundError, NotADirectoryError):  # which of the two depends on how deep it looked
        return "not there"
    except OSError as error:
        return type(error).__name__
    except shutil.SameFileError:
        return "same file"


STEPS = st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from(NAMES), st.sampled_from(NAMES))


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from(NAMES), st.sampled_from(NAMES)), max_size=14)
)
def test_a_script_sees_the_same_as_without(steps: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        plain, aside = Path(place) / "plain", Path(place) / "aside"
        for folder in (plain, aside):
            folder.mkdir()
            start(folder)
        wanted = [outcome(ACTIONS[name], plain / one, plain / two) for name, one, two in steps]
        before = snapshot(aside)
        with writes_aside(Path(place) / "scratch"):
            found = [outcome(ACTIONS[name], aside / one, aside / two) for name, one, two in steps]
            seen = snapshot(aside)
        assert found == wanted
        assert seen == snapshot(plain)
        assert snapshot(aside) == before


def test_temporary_files_are_aside_and_devices_are_as_they_are(tmp_path: Path) -> None:
    before = os.environ.get("TMPDIR")
    with writes_aside(tmp_path / "scratch"):
        with tempfile.NamedTemporaryFile() as file:
            assert file.name.startswith(str(tmp_path / "scratch"))
        with open(os.devnull, "w") as nothing:
            nothing.write("x")
    assert os.environ.get("TMPDIR") == before


def test_another_ranks_folders_are_made(tmp_path: Path) -> None:
    with writes_aside(tmp_path / "scratch", lenient=True):
        (tmp_path / "by_rank_0" / "file").write_text("x")
        assert (tmp_path / "by_rank_0" / "file").read_text() == "x"
    assert not (tmp_path / "by_rank_0").exists()
