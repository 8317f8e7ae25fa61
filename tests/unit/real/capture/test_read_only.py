"""Nothing changes but in a few folders, whoever tries by whatever way; and what a training script needs goes on."""

from __future__ import annotations

import ctypes
import io
import json
import mmap
import multiprocessing
import os
import posix
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest

from windtunnel.real.capture.processes import read_only

PARTS = ("_mount_read_only", "_landlock")


def in_a_fork(what: Callable[[], object]) -> object:
    """What a function gives in a fork of this process, as JSON; its traceback where it raises."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            answer = json.dumps(what())
        except BaseException:
            answer = json.dumps(traceback.format_exc())
        with os.fdopen(writing, "w") as out:
            out.write(answer)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as found:
        answer = found.read()
    os.waitpid(pid, 0)
    return json.loads(answer)


def allowed() -> tuple[str, ...]:
    """Which of the two parts this system has."""

    def alone(part: str) -> str:
        getattr(read_only, part)([tempfile.gettempdir()])
        return "held"

    return tuple(part for part in PARTS if in_a_fork(partial(alone, part)) == "held")


ALLOWED = allowed()
needs_both = pytest.mark.skipif(len(ALLOWED) < 2, reason=f"this system only has {ALLOWED}")


def libc(name: str, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def program(*words: str) -> None:
    if subprocess.run(words, capture_output=True).returncode:
        raise OSError(0, words[0])


def python(text: str, *words: str) -> None:
    program(sys.executable, "-I", "-S", "-c", text, *words)


def rewritten(path: str) -> None:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        content[0] = 0


def reopened(path: str) -> None:
    with open(path, "rb") as file:
        os.close(os.open(f"/proc/self/fd/{file.fileno()}", os.O_WRONLY))


def made_beside(path: str) -> None:
    folder = os.open(os.path.dirname(path), os.O_RDONLY)
    os.close(os.open("made", os.O_CREAT | os.O_WRONLY, dir_fd=folder))


# By what a script may try on a file, a folder and a link to the file. Each changes something where nobody refuses.
CONTENT: dict[str, Callable[[str], object]] = {
    "open": lambda file: open(file, "w").close(),
    "append": lambda file: open(file, "a").close(),
    "io.FileIO": lambda file: io.FileIO(file, "w").close(),
    "os.open": lambda file: os.close(os.open(file, os.O_RDWR)),
    "os.open of a folder": made_beside,
    "posix": lambda file: posix.close(posix.open(file, os.O_WRONLY | os.O_TRUNC)),
    "truncate": lambda file: os.truncate(file, 0),
    "mmap": rewritten,
    "sh": lambda file: program("sh", "-c", f"echo x > {file}"),
    "cp": lambda file: program("cp", "/etc/hostname", file),
    "rm": lambda file: program("rm", "-f", file),
    "python": lambda file: python("import sys; open(sys.argv[1], 'a').write('x')", file),
    "ctypes open": lambda file: libc("open", file.encode(), os.O_WRONLY | os.O_APPEND),
    "ctypes unlink": lambda file: libc("unlink", file.encode()),
    "/proc/self/root": lambda file: open(f"/proc/self/root{file}", "a").close(),
    "/proc/self/cwd": lambda file: open(f"/proc/self/cwd/{os.path.relpath(file)}", "a").close(),
    "/proc/parent/root": lambda file: open(f"/proc/{os.getppid()}/root{file}", "a").close(),
    "/proc/self/fd": reopened,
    "unlink": os.unlink,
    "rename": lambda file: os.rename(file, f"{file}.2"),
    "replace": lambda file: os.replace(f"{file}.link", file),
    "link": lambda file: os.link(file, f"{file}.3"),
    "link into the scratch": lambda file: os.link(file, os.path.join(os.environ["SCRATCH"], "linked")),
    "move into the scratch": lambda file: os.rename(file, os.path.join(os.environ["SCRATCH"], "moved")),
    "symlink": lambda file: os.symlink(file, f"{file}.4"),
    "through a link": lambda file: io.FileIO(f"{file}.link", "w").close(),
    "mkdir": lambda file: os.mkdir(f"{file}.5"),
    "mkfifo": lambda file: os.mkfifo(f"{file}.6"),
    "rmtree": lambda file: shutil.rmtree(os.path.dirname(file)),
    "remount": lambda file: libc("mount", None, b"/", None, 32 | 4096, None) or open(file, "a").close(),
    "bind over": lambda file: libc("mount", b"/etc", os.path.dirname(file).encode(), None, 4096, None),
    "another namespace": lambda file: libc("unshare", 0x10020000) or libc("mount", None, b"/", None, 32 | 4096, None),
}  # fmt: skip
ABOUT_IT: dict[str, Callable[[str], object]] = {
    "chmod": lambda file: os.chmod(file, 0o600),
    "utime": lambda file: os.utime(file, (1, 1)),
    "touch": lambda file: program("touch", file),
    "ctypes chmod": lambda file: libc("chmod", file.encode(), 0o600),
    "chown": lambda file: os.chown(file, os.getuid(), os.getgid()),
    "setxattr": lambda file: os.setxattr(file, "user.x", b"1"),
}


def files(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that can be known of what lies there."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes().hex() if path.is_file() else ""
        found[str(path)] = (content, about.st_mode, about.st_mtime_ns, about.st_ctime_ns, about.st_ino, about.st_nlink)
    return found


def tried(ways: dict[str, Callable[[str], object]], folder: Path, scratch: Path) -> dict[str, str]:
    """What became of each: the name of the error, or "done"."""
    os.environ["SCRATCH"] = str(scratch)
    os.chdir(folder)
    outcomes = {}
    for name, way in ways.items():
        try:
            way(str(folder / "file"))
            outcomes[name] = "done"
        except OSError as error:
            outcomes[name] = type(error).__name__
    return outcomes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "theirs"
    made.mkdir()
    (made / "file").write_text("precious")
    (made / "file.link").symlink_to(made / "file")
    (tmp_path / "scratch").mkdir()
    return made


def test_each_way_changes_something_where_nobody_refuses(folder: Path) -> None:
    """Else the tests below would hold nothing. Mounts need rights, and threads keep a process in its namespace."""
    scratch = folder.parent / "scratch"
    needs_rights = {"remount", "bind over", "another namespace", "/proc/parent/root", "setxattr"}
    for name, way in (CONTENT | ABOUT_IT).items():
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(scratch)
        scratch.mkdir()
        folder.mkdir()
        (folder / "file").write_text("precious")
        (folder / "file.link").symlink_to(folder / "file")
        if name not in needs_rights:
            assert in_a_fork(partial(tried, {name: way}, folder, scratch)) == {name: "done"}


@needs_both
def test_nothing_changes_by_any_way(folder: Path) -> None:
    scratch = folder.parent / "scratch"
    before = files(folder)

    def attempt() -> object:
        assert read_only.hold_files(scratch) == ""
        return tried(CONTENT | ABOUT_IT, folder, scratch)

    outcomes = in_a_fork(attempt)
    assert isinstance(outcomes, dict), outcomes
    assert {name for name, outcome in outcomes.items() if outcome == "done"} == set()
    assert files(folder) == before
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("part", PARTS)
def test_contents_do_not_change_where_the_system_has_one_part_alone(part: str, folder: Path) -> None:
    if part not in ALLOWED:
        pytest.skip("this system has it not")
    scratch = folder.parent / "scratch"
    before = files(folder)
    escapes = (
        {"remount", "bind over", "another namespace", "/proc/parent/root"} if part == "_mount_read_only" else set()
    )
    ways = {name: way for name, way in CONTENT.items() if name not in escapes}  # why there are two

    def attempt() -> object:
        getattr(read_only, part)([str(scratch)])
        return tried(ways, folder, scratch)

    outcomes = in_a_fork(attempt)
    assert isinstance(outcomes, dict), outcomes
    assert {name for name, outcome in outcomes.items() if outcome == "done"} == set()
    assert files(folder) == before


def _fill(name: str) -> None:
    memory = SharedMemory(name)
    memory.buf[0] = 7
    memory.close()


def test_what_a_script_needs_goes_on(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (tmp_path / "data").write_text("data")

    def work() -> object:
        read_only.hold_files(scratch)
        os.environ["TMPDIR"] = str(scratch)
        tempfile.tempdir = None
        assert (tmp_path / "data").read_text() == "data"
        with tempfile.TemporaryDirectory() as place:
            (Path(place) / "a").write_text("1")
            os.rename(Path(place) / "a", Path(place) / "b")
            (Path(place) / "c").symlink_to("b")
            os.link(Path(place) / "b", Path(place) / "d")
            os.chmod(Path(place) / "b", 0o600)
            program("sh", "-c", f"echo 2 >> {place}/c && echo x > /dev/null && mkfifo {place}/e")
            assert (Path(place) / "d").read_text() == "12\n"
        with open("/dev/null", "w") as nothing:
            nothing.write("x")
        context = multiprocessing.get_context("fork")
        memory = SharedMemory(create=True, size=16)
        lock, queue = context.Lock(), context.Queue()
        with lock:
            worker = context.Process(target=_fill, args=(memory.name,))
            worker.start()
            worker.join()
        queue.put(memory.buf[0])
        first, _ = os.openpty()
        os.close(first)
        memory.close()
        memory.unlink()
        with multiprocessing.connection.Listener(str(scratch / "socket"), "AF_UNIX"):
            pass
        os.kill(os.getpid(), 0)
        return queue.get(timeout=20)

    assert in_a_fork(work) == 7


def test_the_command_finds_and_ends_what_it_started(tmp_path: Path) -> None:
    """A held process is known by its environment and can be killed, by whoever started it."""
    from windtunnel.real.capture.processes.leftovers import FOLDER_VARIABLE, _started_in, end_all

    text = (
        f"import sys, time; from pathlib import Path; from {read_only.__name__} import hold_files;"
        "print(hold_files(Path(sys.argv[1])), flush=True); time.sleep(600)"
    )
    environment = {**os.environ, FOLDER_VARIABLE: str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", text, str(tmp_path)], stdout=subprocess.PIPE, env=environment) as held:
        assert held.stdout is not None
        held.stdout.readline()
        assert _started_in(tmp_path) == [held.pid]
        end_all(tmp_path)
        assert held.wait(20) == -9


@pytest.mark.parametrize(
    ("lost", "said"), [(("_mount_read_only",), "permissions and times"), (("_landlock",), "files"), (PARTS, "files")]
)
def test_where_the_system_refuses_one_line_says_what_is_not_held(
    lost: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(places: object) -> None:
        raise OSError(1, "Operation not permitted")

    for part in PARTS:
        monkeypatch.setattr(read_only, part, refuses if part in lost else lambda places: None)
    line = read_only.hold_files(tmp_path)
    assert f"may change {said}:" in line.replace("their ", "")
    assert line.count("Operation not permitted") == len(lost)
    assert "\n" not in line


def overlays() -> bool:
    """Whether this process may lay overlays here."""
    with tempfile.TemporaryDirectory() as place:
        return bool(in_a_fork(lambda: read_only.copy_files(Path(place) / "copies", Path(place))))


needs_overlays = pytest.mark.skipif(not overlays(), reason="this process may not mount overlays")


@needs_overlays
def test_a_copy_changes_by_any_way_and_the_files_do_not(folder: Path) -> None:
    """Ways that lead out of the copy are refused; what others do is seen by who did it, and by nobody else."""
    scratch = folder.parent / "scratch"
    before = files(folder)
    out = {"/proc/parent/root", "remount", "bind over", "another namespace"}  # or mount, which nothing here may
    into = {"link into the scratch", "move into the scratch"}  # another file system

    def one(name: str) -> object:
        assert read_only.copy_files(scratch / f"copies_{len(name)}", scratch)
        done = tried({name: (CONTENT | ABOUT_IT)[name]}, folder, scratch)
        return done[name], files(folder) != before

    for name in CONTENT | ABOUT_IT:
        shutil.rmtree(scratch)
        scratch.mkdir()
        outcome, changed = in_a_fork(partial(one, name))  # type: ignore[misc]
        if name in out | into:
            assert (outcome, changed) != ("done", True), name
        else:
            assert (outcome, changed) == ("done", True), name
        assert files(folder) == before, name


@needs_overlays
def test_a_copy_is_where_it_was_and_what_a_library_writes_is_read_back(folder: Path) -> None:
    scratch = folder.parent / "scratch"
    os.chdir(folder)

    def work() -> object:
        assert read_only.copy_files(scratch / "copies", scratch)
        program("sh", "-c", "mkdir -p new/folder && echo written > new/folder/file && mv new moved")
        (scratch / "ours").write_text("x")
        return [Path("moved/folder/file").read_text(), os.getcwd() == str(folder), sorted(os.listdir())]

    assert in_a_fork(work) == ["written\n", True, ["file", "file.link", "moved"]]
    assert sorted(os.listdir(folder)) == ["file", "file.link"]
    assert (scratch / "ours").read_text() == "x"
