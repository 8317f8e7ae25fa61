"""What `os.scandir` gives of a folder that lies in two places."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

_lstat = os.lstat  # as it was before anything was replaced


def entries_of(places: Iterable[tuple[str, str]]) -> object:
    """An iterator over entries: each the path that the script means, and where it really lies."""
    return _Entries([_Entry(path, real) for path, real in places])


class _Entry:
    def __init__(self, path: str, real: str) -> None:
        self.path, self.name, self._real = path, os.path.basename(path), real

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return os.stat(self.path) if follow_symlinks else _lstat(self._real)

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
