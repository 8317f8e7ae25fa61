"""The key-value store of a job with one process: what the script finds where it expects a TCPStore. Imports torch.

What this rank sets it can get. What it does not set is taken to be set by rank 0, as nearly always, which is run beside
it where there is a mailbox.
"""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from windtunnel.real.capture.virtual_world.messages import Messages
from windtunnel.real.capture.virtual_world.refusals import UnsupportedCommunicationError

SETTER = 0  # the rank that sets what others get
# PyTorch's own stores call these from C++, and hold their C++ half only.
_kept: list[LocalStore] = []


class LocalStore(dist.Store):  # type: ignore[misc]
    """Of one rank. `messages`: its mail. A key that nobody would set is refused instead of waited for."""

    def __init__(
        self, rank: int = SETTER, messages: Messages | None = None, host: str = "localhost", port: int = 0
    ) -> None:
        super().__init__()
        self.host, self.port = host, port
        self._rank, self._messages = rank, messages
        _kept.append(self)
        self._values: dict[str, bytes] = {}
        self._timeout = timedelta(minutes=5)

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        data = value.encode() if isinstance(value, str) else bytes(value)
        if self._rank == SETTER and self._messages is not None and key not in self._values:
            self._messages.post(_message_key(key), data)
        self._values[key] = data

    def get(self, key: str) -> bytes:
        """Look a value up."""
        mail = self._messages if self._rank != SETTER else None
        if key not in self._values and mail is not None and mail.is_open:
            self._values[key] = mail.get(_message_key(key), f"{key!r} of the key-value store", SETTER)
        if key not in self._values:
            raise UnsupportedCommunicationError(
                f"reading {key!r} from the job's key-value store, which another rank would have set,",
                "set the key on every rank, or exchange the value with torch.distributed.broadcast_object_list",
            )
        return self._values[key]

    def add(self, key: str, number: int) -> int:
        """Add to a counter."""
        total = int(self._values.get(key, b"0")) + number
        self._values[key] = str(total).encode()
        return total

    def compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """Set where the value is the expected one, or where there is none and none is expected."""
        now = self._values.get(key)
        if now == expected or (now is None and not expected):
            self._values[key] = now = bytes(desired)
        return expected if now is None else now

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Refuse where a key is missing: nobody else is there to set it."""
        for key in keys:
            self.get(key)

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return all(key in self._values for key in keys)

    def delete_key(self, key: str) -> bool:
        """Remove a key; whether it was there."""
        return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """How many keys there are."""
        return len(self._values)

    getNumKeys = num_keys  # noqa: N815 - what C++ asks a store for that it was given

    def set_timeout(self, timeout: timedelta) -> None:
        """Kept, and never reached."""
        self._timeout = timeout


def tcp_store(rank: int, messages: Messages) -> object:
    """In place of `torch.distributed.TCPStore`, whose constructor waits for all ranks."""

    def make(host_name: str = "localhost", port: int = 0, *_: object, **__: object) -> LocalStore:
        return LocalStore(rank, messages, host_name, port)

    return make


def _message_key(key: str) -> str:
    """Of the first value of a key: whoever reads it, sooner or later, finds the same."""
    return f"store/{SETTER}>{SETTER}/{key}"
