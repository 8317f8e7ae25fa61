"""Control messages between ranks that are played at the same time: a folder of small files.

Pipelines exchange shapes and metadata as pickled objects; these must be real. A message is a file that appears under
its key's name by one rename, and stays: a rank that starts later finds what was sent before. Who waits says so in a
file of its own, `waiting/<rank>.json`, which is how the launcher learns which ranks must be played too, and that ranks
wait for each other in a circle. `over/<rank>` is there once a rank's main thread has come to its end.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
import time
from contextlib import suppress
from pathlib import Path

MESSAGES, WAITING, OVER = "messages", "waiting", "over"
STORE = "store/"  # what keys of the job's key-value store begin with
BARRIER = "barrier/"  # of what tells that rank 0 has come to one
STEPS = "steps/"  # of what a rank asks rank 0 when it has come to the end of a step: is there another
_PAIR = re.compile(r"(\d+)>(\d+)")  # "group/3>7/tag 0/12": sender and receiver in every key
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.0005, 0.02


class FileMailbox:
    """The mailbox of one rank. Satisfies `protocol.Mailbox`."""

    def __init__(self, folder: Path, rank: int) -> None:
        self.folder, self.rank = folder, rank
        for name in (MESSAGES, WAITING, OVER):
            (folder / name).mkdir(exist_ok=True)
        self._waiting = folder / WAITING / f"{rank}.json"

    def post(self, key: str, data: bytes) -> None:
        """Leave a message for whoever asks for `key`."""
        post(self.folder, key, data)

    def get(self, key: str, timeout_s: float) -> bytes:
        """The message under `key`, once it is there. Raises TimeoutError."""
        place = _place(self.folder, key)
        until = time.monotonic() + timeout_s
        pause = _FIRST_LOOK_S
        has_said = False  # another thread's word may have taken the place of it, and be gone
        try:
            while True:
                with suppress(FileNotFoundError):
                    return place.read_bytes()
                if time.monotonic() > until:
                    raise TimeoutError(f"no message {key} within {timeout_s:.0f} s")
                if pause > 4 * _FIRST_LOOK_S and not (has_said and self._waiting.exists()):
                    main = threading.current_thread() is threading.main_thread()
                    waiting = {"key": key, "message": place.name, "main": main}
                    write_whole(self._waiting, json.dumps(waiting).encode())
                    has_said = True
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_LOOK_S)
        finally:
            if has_said:
                self._waiting.unlink(missing_ok=True)

    def holds(self, key: str) -> bool:
        """Whether there is a message under `key`."""
        return _place(self.folder, key).exists()

    def is_let_go(self) -> bool:
        """Say that the script's main thread is at its end here; whether what its others wait for will never come."""
        (self.folder / OVER / f"{self.rank}").touch()
        return (self.folder / OVER / f"{self.rank}.let_go").exists()

    def runs(self, rank: int) -> bool:
        """Whether another rank was started and has not ended."""
        return (self.folder / f"rank_{rank}.log").exists() and not (self.folder / f"outcome_{rank}.json").exists()


def post(folder: Path, key: str, data: bytes) -> None:
    """Leave a message in the mailboxes' folder."""
    write_whole(_place(folder, key), data)


def _place(folder: Path, key: str) -> Path:
    name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
    return folder / MESSAGES / f"{sender_of(key)}-{name}"


def write_whole(path: Path, data: bytes) -> None:
    """A reader finds all of it or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def waits(folder: Path, rank: int, *, main: bool = False) -> str | None:
    """The key that a rank waits for; None when it does not wait or its message is there.

    `main`: of its main thread alone, which goes on beside another thread that waits.
    """
    with suppress(FileNotFoundError, ValueError):
        waiting = json.loads((folder / WAITING / f"{rank}.json").read_bytes())
        if not (folder / MESSAGES / waiting["message"]).exists() and (waiting["main"] or not main):
            return str(waiting["key"])
    return None


def let_go(folder: Path, rank: int) -> bool:
    """Have a rank end whose main thread is at its end, though another thread waits; whether it is."""
    if is_over := (folder / OVER / f"{rank}").exists():
        (folder / OVER / f"{rank}.let_go").touch()
    return is_over


def sender_of(key: str) -> int | None:
    """The global rank that is to send what is kept under this key."""
    match = _PAIR.search(key)
    return int(match[1]) if match else None


def writer_of(message: Path) -> int | None:
    """The global rank that left a message."""
    rank = message.name.partition("-")[0]
    return int(rank) if rank.isdigit() else None


def thing_of(key: str) -> str:
    """What is waited for, for a person."""
    name = key.partition("/")[2].partition("/")[2]
    return f"{name!r} of the job's key-value store" if key.startswith(STORE) else "a message"


def name_of(key: str) -> str:
    """The sender, for a person."""
    sender = sender_of(key)
    return f"rank {sender}" if sender is not None else repr(key)
