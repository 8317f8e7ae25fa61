"""Bytes and text of files that a user names: regular files of bounded size, unpacked to bounded size.

A pipe would wait for ever, a device never ends, a sparse file holds terabytes of nothing, a few kilobytes of gzip
unpack to more than fits in memory. Each is one InputFileError, as is any file that cannot be read.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory

from windtunnel.errors import InputFileError, SpecError

MIB = 1 << 20
TEXT_BYTES_MOST = 64 * MIB  # of tables and specs
UNPACKED_BYTES_MOST = 4096 * MIB
READABLE = "give the path of a file that can be read"
GZIP = b"\x1f\x8b"
NAME_MOST, PATH_MOST = 255, 4095  # bytes of a file's name and of a whole path: what Linux takes
OWN = Path(__file__).resolve().parents[1]
_FOLDERS: ContextVar[tuple[Path, ...]] = ContextVar("folders", default=())  # none: all may be read


@contextmanager
def only_from(*folders: Path) -> Iterator[None]:
    """While it lasts, no file is read but those of these folders and our own: links that lead out are refused."""
    token = _FOLDERS.set(tuple(folder.resolve() for folder in (*folders, OWN)))
    try:
        yield
    finally:
        _FOLDERS.reset(token)


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder that is gone afterwards; its files may be read whatever else may be."""
    with TemporaryDirectory() as name:
        folder, folders = Path(name), _FOLDERS.get()
        with only_from(folder, *folders) if folders else nullcontext():
            yield folder


def _refuse_outside(path: str | os.PathLike[str]) -> None:
    """Raises InputFileError for a file that is in none of the folders which alone may be read."""
    folders = _FOLDERS.get()
    if folders and not any(Path(path).resolve().is_relative_to(folder) for folder in folders):
        raise InputFileError(path, "leads out of the folder that may be read", "put the file itself into the folder")


def path_of(path: object, remedy: str = READABLE) -> Path:
    """The path that a user gives. Raises SpecError for what is none, InputFileError for names that no file can have."""
    if not isinstance(path, str | os.PathLike):
        raise SpecError("file", path, remedy)
    file_path = Path(path)
    sizes = [len(name.encode(errors="surrogatepass")) for name in file_path.parts]
    if max(sizes, default=0) > NAME_MOST or sum(sizes) + len(sizes) > PATH_MOST:
        raise InputFileError(str(file_path)[:80] + "...", "has a name too long for a file", remedy)
    with suppress(OSError, ValueError):  # a NUL, or links in a ring: said when it is read
        _refuse_outside(file_path)
    return file_path


def read_bytes(path: str | os.PathLike[str], remedy: str = READABLE, most: int = TEXT_BYTES_MOST) -> bytes:
    """All of a file of at most `most` bytes. Raises InputFileError."""
    try:
        _refuse_outside(path)
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise InputFileError(path, "is a pipe or a device, not a file", remedy)
            # Said before a sparse file of terabytes is read; the size of a file of /proc is 0.
            content = b"" if status.st_size > most else file.read((status.st_size or most) + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        raise InputFileError(path, f"cannot be read ({getattr(error, 'strerror', None) or error})", remedy) from None
    if status.st_size > most or len(content) > most:
        raise InputFileError(path, f"is larger than {most // MIB or 1} MiB", remedy)
    return content


def first_bytes(path: Path, size: int) -> bytes:
    """The beginning of a regular file; nothing of what is none, or cannot be read."""
    with suppress(OSError):
        if path.is_file():
            _refuse_outside(path)
            with path.open("rb") as file:
                return file.read(size)
    return b""


def read_text(path: str | os.PathLike[str], remedy: str = READABLE, most: int = TEXT_BYTES_MOST) -> str:
    """All of a text file in UTF-8, unpacked where gzip packed it. Raises InputFileError."""
    raw = read_bytes(path, remedy, most)
    if raw.startswith(GZIP):
        raw = gunzip(raw, path, remedy, most)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputFileError(path, f"is not text in UTF-8 (byte {error.start})", remedy) from None


def gunzip(
    packed: bytes, path: str | os.PathLike[str], remedy: str = READABLE, most: int = UNPACKED_BYTES_MOST
) -> bytes:
    """What gzip packed, in one or several members. Raises InputFileError where it is damaged or more than `most`."""
    parts, total = [], 0
    while packed:
        stream = zlib.decompressobj(wbits=31)
        try:
            part = stream.decompress(packed, most - total + 1)
        except zlib.error as error:
            raise InputFileError(path, f"is no gzip, or is damaged ({error})", remedy) from None
        parts.append(part)
        total += len(part)
        if total > most:
            raise InputFileError(path, f"unpacks to more than {most // MIB or 1} MiB", remedy)
        if not stream.eof:
            raise InputFileError(path, "is gzip that is cut off", remedy)
        packed = stream.unused_data
    return b"".join(parts)
