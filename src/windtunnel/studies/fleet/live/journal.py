"""What a live scheduler did, as lines that survive it: one JSON object per line, written through before it counts.

A scheduler that was killed reads its journal, finds the processes that still run, and goes on. A lock keeps a second
one out.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

from windtunnel.errors import UserError


class Journal:
    """An append-only file in a folder that only one scheduler may hold."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "journal.jsonl"
        self._file = self.path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UserError(f"another scheduler runs in {folder}: end it, or give another folder") from None
        os.set_inheritable(self._file.fileno(), False)

    def entries(self) -> list[dict[str, Any]]:
        """What was written before; a last line that was cut off goes. Raises UserError for any other damage."""
        entries = []
        whole = 0
        for number, line in enumerate(self.path.read_bytes().splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                break
            try:
                entries.append(json.loads(line))
            except ValueError:
                raise UserError(
                    f"{self.path}: line {number} is damaged, so nobody knows what runs: mend it, or end what runs and"
                    " give another folder"
                ) from None
            whole += len(line)
        self._file.truncate(whole)  # or the next entry would stand on that line, and be lost with it
        return entries

    def write(self, **entry: object) -> None:
        """One entry, on disk when this returns."""
        self._file.write(json.dumps(entry, sort_keys=True) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, which lets others in."""
        self._file.close()
