"""Files written aside: the script sees what it did, and the folder that it works in stays as it was."""

from __future__ import annotations

import bz2
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.real.capture.processes.file_mailbox import FileMailbox
from windtunnel.real.capture.processes.files_of_others import FilesOfOthers, files_of_others
from windtunnel.real.capture.processes.write_overlay import writes_aside
from windtunnel.studies.programs.communication import Communication

NAMES = ("a", "b", "sub", "sub/a", "sub/c", "sub/deep", "sub/deep/a", "none/x", "link", "link/a", "link/deep", "to_a")


def start(folder: Path) -> None:
    (folder / "sub" / "deep").mkdir(parents=True)
    (folder / "a").write_text("first")
    (folder / "sub" / "c").write_text("second")
    (folder / "link").symlink_to("sub")
    (folder / "to_a").symlink_to(folder / "a")


def snapshot(folder: Path) -> dict[str, str]:
    def told(path: Path) -> str:
        if path.is_symlink():
            return os.path.relpath(path.parent / os.readlink(path), path.parent)
        return path.read_text() if path.is_file() else "folder"

    return {str(path.relative_to(folder)): told(path) for path in sorted(folder.rglob("*"))}


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


def temporary_beside(path: Path, other: Path) -> object:
    """As files are written that must not be seen half."""
    with tempfile.NamedTemporaryFile("w", dir=other.parent, delete=False) as file:
        file.write("whole")
    try:
        return os.replace(file.name, path) if not path.is_dir() else None
    finally:
        Path(file.name).unlink(missing_ok=True)


def copied(path: Path, other: Path) -> object:
    if other.resolve().is_relative_to(path.resolve()):  # shutil would never come to an end
        return None
    return shutil.copytree(path, other / "copied", symlinks=True) and None


def packed(path: Path, other: Path) -> object:
    with bz2.open(path, "wb") as file:
        file.write(b"x")
    with tarfile.open(path, "w") as archive:
        archive.addfile(tarfile.TarInfo(other.name))
    with tarfile.open(path) as archive:
        return archive.getnames()


def from_inside(path: Path, _: Path) -> object:
    before = os.getcwd()
    os.chdir(path)
    try:
        Path("here").write_text("x")
        os.mkdir("more")
        return sorted(os.listdir("..")), Path("here").resolve() == path.resolve() / "here"
    finally:
        os.chdir(before)


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
    "remove tree": lambda path, _: None if path.is_symlink() else shutil.rmtree(path),
    "move": lambda path, other: os.replace(path, other) if path.is_file() and not other.is_dir() else None,
    "copy": lambda path, other: shutil.copy(path, other) and None,
    "copy all": lambda path, other: shutil.copy2(path, other) and None,
    "copy tree": copied,
    "truncate": lambda path, _: os.truncate(path, 2),
    "link to": lambda path, other: os.symlink(other, path),
    "link near": lambda path, other: os.symlink(os.path.relpath(other, path.parent), path),
    "second name": lambda path, other: os.link(other, path) if other.is_file() and not other.is_symlink() else None,
    "is link": lambda path, _: (path.is_symlink(), path.resolve().name),
    "bytes": lambda path, other: written("w")(os.fsencode(path), other),  # type: ignore[arg-type]
    "temporary beside": temporary_beside,
    "pack": packed,
    "from inside": from_inside,
}


def outcome(action: Callable[[Path, Path], object], path: Path, other: Path) -> object:
    try:
        return action(path, other)
    except (FileNotFoundError, NotADirectoryError):  # which of the two depends on how deep it looked
        return "not there"
    except shutil.Error:
        return "shutil"
    except OSError as error:
        return type(error).__name__


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


@contextmanager
def playing(rank: int, ours: Path, files: FilesOfOthers) -> Iterator[None]:
    with writes_aside(ours / f"written_{rank}", ours, lenient=rank > 0), files_of_others(files, writes=rank == 0):
        yield


def barrier(files: FilesOfOthers, number: int, members: tuple[int, ...] = (0, 1, 2, 3)) -> None:
    files.begin(Communication("barrier", f"of {len(members)}", members, 0, 0, sequence=number))


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    user, ours = tmp_path / "user", tmp_path / "ours"
    for one in (user, ours):
        one.mkdir()
    return user, ours


