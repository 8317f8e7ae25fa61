"""What rank 0 writes is there for the other ranks, as in folders that a job shares, though each rank's files lie apart.

A data set's index, a tokenizer, a checkpoint's folder: one rank makes it, and the others find it behind a barrier. So
rank 0 leaves what it wrote since the last time whenever it calls a collective, and another rank finds that from its own
call of the same number in the same group on, and not before: ranks run apart, and a script that asks at its start
whether there is a checkpoint would else find one that rank 0 makes in the end. Who looks for a path again and again
waits for it, and finds it where rank 0 has left it by then.

Seen is what Python's own functions write. What other ranks write, rank 0 does not see.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from windtunnel.real.capture.processes.file_mailbox import BARRIER, FileMailbox, write_whole
from windtunnel.real.capture.replacements import Replacements
from windtunnel.studies.programs.communication import Communication

if TYPE_CHECKING:
    from windtunnel.real.capture.virtual_world.work import Due

WRITER = 0  # the rank that writes what others read
WAITS = {"folder": 3, "file": 30}  # who looks for a path so many times in vain waits for it
_NOT_SHARED = ("/dev", "/proc", "/sys")
_OURS = "__pycache__"  # Python's own


class FilesOfOthers:
    """Of one rank; hears of its calls (`world.Listener`). `box`: its mailbox, in the folder of all ranks."""

    def __init__(self, box: FileMailbox, timeout_s: float = 0.0) -> None:
        self._box, self._timeout_s, self._writes = box, timeout_s, box.rank == WRITER
        self._place = box.folder / "files_of_others"
        self._place.mkdir(exist_ok=True)
        self._apart = (*_NOT_SHARED, str(box.folder.resolve()))
        self._written: dict[str, None] = {}  # by this rank; of rank 0, since its last call
        self._takes_over = False
        self._calls: dict[str, int] = {}  # group -> its last call
        self._next = 0  # to be left, or taken over
        self._left: list[tuple[dict[str, int] | None, list[tuple[str, str, str]]]] = []  # that is known of
        self._looks: dict[str, int] = {}

    # ---- what the world tells

    def begin(self, call: Communication) -> Due:
        """The rank calls a collective. A barrier is over when rank 0 has come to it, if that runs now."""
        if WRITER in call.members[:1] and not call.is_message:
            group = f"{call.group}/{len(call.members)}/{call.members[-1]}"
            if self._writes and self._written:
                self.leave({**{name: number + 1 for name, number in self._calls.items()}, group: call.sequence})
            self._calls[group] = call.sequence
            if call.kind == "barrier":
                key = f"{BARRIER}{WRITER}>{WRITER}/{group}/{call.sequence}"
                if self._writes:
                    self._box.post(key, b"")
                elif self._box.runs(WRITER):
                    self._box.get(key, self._timeout_s)
            if not self._writes:
                self._find(group)
        return None

    def on_wait(self, call: Communication) -> None:
        """Nothing is done then."""

    # ---- what it writes

    def note(self, path: object) -> None:
        """The rank writes, makes, moves or removes it."""
        if isinstance(path, (str, bytes, os.PathLike)):
            whole = os.path.abspath(os.fsdecode(path))
            if self._takes_over or _OURS in whole:
                return
            if not any(whole == word or whole.startswith(word + os.sep) for word in self._apart):
                self._written[whole] = None

    def leave(self, calls: dict[str, int] | None) -> None:
        """What was written, as it is now, is there for whoever has come to one of these calls; None: for who waits."""
        written, self._written = self._written, {}
        left: list[tuple[str, str, str]] = []
        for number, path in enumerate(written):
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                left.append((path, "gone", ""))
                continue
            with suppress(OSError):  # what cannot be read cannot be read by others
                if stat.S_ISLNK(mode):
                    left.append((path, "link", os.readlink(path)))
                elif stat.S_ISDIR(mode):
                    left.append((path, "folder", ""))
                elif stat.S_ISREG(mode):
                    copy = str(self._place / f"{self._next}_{number}")
                    shutil.copyfile(path, copy)
                    left.append((path, "file", copy))
        write_whole(self._place / f"{self._next}.json", json.dumps([calls, left]).encode())
        self._next += 1

    # ---- the others

    def _find(self, group: str) -> None:
        """Take over what is to be seen after the last call of a group."""
        self._hear()
        while self._next < len(self._left):
            calls, left = self._left[self._next]
            if calls is None or calls.get(group, 0) > self._calls[group]:
                return
            self._next += 1
            for path, kind, more in left:
                self._take_over(path, kind, more)

    def _take_over(self, path: str, kind: str, more: str) -> None:
        """Have it as rank 0 has it, unless this rank has written there: each may make its own, under equal names."""
        inside = path + os.sep
        if path in self._written or (kind == "gone" and any(word.startswith(inside) for word in self._written)):
            return
        self._takes_over = True
        with suppress(OSError):  # something else stands in its way
            _make(path, kind, more)
        self._takes_over = False

    def _hear(self) -> None:
        with suppress(FileNotFoundError):
            while True:
                self._left.append(json.loads((self._place / f"{len(self._left)}.json").read_bytes()))

    def waited(self, path: object) -> None:
        """A path is looked for in vain: make it where this rank waits for it and rank 0 has made it by now."""
        if isinstance(path, (str, bytes, os.PathLike)):
            whole = os.path.abspath(os.fsdecode(path))
            looks = self._looks[whole] = self._looks.get(whole, 0) + 1
            if looks >= WAITS["folder"]:
                self._hear()
                later = [entry for _, left in self._left[self._next :] for entry in left]
                kinds = [kind for path, kind, _ in later if path == whole and looks >= WAITS.get(kind, looks + 1)]
                for path, kind, more in later if kinds else ():  # a folder with what is in it
                    if (path == whole and kind != "gone") or path.startswith(whole + os.sep):
                        self._take_over(path, kind, more)


def _make(path: str, kind: str, more: str) -> None:
    if kind == "gone":
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
        return
    os.makedirs(path if kind == "folder" else os.path.dirname(path), exist_ok=True)
    if kind != "folder":
        beside = f"{path}.{os.getpid()}"
        shutil.copyfile(more, beside) if kind == "file" else os.symlink(more, beside)
        os.replace(beside, path)  # so that a file that this rank has open stays what it is


@contextmanager
def files_of_others(files: FilesOfOthers, *, writes: bool) -> Iterator[None]:
    """While this holds, `files` is told what this rank writes and, of others than rank 0, what it looks for in vain.

    `writes`: it is rank 0.
    """
    with Replacements() as replaced:
        _watch_writing(replaced, files.note)
        if not writes:
            stat_of: Callable[..., os.stat_result] = os.stat

            def look(path: object, **keywords: object) -> os.stat_result:
                try:
                    return stat_of(path, **keywords)
                except FileNotFoundError:
                    if keywords.get("dir_fd") is not None:
                        raise
                files.waited(path)
                return stat_of(path, **keywords)

            replaced.set(os, "stat", look)
        try:
            yield
        finally:
            if writes:
                files.leave(None)


def _watch_writing(replaced: Replacements, note: Callable[[object], None]) -> None:
    opened: Callable[..., object] = io.open
    os_opened: Callable[..., int] = os.open

    def open_file(file: object, mode: str = "r", *more: object, **keywords: object) -> object:
        done = opened(file, mode, *more, **keywords)
        if any(letter in mode for letter in "wax+"):
            note(file)
        return done

    def os_open(path: object, flags: int, *more: object, **keywords: object) -> int:
        descriptor = os_opened(path, flags, *more, **keywords)
        if flags & (os.O_WRONLY | os.O_RDWR) and keywords.get("dir_fd") is None:
            note(path)
        return descriptor

    def noting(function: Callable[..., None], first: int, end: int) -> Callable[..., None]:
        """Of its arguments, those from `first` to `end` are paths that it changes."""

        def done(*paths: str, **keywords: object) -> None:
            function(*paths, **keywords)
            if not {"dir_fd", "src_dir_fd", "dst_dir_fd"} & keywords.keys():
                for path in paths[first:end]:
                    note(path)
                    for folder, folders, names in os.walk(path) if end - first == 2 else ():
                        for word in (*folders, *names):
                            note(os.path.join(folder, word))

        return done

    for module in (builtins, io):
        replaced.set(module, "open", open_file)
    replaced.set(os, "open", os_open)
    for first, end, names in (
        (0, 1, ("mkdir", "remove", "unlink", "rmdir")),
        (1, 2, ("symlink", "link")),
        (0, 2, ("rename", "replace")),
    ):
        for name in names:
            replaced.set(os, name, noting(getattr(os, name), first, end))
