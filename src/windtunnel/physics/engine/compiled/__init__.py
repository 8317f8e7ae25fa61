"""All compiled code of the product, by what it computes. Each function also runs uncompiled, as its reference.

Numba keeps compiled code beside the source or in the user's cache folder, and refuses to work where it can write to
neither. Then it is kept under the temporary folder, in a folder that only its owner can write to: whoever can write
there decides what runs.

What a file of source says is compiled into the functions of others that call it: kept code is used only while none of
the files beside it that its own imports, near or far, has changed. Numba looks at the function's own file alone.

A file of compiled code ends with its checksum: one that is damaged is compiled again, as if it were not there. Where a
file cannot be written, what was compiled is used and not kept.
"""

from __future__ import annotations

import atexit
import io
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import typeinfer, types
from numba.core.caching import IndexDataCacheFile


def _takes_files(folder: Path) -> bool:
    """Whether numba, which looks in the same way, would keep its files there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def temporary_folder() -> Path:
    """Where compiled code is kept if there is no better place; not made yet."""
    return Path(tempfile.gettempdir()) / f"windtunnel-numba-{getattr(os, 'getuid', lambda: 'user')()}"


def _ours() -> Path:
    """The temporary folder if it is ours alone, else one for this process."""
    folder = temporary_folder()
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022 and status.st_uid == os.getuid():
            return folder
    except (OSError, AttributeError):  # a file of that name; a system without users
        pass
    own = Path(tempfile.mkdtemp(prefix="windtunnel-numba-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def _keep_compiled_code() -> None:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if (chosen and _takes_files(Path(chosen))) or _takes_files(Path(__file__).parent / "__pycache__"):
        return
    from numba.core import config
    from numba.misc.appdirs import AppDirs

    settings: Any = config  # numba's types name neither
    users: Any = AppDirs
    if not _takes_files(Path(users(appname="numba", appauthor=False).user_cache_dir)):
        settings.CACHE_DIR = str(_ours())


Function = TypeVar("Function", bound=Callable[..., object])
_Files: Any = IndexDataCacheFile  # numba has no types


class _WholeFiles(_Files):  # type: ignore[misc]
    """Numba's files of one function, each with its checksum behind what numba reads."""

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        buffer = io.BytesIO()
        yield buffer
        with super()._open_for_write(filepath) as file:
            file.write(buffer.getvalue() + sha256(buffer.getvalue()).digest())

    def save(self, key: object, data: object) -> None:
        with suppress(OSError):  # a full disk, a folder in the file's place
            super().save(key, data)

    def _load_index(self) -> dict[object, str]:
        with suppress(AttributeError, ImportError):  # written by another release: it names what is no longer there
            return super()._load_index() if _is_whole(self._index_path) else {}
        return {}

    def _load_data(self, name: str) -> object:
        path = self._data_path(name)
        if not _is_whole(path):
            raise OSError(f"{path} is damaged")  # to numba: not there
        return super()._load_data(name)


def _is_whole(path: str) -> bool:
    try:
        data = Path(path).read_bytes()
    except OSError:
        return False
    return sha256(data[:-32]).digest() == data[-32:]


@lru_cache
def _stamp(path: Path) -> tuple[object, ...]:
    """What a source and those beside it that it imports are known by: times of change and sizes."""
    try:
        text, stat = path.read_text(), path.stat()
    except OSError:  # no sources: a package of compiled files
        return ()
    beside = (path.with_name(f"{name}.py") for name in re.findall(r"^from [\w.]+\.(\w+) import", text, re.MULTILINE))
    return (stat.st_mtime_ns, stat.st_size, *(_stamp(other) for other in beside if other.is_file()))


def _without_literals(template: Callable[..., object]) -> Callable[..., object]:
    """What asks for the compiled form of a function, so that a constant in a call makes no form of its own."""

    plain = partial(types.unliteral)  # numba has no types

    def of(args: tuple[object, ...], kws: dict[str, object]) -> object:
        return template(tuple(map(plain, args)), {name: plain(argument) for name, argument in kws.items()})

    return of


def njit(*signature: object, **options: Any) -> Callable[[Function], Function]:
    """`numba.njit`, with at most one signature, whose kept files are used only if they are whole."""

    def compiled(function: Function) -> Function:
        kernel: Any = numba.njit(**options)(function)
        if hasattr(kernel, "get_call_template"):  # it has not where numba is switched off
            kernel.get_call_template = _without_literals(kernel.get_call_template)
        file = getattr(getattr(kernel, "_cache", None), "_cache_file", None)
        if isinstance(file, IndexDataCacheFile):
            file.__class__ = _WholeFiles
            file._source_stamp = _stamp(Path(function.__code__.co_filename))
        if signature and hasattr(kernel, "compile"):
            with typeinfer.register_dispatcher(kernel):  # it may call itself
                kernel.compile(signature[0])
            kernel.disable_compile()
        return cast(Function, kernel)

    return compiled


_keep_compiled_code()
