"""What a script writes while it is captured goes to a scratch folder; none of its files changes.

A capture runs the script's first steps only, with tensors that hold no data: what it would write is worth nothing, and
must not take the place of what is there. So every way in which Python opens a file for writing, or makes, moves or
removes one, works on a copy below `scratch`, and reading looks there first: a script finds what it wrote, and what it
removed is gone, for the script alone.

    read   PATH   scratch/PATH if the script wrote it, else PATH, unless the script removed it
    write  PATH   scratch/PATH; what is at PATH is copied there first where the mode keeps it (a, r+)

Devices and pipes are as they are. Programs that the script starts, and libraries that write from C or Rust, are not
followed.
"""

from __future__ import annotations

import builtins
import errno
import io
import multiprocessing
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SYSTEM = ("/dev", "/proc", "/sys")
# As they were before anything was replaced.
_open: Any = io.open
_stat: Any = os.stat
_lstat: Any = os.lstat
_mkdir: Any = os.mkdir
_listdir: Callable[[Any], list[str]] = os.listdir
_replace: Callable[..., None] = os.replace


class _Entry:
    """What `os.scandir` yields, of a folder that lies in two places."""

    def __init__(self, path: str, real: str) -> None:
        self.path, self.name, self._real = path, os.path.basename(path), real

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        status: os.stat_result = _stat(self._real, follow_symlinks=follow_symlinks)
        return status

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def _is(self, kind: Callable[[int], bool], follow_symlinks: bool) -> bool:
        with suppress(OSError):
            return kind(self.stat(follow_symlinks=follow_symlinks).st_mode)
        return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self._is(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        return False


class _Entries:
    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[_Entry]:
        return self._entries

    def __next__(self) -> _Entry:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def close(self) -> None:
        pass


class _Overlay:
    """Paths as the script means them, and where they really lie."""

    def __init__(self, scratch: Path, ours: tuple[str, ...], lenient: bool) -> None:
        self.root, self.lenient = str(scratch), lenient
        self.as_they_are = (*_SYSTEM, *ours, self.root)
        self.removed: set[str] = set()  # real paths that the script removed

    def follows(self, path: object) -> bool:
        """Whether this is a path of the file system that is looked after here."""
        if not isinstance(path, (str, os.PathLike)):  # a descriptor, or bytes
            return False
        whole = self._whole(path)
        return not any(whole == one or whole.startswith(one + os.sep) for one in self.as_they_are)

    def _whole(self, path: str | os.PathLike[str]) -> str:
        # The folder's links are followed, so that a file has one name; the last part's are not.
        head, tail = os.path.split(os.path.abspath(os.fspath(path)))
        return os.path.join(head, tail)

    def aside(self, path: str | os.PathLike[str]) -> str:
        """Where the script's own version of a path lies."""
        return self.root + self._whole(path)

    def is_aside(self, path: str | os.PathLike[str]) -> bool:
        try:
            _lstat(self.aside(path))
        except OSError:
            return False
        return True

    def is_removed(self, whole: str) -> bool:
        return any(whole == one or whole.startswith(one + os.sep) for one in self.removed)

    def to_read(self, path: Any) -> Any:
        """Where to read a path. FileNotFoundError for what the script removed."""
        if not self.follows(path):
            return path
        if self.is_aside(path):
            return self.aside(path)
        if self.removed and self.is_removed(self._whole(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return path

    def exists(self, path: Any) -> bool:
        try:
            _lstat(self.to_read(path))
        except OSError:
            return False
        return True

    def to_write(self, path: Any, *, keep: bool = False) -> Any:
        """Where to write a path; `keep`: with what is there now."""
        if not self.follows(path):
            return path
        target = self.aside(path)
        parent = os.path.dirname(self._whole(path))
        if self.exists(parent) and not stat.S_ISDIR(_stat(self.to_read(parent)).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        if not self.exists(parent) and not self.lenient:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        self._folders(os.path.dirname(target))
        if keep and not self.is_aside(path) and self.exists(path):
            with _open(self._whole(path), "rb") as source, _open(target, "wb") as copy:
                shutil.copyfileobj(source, copy)
        return target

    def file_to_write(self, path: Any, *, keep: bool) -> Any:
        """`to_write` of what must be no folder."""
        if self.exists(path) and self._is_folder(self.to_read(path)):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return self.to_write(path, keep=keep)

    def _folders(self, folder: str) -> None:
        missing = []
        while not self._is_folder(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for one in reversed(missing):
            _mkdir(one)

    def _is_folder(self, folder: str) -> bool:
        try:
            return stat.S_ISDIR(_stat(folder).st_mode)
        except OSError:
            return False

    def names(self, path: Any) -> list[str]:
        """What a folder holds, as the script sees it."""
        whole, found, known = self._whole(path), set(), False
        if not self.is_removed(whole) and self._is_folder(whole):
            found, known = set(_listdir(whole)), True
        if self._is_folder(self.aside(path)):
            found, known = found | set(_listdir(self.aside(path))), True
        if not known:
            return _listdir(self.to_read(path))  # raises what it should
        gone = {name for name in found if os.path.join(whole, name) in self.removed}
        return sorted(name for name in found if name not in gone or self.is_aside(os.path.join(whole, name)))

    def forget(self, path: Any, take: Callable[[str], None], folder: bool) -> None:
        """Remove a file or an empty folder, for the script."""
        here = self.to_read(path)
        is_folder = stat.S_ISDIR(_lstat(here).st_mode)
        if is_folder and not folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if folder and not is_folder:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        if folder and self.names(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
        if self.is_aside(path):
            take(here)
        with suppress(OSError):
            _lstat(self._whole(path))
            self.removed.add(self._whole(path))


def short_place_for_sockets(folder: str) -> Callable[[], None]:
    """Have multiprocessing use this folder for its sockets, whose paths may have 108 bytes; how to undo it.

    A descriptor of the folder has a short path as long as this process lives. Elsewhere than on Linux there is none,
    and the folder's own path has to be short enough.
    """
    if not os.path.isdir("/proc/self/fd"):
        return lambda: None
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    settings: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    before = settings.get("tempdir")
    settings["tempdir"] = f"/proc/{os.getpid()}/fd/{descriptor}"

    def undo() -> None:
        settings["tempdir"] = before
        os.close(descriptor)

    return undo


@contextmanager
def writes_aside(scratch: Path, *ours: Path, lenient: bool = False) -> Iterator[None]:
    """While this holds, this process and its forks change no file but below `scratch` and in the folders `ours`.

    `lenient`: a folder that is missing is made, because another rank would have made it.
    """
    scratch.mkdir(parents=True, exist_ok=True)
    over = _Overlay(scratch.resolve(), tuple(str(path.resolve()) for path in ours), lenient)
    kept: list[tuple[Any, str, Any]] = []

    def put(module: Any, name: str, new: Any) -> None:
        kept.append((module, name, getattr(module, name)))
        setattr(module, name, new)

    real_os_open = os.open

    def opened(file: Any, mode: str = "r", *more: Any, **keywords: Any) -> Any:
        if over.follows(file):
            writes = any(letter in mode for letter in "wax+")
            if "x" in mode and over.exists(file):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(file))
            file = over.file_to_write(file, keep="a" in mode or "r" in mode) if writes else over.to_read(file)
        return _open(file, mode, *more, **keywords)

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is None and over.follows(path):
            if flags & _WRITES:
                if flags & os.O_EXCL and over.exists(path):
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
                if not flags & os.O_CREAT and not over.exists(path):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
                path = over.file_to_write(path, keep=not flags & os.O_TRUNC)
            else:
                path = over.to_read(path)
        return real_os_open(path, flags, mode, dir_fd=dir_fd)

    def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is None and over.follows(path):
            if over.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            path = over.to_write(path)
        _mkdir(path, mode) if dir_fd is None else _mkdir(path, mode, dir_fd=dir_fd)

    def moved(source: Any, target: Any, **keywords: Any) -> None:
        if not over.follows(source) and not over.follows(target):
            return _replace(source, target, **keywords)
        if over.follows(source) and not over.is_aside(source):
            here = over.to_read(source)
            if over._is_folder(here):
                shutil.copytree(here, over.to_write(source))
            else:
                over.to_write(source, keep=True)
        _replace(over.to_read(source), over.to_write(target))
        with suppress(OSError):
            _lstat(over._whole(source))
            over.removed.add(over._whole(source))
        return None

    def removing(name: str) -> Callable[..., None]:
        take = getattr(os, name)

        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            if dir_fd is None and over.follows(path):
                over.forget(path, take, name == "rmdir")
            else:
                take(path) if dir_fd is None else take(path, dir_fd=dir_fd)

        return remove

    def reading(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def read(path: Any, *more: Any, **keywords: Any) -> Any:
            return real(over.to_read(path) if keywords.get("dir_fd") is None else path, *more, **keywords)

        return read

    def writing(name: str) -> Callable[..., Any]:
        real = getattr(os, name)

        def write(path: Any, *more: Any, **keywords: Any) -> Any:
            if keywords.get("dir_fd") is None and over.follows(path):
                if not over.exists(path):
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
                folder = over._is_folder(over.to_read(path))
                path = over.to_write(path, keep=not folder)
                if folder:
                    over._folders(path)
            return real(path, *more, **keywords)

        return write

    def linking(name: str) -> Callable[..., None]:
        real = getattr(os, name)

        def link(source: Any, target: Any, **keywords: Any) -> None:
            real(source if name == "symlink" else over.to_read(source), over.to_write(target), **keywords)

        return link

    def access(path: Any, mode: int, **keywords: Any) -> bool:
        try:
            return real_access(over.to_read(path), mode, **keywords)
        except FileNotFoundError:
            return False

    def listdir(path: Any = ".") -> list[Any]:
        return over.names(path) if over.follows(path) else _listdir(path)

    def scandir(path: Any = ".") -> Any:
        if not over.follows(path):
            return real_scandir(path)
        base = os.fspath(path)
        whole = [os.path.join(base, name) for name in over.names(path)]
        return _Entries([_Entry(one, over.to_read(one)) for one in whole])

    real_access, real_scandir = os.access, os.scandir
    for module in (builtins, io):
        put(module, "open", opened)
    put(os, "open", os_open)
    put(os, "mkdir", mkdir)
    for name in ("rename", "replace"):
        put(os, name, moved)
    for name in ("remove", "unlink", "rmdir"):
        put(os, name, removing(name))
    for name in ("stat", "lstat", "readlink", "statvfs"):
        put(os, name, reading(name))
    for name in ("chmod", "chown", "utime", "truncate"):
        put(os, name, writing(name))
    for name in ("link", "symlink"):
        put(os, name, linking(name))
    put(os, "access", access)
    put(os, "listdir", listdir)
    put(os, "scandir", scandir)
    put(shutil, "_use_fd_functions", False)  # else whole trees are removed by descriptor, past all of this
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(over.root) + os.sep + "tmp"
    over._folders(os.environ["TMPDIR"])
    put(tempfile, "tempdir", None)
    undo_sockets = short_place_for_sockets(os.environ["TMPDIR"])
    try:
        yield
    finally:
        undo_sockets()
        for module, name, value in reversed(kept):
            setattr(module, name, value)
        if before is None:
            del os.environ["TMPDIR"]
        else:
            os.environ["TMPDIR"] = before
