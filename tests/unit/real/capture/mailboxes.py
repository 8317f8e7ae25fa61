"""Mailboxes among threads and among processes: the least that lets ranks of one world talk in a test."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any


class LocalMailbox:
    """A mailbox among threads of one process."""

    def __init__(self) -> None:
        self._messages: dict[str, bytes] = {}
        self._arrived = threading.Condition()

    def post(self, key: str, data: bytes) -> None:
        """Leave a message."""
        with self._arrived:
            self._messages[key] = data
            self._arrived.notify_all()

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait for a message."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: key in self._messages, timeout_s):
                raise TimeoutError(f"no message {key!r} within {timeout_s:g} s")
            return self._messages[key]


class StoreMailbox:
    """A mailbox among processes, over one of torch's stores."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def post(self, key: str, data: bytes) -> None:
        """Leave a message."""
        self._store.set(key, data)

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait for a message."""
        try:
            self._store.wait([key], timedelta(seconds=timeout_s))
        except RuntimeError as error:  # torch's DistStoreError
            raise TimeoutError(f"no message {key!r} within {timeout_s:g} s: {error}") from error
        return bytes(self._store.get(key))

    @property
    def port(self) -> int:
        """Where others connect to."""
        return int(self._store.port)


def serve_mailbox(host: str = "127.0.0.1", port: int = 0) -> StoreMailbox:
    """The mailbox that others connect to; port 0 takes a free one. It lives as long as this object."""
    from torch._C._distributed_c10d import TCPStore  # `torch.distributed.TCPStore` may be a world's stand-in

    return StoreMailbox(TCPStore(host, port, is_master=True, wait_for_workers=False))


def connect_mailbox(port: int, host: str = "127.0.0.1") -> StoreMailbox:
    """The mailbox that another process serves."""
    from torch._C._distributed_c10d import TCPStore

    return StoreMailbox(TCPStore(host, port, is_master=False, wait_for_workers=False))
