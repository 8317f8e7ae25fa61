"""Points on Ray: on a cluster that this process is connected to, or on one of this machine for one sweep.

That one is started, told what to run and ended by a process of its own, the only one that loads Ray: it works beside
this one's. Of Ray's daemons it leaves out those that only a cloud or a reader needs: autoscaler, log monitor and
dashboard. `ray.init` cannot, and they cost seconds of CPU at the start and one of waiting at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from logging import WARNING
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from types import TracebackType
from typing import Any

from windtunnel.errors import UserError
from windtunnel.studies.sweeps.run_points import Row, run_points

Batch = Sequence[tuple[int, Mapping[str, object]]]  # places and points of one task
Rows = list[tuple[int, Row]]
TRIES = 3
OBJECTS_BYTES = 128 * 2**20  # rows are small


def rows_on_ray(ray: Any, function: str, batches: Sequence[Batch], workers: int) -> Iterator[Rows]:
    """Rows as they come, at times none. `ray`: the module, connected."""
    remote = ray.remote(max_retries=TRIES - 1)(run_points)
    todo = list(reversed(batches))
    waiting: dict[object, Batch] = {}
    while todo or waiting:
        while todo and len(waiting) < 4 * workers:
            batch = todo.pop()
            waiting[remote.remote(function, [point for _, point in batch])] = batch
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=1.0)
        ready_rows: Rows = []
        for reference in ready:
            batch = waiting.pop(reference)
            try:
                rows = ray.get(reference)
            except ray.exceptions.RayError as error:
                if len(batch) > 1:  # one of them did it
                    todo += [[entry] for entry in reversed(batch)]
                    continue
                died: Row = {"status": "died", "reason": f"{type(error).__name__}: its worker died", "outputs": {}}
                rows = [died] * len(batch)
            ready_rows += zip((place for place, _ in batch), rows, strict=True)
        yield ready_rows


_ending: list[Thread] = []


def wait_for_ends() -> None:
    """Until nothing is left of clusters that were left."""
    while _ending:
        _ending.pop().join()


class RayCluster:
    """Starts when made and ends when left, or when this process does, both without waiting; it leaves nothing."""

    def __init__(self, function: str, workers: int) -> None:
        wait_for_ends()
        self._pipe, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=_keep, args=(theirs, function, workers))
        self._process.start()
        theirs.close()

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        self._pipe.close()
        _ending.append(Thread(target=self._process.join))
        _ending[-1].start()

    def is_there(self) -> bool:
        """Whether it has started, or failed to."""
        return self._pipe.poll()

    def rows(self, batches: Sequence[Batch]) -> Iterator[tuple[int, Row]]:
        """(Place of the point, row) as they come. Raises UserError where the cluster did not start or broke."""
        with suppress(BrokenPipeError):  # why, is read below
            self._pipe.send(batches)
        while True:
            try:
                rows, trouble = self._pipe.recv()
            except EOFError:
                rows, trouble = None, "its process died"
            if trouble:
                raise UserError(f"Ray does not work on this machine ({trouble}); use --executor processes")
            if rows is None:
                return
            yield from rows


def _keep(parent: Connection, function: str, workers: int) -> None:
    """Start the cluster, run what is asked, and end it when nobody holds the other end of the pipe any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all: the parent ends this one
    # Sockets lie in it, and their paths must be short. Its own, so that no other cluster's address is written over.
    with tempfile.TemporaryDirectory(
        prefix="windtunnel-ray-", dir="/tmp" if os.name == "posix" else None, ignore_cleanup_errors=True
    ) as folder:
        os.environ["RAY_TMPDIR"] = folder
        with suppress(EOFError, BrokenPipeError):  # the parent has ended, or has enough
            try:
                _run(parent, function, workers)
            except (EOFError, BrokenPipeError):
                raise
            except Exception as error:
                parent.send((None, f"{type(error).__name__}: {error}"))
    for _ in range(50):
        if not os.path.exists(folder):
            break
        time.sleep(0.1)  # the last of Ray's daemons wrote while it was emptied
        shutil.rmtree(folder, ignore_errors=True)


def _run(parent: Connection, function: str, workers: int) -> None:
    import ray
    from ray._private.node import Node
    from ray.cluster_utils import Cluster

    node: Any = Node
    node.start_api_server = lambda *_, **__: None  # asked for or not, it starts, and is waited for
    daemons = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    cluster: Any = Cluster(True, head_node_args={"num_cpus": workers, "object_store_memory": OBJECTS_BYTES, **daemons})
    try:
        # Workers get no environment of their own: that takes longer.
        ray.init(address=cluster.address, log_to_driver=False, logging_level=WARNING)
        # It is there when its workers have loaded what they call; until then others have points to work on.
        for _ in rows_on_ray(ray, function, [[]] * workers, workers):
            pass
        parent.send(([], ""))
        batches = parent.recv()
        for row in rows_on_ray(ray, function, batches, workers):
            if parent.poll():  # nothing more is ever sent: what comes is the end
                return
            parent.send((row, ""))
        parent.send((None, ""))
    finally:
        ray.shutdown()
        cluster.shutdown()
