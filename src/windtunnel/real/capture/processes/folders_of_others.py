"""Folders that one rank makes and another waits for, though each rank's files lie apart."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from windtunnel.real.capture.replacements import Replacements

WAITS = 3  # who looks for a path so many times in vain waits for it


@contextmanager
def folders_of_others(made: Path) -> Iterator[None]:
    """While this holds, a folder that one rank makes is there for another that looks for it again and again.

    A checkpoint's folder is made by one rank, and the others wait until they see it. `made` is of all ranks: what they
    made. A first look is answered by this rank's own files alone: ranks run apart, so a script that asks at its start
    whether there is a checkpoint might else find one that another rank makes in the end.
    """
    made.mkdir(exist_ok=True)
    looks: dict[str, int] = {}
    mkdir: Callable[..., None] = os.mkdir
    stat_of: Callable[..., os.stat_result] = os.stat

    def marker(path: object, keywords: Mapping[str, object]) -> Path | None:
        """By which others know it; None for what has no path of its own."""
        if keywords.get("dir_fd") is not None or not isinstance(path, (str, bytes, os.PathLike)):
            return None
        return made / hashlib.sha256(os.fsencode(os.path.abspath(os.fsdecode(path)))).hexdigest()

    def make(path: object, *more: object, **keywords: object) -> None:
        mkdir(path, *more, **keywords)
        if (one := marker(path, keywords)) is not None:
            one.touch()

    def moving(move: Callable[..., None]) -> Callable[..., None]:
        def moved(source: object, target: object, **keywords: object) -> None:
            move(source, target, **keywords)
            with suppress(OSError):  # a link that leads nowhere
                if (one := marker(target, keywords)) is not None and stat.S_ISDIR(stat_of(target).st_mode):
                    one.touch()

        return moved

    def look(path: object, **keywords: object) -> os.stat_result:
        try:
            return stat_of(path, **keywords)
        except FileNotFoundError:
            one = marker(path, keywords)
            if one is None:
                raise
            looks[one.name] = looks.get(one.name, 0) + 1
            if looks[one.name] < WAITS or not os.path.lexists(one):
                raise
        mkdir(path)
        return stat_of(path, **keywords)

    with Replacements() as replaced:
        replaced.set(os, "mkdir", make)
        replaced.set(os, "stat", look)
        for name in ("rename", "replace"):
            replaced.set(os, name, moving(getattr(os, name)))
        yield
