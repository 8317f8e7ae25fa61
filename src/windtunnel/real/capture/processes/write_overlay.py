"""What a script writes while it is captured goes to a scratch folder; none of its files changes.

A capture runs the script's first steps only, with tensors that hold no data: what it would write is worth nothing, and
must not take the place of what is there. So every way in which Python opens a file for writing, or makes, moves or
removes one, works on a copy below `scratch`, and reading looks there first: a script finds what it wrote, and what it
removed is gone, for the script alone.

    read   PATH   scratch/PATH if the script wrote it, else PATH, unless the script removed it
    write  PATH   scratch/PATH; what is at PATH is copied there first where the mode keeps it (a, r+)

Links are followed here, the script's own among them, so that a file has one name and no link leads out of `scratch`.
Devices and pipes are as they are. What goes past Python's functions (`io.FileIO`, the module `posix`, paths in
`/proc`, libraries in C or Rust, programs that the script starts) is not followed: `read_only.py` refuses it. Where the
system has overlays of its own (`read_only.copy_files`) those do all of this, and only `folders_made` is needed.
"""

from __future__ import annotations

import builtins
import bz2
import errno
import io
import multiprocessing
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from windtunnel.real.capture.processes.overlay_entries import entries_of
from windtunnel.real.capture.replacements import Replacements

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SYSTEM = ("/dev", "/proc", "/sys")
_MOST_LINKS = 40  # of one path, as Linux allows
# As they were before anything was replaced.
_open: Any = io.open
_stat: Any = os.stat
_lstat: Any = os.lstat
_mkdir: Any = os.mkdir
_readlink: Callable[[str], str] = os.readlink
_symlink: Any = os.symlink
_listdir: Callable[[Any], list[Any]] = os.listdir
_replace: Callable[..., None] = os.replace


def _error(number: int, path: object) -> OSError:
    """Of the class that Python raises for this number."""
    return OSError(number, os.strerror(number), str(path))


