"""A Ray cluster of this machine, for one sweep: a process starts it beside what this one does, and ends it.

Of Ray's daemons it leaves out those that only a cloud or a reader needs: autoscaler, log monitor and dashboard.
`ray.init` cannot, and they cost seconds of CPU at the start and one of waiting at the end.
"""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from threading import Thread
from types import TracebackType
from typing import Any

from windtunnel.errors import UserError

OBJECTS_BYTES = 128 * 2**20  # rows are small


_ending: list[Thread] = []


def wait_for_ends() -> None:
    """Until nothing is left of clusters that were left."""
    while _ending:
        _ending.pop().join()


class RayCluster:
    """Starts when made and ends when left, or when this process does, both without waiting; it leaves nothing."""

    def __init__(self, workers: int) -> None:
        wait_for_ends()
        self._told, theirs = get_context("spawn").Pipe()
        self._process = get_context("spawn").Process(target=_keep, args=(theirs, workers))
        self._process.start()
        theirs.close()
        self._ray: Any = None

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # fmt: skip
        _ending.append(Thread(target=self._end))
        _ending[-1].start()

    def _end(self) -> None:
        if self._ray is not None:
            self._ray.shutdown()
        self._told.close()
        self._process.join()

    def is_there(self) -> bool:
        """Whether `connected` answers at once, now."""
        return self._ray is not None or (self._told.poll() and self.connected() is not None)

    def connected(self) -> Any:
        """The module `ray`, connected to the cluster once it is there. Raises UserError where it did not start."""
        if self._ray is None:
            try:
                address, trouble = self._told.recv()
            except EOFError:
                address, trouble = "", "its process died"
            if not address:
                raise UserError(f"Ray did not start on this machine ({trouble}); use --executor processes")
            import ray

            ray.init(address=address, log_to_driver=False)  # workers get no environment of their own: that takes longer
            self._ray = ray
        return self._ray


def _keep(parent: Connection, workers: int) -> None:
    """Start the cluster, say its address, and end it when nobody holds the other end of the pipe any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all: the parent ends this one
    # Sockets lie in it, and their paths must be short. Its own, so that no other cluster's address is written over.
    with tempfile.TemporaryDirectory(
        prefix="windtunnel-ray-", dir="/tmp" if os.name == "posix" else None, ignore_cleanup_errors=True
    ) as folder:
        os.environ["RAY_TMPDIR"] = folder
        from ray._private.node import Node
        from ray.cluster_utils import Cluster

        Node.start_api_server = lambda *_, **__: None  # asked for or not, it starts, and is waited for
        daemons = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        try:
            cluster = Cluster(
                True, head_node_args={"num_cpus": workers, "object_store_memory": OBJECTS_BYTES, **daemons}
            )
        except Exception as error:
            parent.send(("", f"{type(error).__name__}: {error}"))
            raise
        with suppress(BrokenPipeError):  # it has ended meanwhile
            parent.send((cluster.address, ""))
            parent.poll(None)  # nothing is ever sent: what comes is the end
        cluster.shutdown()
