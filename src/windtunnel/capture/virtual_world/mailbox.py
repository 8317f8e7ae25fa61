"""Control messages between the ranks of a world that do run: shapes, votes, pickled objects, with their real data.

A message's key names the group, sender, receiver, tag and its number, so a mailbox is a dictionary with waiting:
nothing is taken out, several may read the same message (a broadcast).
"""

from __future__ import annotations

from typing import Protocol


class Mailbox(Protocol):
    """What a world asks of a mailbox."""

    def put(self, key: str, data: bytes) -> None:
        """Leave a message."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Wait for a message; `TimeoutError` if it does not come."""
