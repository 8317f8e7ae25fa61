"""Writing files so that a reader never meets half of one: a temporary file beside it, then rename."""

from __future__ import annotations

import csv
import io
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from windtunnel.errors import InputFileError


def check_writable(path: Path) -> None:
    """Refuse, before any work, a place where no file can be written. Raises InputFileError."""
    path = Path(path)
    try:
        problem = "is a folder" if path.is_dir() else ""
    except OSError as error:  # a name that is too long for a file
        problem = f"cannot be written ({error.strerror})"
    above = next((parent for parent in path.absolute().parents if os.path.lexists(parent)), Path("/"))
    if not problem and not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        problem = f"cannot be written: {above} is no folder that can be written to"
    if problem:
        raise InputFileError(path, problem, "give a place that can be written")


def check_timeline(path: Path) -> None:
    """Refuse a place where no timeline may go. Raises InputFileError.

    Other verbs read what they are given by `--trace`: a file that is there and is neither JSON nor gzip is a user's.
    """
    check_writable(path)
    if path.is_file():
        with open(path, "rb") as file:
            first = file.read(2)
        if first and first[:1] not in b"{[" and first != b"\x1f\x8b":
            problem = "holds something that is no timeline, which would be lost"
            raise InputFileError(path, problem, "give a timeline a name of its own, such as timeline.json.gz")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Around what writes `path` by itself: makes its folder. Raises InputFileError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        problem = f"cannot be written ({error.strerror or error})"
        raise InputFileError(path, problem, "give a place that can be written") from None


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path`, creating folders. Raises InputFileError when the place cannot be written."""
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file() and not path.is_dir():  # a device or a pipe: no place for a file
            with open(path, "wb") as file:
                file.write(data)
            return
        name = path.parent / f".{path.name[:80]}.{secrets.token_hex(8)}"
        # "x": never through what already lies there. Not by mkstemp, whose files only their owner may read: a report is
        # for sharing, within the user's umask, which nobody can ask for without setting it for all threads.
        with open(name, "xb") as file:
            temporary = name
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        problem = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputFileError(path, f"cannot be written ({problem})", "give a place that can be written") from None
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def csv_text(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table as CSV, a line of names first."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(names)
    lines.writerows(rows)
    return text.getvalue()


def write_csv(path: str | Path, names: Sequence[str], rows: Iterable[Sequence[object] | Mapping[str, object]]) -> None:
    """`csv_text` as a file; a mapping is a row by its names. Raises InputFileError."""
    cells = ([row.get(name) for name in names] if isinstance(row, Mapping) else row for row in rows)
    write_atomically(Path(path), csv_text(names, cells).encode())