class _Overlay:
    """Paths as the script means them, and where they really lie. `follow`: the last part too, if it is a link."""

    def __init__(self, scratch: Path, ours: tuple[str, ...], lenient: bool) -> None:
        self.root, self.lenient = str(scratch), lenient
        self.temporary = self.root + os.sep + ".temporary"
        self.as_they_are = (*_SYSTEM, *ours, self.root)
        self.removed: set[str] = set()  # real paths that the script removed
        self.moved = False  # the script made, moved or removed a name, perhaps a link's

    def follows(self, path: object) -> bool:
        """Whether this is a path of the file system that is looked after here."""
        if not isinstance(path, (str, bytes, os.PathLike)):  # a descriptor
            return False
        whole = os.path.abspath(os.fsdecode(path))
        return not any(whole == word or whole.startswith(word + os.sep) for word in self.as_they_are)

    def real_path(self, path: Any, follow: bool = True) -> str:
        """The one name of a file, links on the way to it followed."""
        todo = os.path.abspath(os.fsdecode(path)).split(os.sep)[:0:-1]
        whole, links = "", 0
        while todo:
            part = f"{whole}{os.sep}{todo.pop()}"
            target = self._target(part) if todo or follow else None
            if target is None:
                whole = part
                continue
            links += 1
            if links > _MOST_LINKS:
                raise _error(errno.ELOOP, path)
            todo += os.path.normpath(os.path.join(whole or os.sep, target)).split(os.sep)[:0:-1]
            whole = ""
        return whole or os.sep

    def _target(self, whole: str) -> str | None:
        """Where a link leads; None for all else."""
        if self.moved:
            with suppress(OSError):
                return _readlink(self.root + whole)
            if self._is_there(self.root + whole) or self.is_removed(whole):
                return None
        with suppress(OSError):
            return _readlink(whole)
        return None

    @staticmethod
    def _is_there(place: str) -> bool:
        try:
            _lstat(place)
        except OSError:
            return False
        return True

    def is_removed(self, whole: str) -> bool:
        return any(whole == word or whole.startswith(word + os.sep) for word in self.removed)

    def _place(self, whole: str, path: object) -> str:
        """Where it is read. FileNotFoundError for what the script removed."""
        if self._is_there(self.root + whole):
            return self.root + whole
        if self.removed and self.is_removed(whole):
            raise _error(errno.ENOENT, path)
        return whole

    def to_read(self, path: object, follow: bool = True) -> Any:
        """Where to read a path."""
        if not self.follows(path):
            return path
        whole = self.real_path(path, follow)
        return self._place(whole, path) if self.follows(whole) else whole

    def exists(self, path: object, follow: bool = True) -> bool:
        try:
            _lstat(self.to_read(path, follow))
        except OSError:
            return False
        return True

    def is_folder(self, path: object) -> bool:
        """Whether the script finds a folder there."""
        try:
            return stat.S_ISDIR(_stat(self.to_read(path)).st_mode)
        except OSError:
            return False

    def to_write(self, path: object, *, keep: bool = False, follow: bool = True) -> Any:
        """Where to write a path; `keep`: with what is there now."""
        if not self.follows(path):
            return path
        whole = self.real_path(path, follow)
        if not self.follows(whole):
            return whole
        target, parent = self.root + whole, os.path.dirname(whole)
        if self.exists(parent):
            if not self.is_folder(parent):
                raise _error(errno.ENOTDIR, path)
        elif not self.lenient:
            raise _error(errno.ENOENT, path)
        self.make_folders(os.path.dirname(target))
        if keep and not self._is_there(target) and self.exists(whole, False):
            if stat.S_ISLNK(_lstat(whole).st_mode):
                _symlink(_readlink(whole), target)
            else:
                with _open(whole, "rb") as source, _open(target, "wb") as copy:
                    shutil.copyfileobj(source, copy)
        return target

    def file_to_write(self, path: object, *, keep: bool) -> object:
        """`to_write` of what must be no folder."""
        if self.follows(path) and self.is_folder(path):
            raise _error(errno.EISDIR, path)
        return self.to_write(path, keep=keep)

    def make_folders(self, folder: str) -> None:
        """In `scratch`, with those that it lies in."""
        missing = []
        while not self._is_there(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for word in reversed(missing):
            _mkdir(word)

    def names(self, path: object) -> list[str]:
        """What a folder holds, as the script sees it."""
        whole = self.real_path(path)
        here = self.to_read(whole)
        names = set(_listdir(here))  # raises what it should
        if here != whole and not self.is_removed(whole):
            with suppress(FileNotFoundError, NotADirectoryError):
                names |= set(_listdir(whole))
        own = (name for name in names if self._is_there(self.root + os.path.join(whole, name)))
        return sorted({*own, *(name for name in names if os.path.join(whole, name) not in self.removed)})

    def hide(self, whole: str) -> None:
        """What really is there is no more, for the script."""
        if self._is_there(whole):
            self.removed.add(whole)

    def forget(self, path: object, take: Callable[[str], None], folder: bool) -> None:
        """Remove a file or an empty folder, for the script."""
        self.moved = True
        whole = self.real_path(path, False)
        here = self._place(whole, path)
        is_folder = stat.S_ISDIR(_lstat(here).st_mode)
        if is_folder != folder:
            raise _error(errno.ENOTDIR if folder else errno.EISDIR, path)
        if folder and self.names(path):
            raise _error(errno.ENOTEMPTY, path)
        if here != whole:
            take(here)
        self.hide(whole)


def short_place_for_sockets(folder: str) -> Callable[[], None]:
    """Have multiprocessing use this folder for its sockets, whose paths may have 108 bytes; how to undo it.

    A descriptor of the folder has a short path as long as this process lives. Elsewhere than on Linux there is none,
    and the folder's own path has to be short enough.
    """
    if not os.path.isdir("/proc/self/fd"):
        return lambda: None
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    settings: dict[str, object] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
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
    before, folder = os.environ.get("TMPDIR"), os.getcwd()
    os.environ["TMPDIR"] = over.temporary
    over.make_folders(over.temporary)
    with Replacements() as replaced:
        _replace_functions(replaced, over)
        undo_sockets = short_place_for_sockets(over.temporary)
        try:
            yield
        finally:
            undo_sockets()
    if os.getcwd().startswith(over.root + os.sep):
        os.chdir(folder)
    if before is None:
        del os.environ["TMPDIR"]
    else:
        os.environ["TMPDIR"] = before


@contextmanager
def folders_made() -> Iterator[None]:
    """While this holds, a folder that is missing where a file is written is made: another rank would have made it."""
    real_open, real_mkdir = os.open, os.mkdir

    def made_for(path: object) -> bool:
        """Whether the folder was missing, and is there now."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        folder = os.path.dirname(os.path.abspath(os.fsdecode(path)))
        if os.path.exists(folder):
            return False
        above = os.path.dirname(folder)
        while not os.path.exists(above):
            folder, above = above, os.path.dirname(above)
        real_mkdir(folder)
        return True

    def open_file(file: object, mode: str = "r", *more: object, **keywords: object) -> object:
        while True:
            try:
                return _open(file, mode, *more, **keywords)
            except FileNotFoundError:
                if not any(letter in mode for letter in "wax") or not made_for(file):
                    raise

    def os_open(path: object, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        while True:
            try:
                return real_open(path, flags, mode, dir_fd=dir_fd)  # type: ignore[arg-type]
            except FileNotFoundError:
                if dir_fd is not None or not flags & os.O_CREAT or not made_for(path):
                    raise

    def mkdir(path: object, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        while True:
            try:
                return real_mkdir(path, mode, dir_fd=dir_fd)  # type: ignore[arg-type]
            except FileNotFoundError:
                if dir_fd is not None or not made_for(path):
                    raise

    with Replacements() as replaced:
        for module in (builtins, io):
            replaced.set(module, "open", open_file)
        replaced.set(os, "open", os_open)
        replaced.set(os, "mkdir", mkdir)
        yield


def _replace_functions(replaced: Replacements, over: _Overlay) -> None:
    real = {name: getattr(os, name) for name in dir(os)}

    def open_file(file: object, mode: str = "r", *more: object, **keywords: object) -> object:
        if keywords.get("opener") is None and over.follows(file):  # an opener asks os.open
            writes = any(letter in mode for letter in "wax+")
            if "x" in mode and over.exists(file, False):
                raise _error(errno.EEXIST, file)
            file = over.file_to_write(file, keep="a" in mode or "r" in mode) if writes else over.to_read(file)
        return _open(file, mode, *more, **keywords)

    def os_open(path: object, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is None and over.follows(path):
            if flags & _WRITES:
                if flags & os.O_EXCL and over.exists(path, False):
                    raise _error(errno.EEXIST, path)
                if not flags & os.O_CREAT and not over.exists(path):
                    raise _error(errno.ENOENT, path)
                path = over.file_to_write(path, keep=not flags & os.O_TRUNC)
            else:
                path = over.to_read(path)
        descriptor: int = real["open"](path, flags, mode, dir_fd=dir_fd)
        return descriptor

    def move_name(source: object, target: object, **keywords: object) -> None:
        if not over.follows(source) and not over.follows(target):
            return _replace(source, target, **keywords)
        over.moved = True
        if over.follows(source):
            whole = over.real_path(source, False)
            if over.to_read(source, False) == whole:
                if stat.S_ISDIR(_lstat(whole).st_mode):
                    shutil.copytree(whole, over.to_write(source, follow=False), symlinks=True)
                else:
                    over.to_write(source, keep=True, follow=False)
        _replace(over.to_read(source, False), over.to_write(target, follow=False))
        if over.follows(source):
            over.hide(whole)
        return None

    def making(name: str) -> Callable[..., None]:
        def make(path: object, *more: object, dir_fd: int | None = None, **keywords: object) -> None:
            if dir_fd is not None:
                return real[name](path, *more, dir_fd=dir_fd, **keywords)  # type: ignore[no-any-return]
            if over.follows(path) and over.exists(path, False):
                raise _error(errno.EEXIST, path)
            return real[name](over.to_write(path, follow=False), *more, **keywords)  # type: ignore[no-any-return]

        return make

    def removing(name: str) -> Callable[..., None]:
        def remove(path: object, *, dir_fd: int | None = None) -> None:
            if dir_fd is None and over.follows(path):
                over.forget(path, real[name], name == "rmdir")
            else:
                real[name](path) if dir_fd is None else real[name](path, dir_fd=dir_fd)

        return remove

    def reading(name: str) -> Callable[..., object]:
        def read(path: object, *more: object, **keywords: Any) -> object:
            if keywords.get("dir_fd") is None:
                path = over.to_read(path, name not in ("lstat", "readlink") and keywords.get("follow_symlinks", True))
            return real[name](path, *more, **keywords)

        return read

    def writing(name: str) -> Callable[..., object]:
        def write(path: Any, *more: object, **keywords: Any) -> object:
            if keywords.get("dir_fd") is None and over.follows(path):
                follow = name != "lchown" and keywords.get("follow_symlinks", True)
                if not over.exists(path, follow):
                    raise _error(errno.ENOENT, path)
                folder = over.is_folder(path)
                path = over.to_write(path, keep=not folder, follow=follow)
                if folder and follow:
                    over.make_folders(path)
            return real[name](path, *more, **keywords)

        return write

    def symlink(source: object, target: object, *more: object, **keywords: object) -> None:
        over.moved = True
        making("symlink_at")(target, source, *more, **keywords)

    def link(source: object, target: object, **keywords: object) -> None:
        if over.follows(source) and not over.exists(source, False):
            raise _error(errno.ENOENT, source)
        if over.follows(target) and over.exists(target, False):
            raise _error(errno.EEXIST, target)
        if over.is_folder(source):
            raise _error(errno.EPERM, source)
        place = over.to_write(source, keep=True, follow=False)  # what is written under either name is not the user's
        real["link"](place, over.to_write(target, follow=False), **keywords)

    def access(path: object, mode: int, **keywords: object) -> bool:
        try:
            return bool(real["access"](over.to_read(path), mode, **keywords))
        except OSError:
            return False

    def chdir(path: object) -> None:
        if over.follows(path) and over.exists(path) and not over.is_folder(path):
            raise _error(errno.ENOTDIR, path)
        real["chdir"](over.to_read(path))

    def getcwd() -> str:
        folder: str = real["getcwd"]()
        aside = folder.startswith(over.root + os.sep) and not folder.startswith(over.temporary)
        return folder.removeprefix(over.root) if aside else folder

    def listdir(path: object = ".") -> list[Any]:
        if not over.follows(path):
            return _listdir(path)
        return [os.fsencode(name) for name in over.names(path)] if isinstance(path, bytes) else over.names(path)

    def scandir(path: Any = ".") -> object:
        if not over.follows(path) or isinstance(path, bytes):
            return real["scandir"](path)
        whole = [os.path.join(os.fspath(path), name) for name in over.names(path)]
        return entries_of((word, over.to_read(word, False)) for word in whole)

    real["symlink_at"] = lambda target, source, *more, **keywords: _symlink(source, target, *more, **keywords)
    for module in (builtins, io):
        replaced.set(module, "open", open_file)
    replaced.set(bz2, "_builtin_open", open_file)  # they have taken their own reference
    replaced.set(tarfile, "bltn_open", open_file)
    whole_functions = (os_open, symlink, link, access, chdir, getcwd, listdir, scandir)
    for function in whole_functions:
        replaced.set(os, function.__name__.removeprefix("os_"), function)
    for maker, names in {
        move_name: ("rename", "replace"),
        making: ("mkdir", "mkfifo", "mknod"),
        removing: ("remove", "unlink", "rmdir"),
        reading: ("stat", "lstat", "readlink", "statvfs", "getxattr", "listxattr"),
        writing: ("chmod", "chown", "lchown", "utime", "truncate", "setxattr", "removexattr"),
    }.items():
        for name in names:
            if name in real:
                replaced.set(os, name, move_name if maker is move_name else maker(name))  # type: ignore[operator]
    replaced.set(shutil, "_use_fd_functions", False)  # else whole trees are removed by descriptor, past all of this
    replaced.set(tempfile, "tempdir", None)
