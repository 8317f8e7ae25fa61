"""What a sweep has done so far: one line a row, appended and flushed. A torn last line is as if it were not there.

A line is with the system when `add` returns, so a killed process loses none; it is on disk a second later, so a machine
that loses power loses what a second did.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType

from windtunnel.errors import InputFileError

SYNC_S = 1.0
HELD_S = 2.0  # children of a process that was killed hold its files a little longer


def read_journal(path: Path) -> dict[str, dict[str, object]]:
    """Rows by key. Reading stops at the first line that is not whole."""
    journal: dict[str, dict[str, object]] = {}
    if not path.exists():
        return journal
    for line in path.read_bytes().split(b"\n")[:-1]:  # behind the last newline is nothing, or a torn line
        try:
            row = json.loads(line)
            journal[row["key"]] = row
        except (ValueError, KeyError, TypeError):
            break
    return journal


class Journal:
    """Appends rows, for one process at a time. Whatever a kill left behind the last whole line is cut off first.

    Raises InputFileError where the file cannot be written, or another process writes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
            self._hold(path)
            self._file.truncate(path.read_bytes().rfind(b"\n") + 1)
        except OSError as error:
            raise InputFileError(
                path, error.strerror or "cannot be written", "give a path that can be written"
            ) from None
        self._synced_s = monotonic()

    def _hold(self, path: Path) -> None:
        """Keep others out until this process closes the file or ends."""
        if os.name != "posix":
            return
        import fcntl

        until = monotonic() + HELD_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if monotonic() > until:
                    self._file.close()
                    remedy = "wait for it, or give another path"
                    raise InputFileError(path, "is being written by another process", remedy) from None
                sleep(0.05)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        if error is not None and self._file.tell() == 0:  # nothing was begun: nothing to go on with
            self._path.unlink(missing_ok=True)
        self._file.close()

    def add(self, row: dict[str, object]) -> None:
        """Add one row."""
        self._file.write(json.dumps(row, sort_keys=True, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        if monotonic() - self._synced_s > SYNC_S:
            os.fsync(self._file.fileno())
            self._synced_s = monotonic()
