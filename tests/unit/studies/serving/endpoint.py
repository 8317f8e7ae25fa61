"""A real endpoint for tests: uvicorn in a thread, a plain price list, a fast clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prices import plain_times

from windtunnel.http_guard import Guard, bound_socket, hosts_of, server
from windtunnel.studies.serving.emulator.app import application
from windtunnel.studies.serving.emulator.clock import Clock
from windtunnel.studies.serving.emulator.engine import Engine
from windtunnel.studies.serving.emulator.fleet import Fleet
from windtunnel.studies.serving.emulator.listen import BODY_BYTES_MOST
from windtunnel.studies.serving.replica import Replica, Rules
from windtunnel.studies.serving.routing import LeastLoaded

LONGEST = 4000


class Held:
    """A wall clock that stands still until it is let go, so that what was sent before does not depend on load."""

    def __init__(self) -> None:
        self.gone_ns = -1

    def __call__(self) -> int:
        return 0 if self.gone_ns < 0 else time.monotonic_ns() - self.gone_ns

    def go(self) -> None:
        self.gone_ns = time.monotonic_ns()


@contextmanager
def endpoint(
    speed: float = 10.0, replicas: int = 1, blocks: int = 500, seqs: int = 64, held: Held | None = None, **settings: Any
) -> Iterator[tuple[str, Engine]]:
    """(address, engine) of a server that ends with the block."""
    times = plain_times()
    rules = Rules(max_num_seqs=seqs, token_budget=1024, longest_chunk=1024, block_size=16, prefix_caching=True)
    fleet = Fleet(lambda: Replica(times, rules, blocks), replicas, LeastLoaded())
    engine = Engine(fleet, Clock(speed, held or time.monotonic_ns), block_size=16, **settings)
    app = application(engine, ("tiny",), min(LONGEST, blocks * 16), "test", 16)
    bound = bound_socket("127.0.0.1", 0, "--listen")
    guard = Guard(app, hosts_of("127.0.0.1", bound), page=False, most=lambda path: BODY_BYTES_MOST)
    running = server(guard, stop_s=1)
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}", engine
    finally:
        running.should_exit = True
        thread.join(20)
        bound.close()
        assert not thread.is_alive()


def settles(engine: Engine, patience_s: float = 20.0) -> bool:
    """Whether all requests end and all blocks come back."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        held = [one.pool.held for one in engine.fleet.replicas if one is not None]
        if not engine.answers and not len(engine.fleet) and not any(held):
            return True
        time.sleep(0.02)
    return False


def until(what: Callable[[], bool], patience_s: float = 20.0) -> None:
    """Wait for something that another thread brings about."""
    end = time.monotonic() + patience_s
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)
