"""Latencies of a service as it runs: asked by HTTP at a steady pace, or read from the file that it writes.

A request of the probe is timed from when it was due, so one that waits behind a slow one counts in full.
"""

from __future__ import annotations

import http.client
import math
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import quantiles
from typing import Protocol
from urllib.parse import quote, urlsplit

from windtunnel.errors import SpecError

ENOUGH = 20  # requests that a p95 can be told from
TIMEOUT_S = 5.0  # after which a request counts as lost, and as that late
FILE_MOST = 1 << 20  # bytes read at once of what a service wrote
READ_AT_ONCE = 1 << 16
SAFE = "/%?&=;:@!$'()*+,~"  # of an address, as it stands


def p95_of(latencies: Sequence[float]) -> float | None:
    """The 95th percentile; None of too few."""
    return quantiles(latencies, n=20)[-1] if len(latencies) >= ENOUGH else None


def late_from(alone: Sequence[float], requests: int, target_s: float) -> float:
    """The p95 of `requests` that is late: where that of all is the target, one sample in twenty shows more by chance.

    A share of them is above the target; which quantile they show as their 95th scatters as the binomial does.
    """
    shown = 0.95 + 1.645 * math.sqrt(0.95 * 0.05 / max(requests, ENOUGH))
    ordered = sorted(alone)
    return target_s * ordered[min(int(shown * len(ordered)), len(ordered) - 1)] / (p95_of(ordered) or math.inf)


class Latencies(Protocol):
    """Seconds of each request since it was last asked."""

    def take(self) -> list[float]:
        """Those that ended meanwhile."""

    def close(self) -> None:
        """No more are wanted."""


class Probe:
    """A thread that sends a GET each `every_s`. Raises SpecError where the URL is none."""

    def __init__(self, url: str, every_s: float) -> None:
        try:
            parts = urlsplit(url)
            self.where = (parts.hostname or "", parts.port or 80)
            self.where[0].encode("idna")
        except ValueError:  # UnicodeError too
            parts, self.where = urlsplit(""), ("", 0)
        if parts.scheme != "http" or not self.where[0]:
            raise SpecError("--probe", url, "give the address of a service, such as http://127.0.0.1:8000/health")
        self.path = quote(parts.path or "/", SAFE) + (f"?{quote(parts.query, SAFE)}" if parts.query else "")
        self.every_s = every_s
        self.ended: list[float] = []
        self.lock, self.stopped = threading.Lock(), threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def take(self) -> list[float]:
        """See `Latencies`."""
        with self.lock:
            ended, self.ended = self.ended, []
        return ended

    def close(self) -> None:
        """See `Latencies`."""
        self.stopped.set()
        self.thread.join(2 * TIMEOUT_S)

    def _run(self) -> None:
        with suppress(OSError):  # as root: what it waits for a core is not the service's
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), -20)
        due = time.monotonic()
        connection: http.client.HTTPConnection | None = None
        while not self.stopped.wait(max(0.0, due - time.monotonic())):
            try:
                connection = connection or http.client.HTTPConnection(*self.where, timeout=TIMEOUT_S)
                connection.request("GET", self.path)
                answer = connection.getresponse()
                while answer.read1(READ_AT_ONCE):  # of a stream that does not end, what comes in time
                    if time.monotonic() - due > TIMEOUT_S or self.stopped.is_set():
                        raise TimeoutError
                answer.close()  # read to its end, so that the connection stays
                took = time.monotonic() - due if answer.status < 400 else math.inf
            except (OSError, http.client.HTTPException):
                took = math.inf
                if connection is not None:
                    connection.close()
                connection = None
            with self.lock:
                self.ended.append(min(took, TIMEOUT_S))
            due = max(due + self.every_s, time.monotonic() - TIMEOUT_S)


class LatencyFile:
    """What the service appends to a file: seconds, a line each request."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0
        path.unlink(missing_ok=True)
        path.write_bytes(b"")

    def take(self) -> list[float]:
        """See `Latencies`. Raises SpecError where a line is no number of seconds."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.at)
                data = file.read(FILE_MOST)
        except FileNotFoundError:  # put away; a new one begins anew
            self.at = 0
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self.at += len(whole)
        return [self._seconds(line) for line in whole.split(b"\n") if line.strip()]

    def close(self) -> None:
        """See `Latencies`."""

    def _seconds(self, line: bytes) -> float:
        try:
            value = float(line)
        except ValueError:
            value = -1.0
        if not 0.0 <= value < math.inf:
            raise SpecError(
                "WINDTUNNEL_LATENCIES", line[:40].decode(errors="replace"), "write seconds, a line a request"
            )
        return value