def test_who_waits_for_a_folder_sees_it_once_rank_0_has_made_it(places: tuple[Path, Path]) -> None:
    user, ours = places

    def looks(rank: int, path: Path, first: Callable[[], object] = lambda: None) -> list[bool]:
        with playing(rank, ours, FilesOfOthers(FileMailbox(ours, rank))):
            first()
            return [path.is_dir() for _ in range(4)]

    assert not any(looks(1, user / "saved"))

    def save() -> None:
        (user / "saved-tmp").mkdir()
        (user / "saved-tmp" / "rows").write_text("0")
        (user / "saved-tmp").replace(user / "saved")
        (user / "done").touch()

    assert all(looks(0, user / "saved", save))
    assert looks(2, user / "saved") == [False, False, True, True]
    with playing(5, ours, FilesOfOthers(FileMailbox(ours, 5))):
        assert [(user / "saved").is_dir() for _ in range(3)][-1]
        assert (user / "saved" / "rows").read_text() == "0"
    assert not any(looks(3, user / "other"))
    assert not any(looks(3, user / "done"))  # as a script does that asks whether there is a checkpoint
    assert not list(user.iterdir())


def test_what_rank_0_writes_is_there_behind_the_barrier_and_not_before(places: tuple[Path, Path]) -> None:
    user, ours = places
    (user / "old").write_text("of the user")
    (user / "gone").write_text("of the user")
    with playing(0, ours, files := FilesOfOthers(FileMailbox(ours, 0))):
        barrier(files, 0)
        (user / "index.tmp").write_text("numbers")
        os.replace(user / "index.tmp", user / "index")
        (user / "old").write_text("of rank 0")
        (user / "gone").unlink()
        (user / "made").mkdir()
        (user / "latest").symlink_to("made")
        barrier(files, 1)
        (user / "index").write_text("others")
        (user / "made" / "inside").write_text("deep")
        os.rename(user / "made", user / "moved")
        barrier(files, 0, (0, 1))
    with playing(1, ours, files := FilesOfOthers(FileMailbox(ours, 1))):
        barrier(files, 0)
        assert sorted(os.listdir(user)) == ["gone", "old"]
        assert (user / "old").read_text() == "of the user"
        barrier(files, 1)
        assert sorted(os.listdir(user)) == ["index", "latest", "made", "old"]
        assert [(user / name).read_text() for name in ("index", "old")] == ["numbers", "of rank 0"]
        assert os.readlink(user / "latest") == "made"
        barrier(files, 0, (0, 1))
        assert (user / "index").read_text() == "others"
        assert not (user / "made").exists()
        assert (user / "moved" / "inside").read_text() == "deep"
    with playing(2, ours, files := FilesOfOthers(FileMailbox(ours, 2))):
        for number in range(3):
            barrier(files, number)
        assert (user / "index").read_text() == "others"  # later calls of all come behind rank 0's among two
        barrier(files, 0, (2, 3))
    assert sorted(os.listdir(user)) == ["gone", "old"]
    assert (user / "old").read_text() == "of the user"


def test_what_a_rank_writes_itself_stays_its_own(places: tuple[Path, Path]) -> None:
    """Each may make its data set, under equal names; rank 0's unfinished one is gone before others have theirs."""
    user, ours = places
    with playing(0, ours, files := FilesOfOthers(FileMailbox(ours, 0))):
        (user / "unfinished").mkdir()
        (user / "unfinished" / "rows").write_text("0")
        (user / "unfinished").rename(user / "set")
        barrier(files, 0)
    with playing(1, ours, files := FilesOfOthers(FileMailbox(ours, 1))):
        (user / "unfinished").mkdir()
        (user / "unfinished" / "rows").write_text("1")
        barrier(files, 0)
        assert (user / "unfinished" / "rows").read_text() == "1"
        assert (user / "set" / "rows").read_text() == "0"
        (user / "set" / "rows").write_text("1")
        barrier(files, 1)
        assert (user / "set" / "rows").read_text() == "1"
