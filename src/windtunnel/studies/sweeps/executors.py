"""Where points run: processes (the default), Ray, or anything with the interface of `concurrent.futures.Executor`.

Each yields (place of the point, row) as rows come. A worker that dies takes what was running with it: those points run
again, each alone, and one whose process then dies every time is a row that says so.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from importlib.util import find_spec
from multiprocessing import get_context
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError, UserError
from windtunnel.process import die_with_parent
from windtunnel.studies.sweeps.ray_cluster import TRIES, Batch, RayCluster, rows_on_ray
from windtunnel.studies.sweeps.run_points import Row, run_points

if TYPE_CHECKING:
    from multiprocessing.popen_spawn_posix import Popen

Inputs = Sequence[tuple[int, Mapping[str, object]]]
BATCH = 20  # points of one task: some tenths of a second
DIED: Row = {"status": "died", "reason": f"its worker died {TRIES} times", "outputs": {}}


def batches(inputs: Inputs, workers: int) -> list[Batch]:
    """Tasks: large enough to be cheap, small enough that all workers have some to the end."""
    size = max(1, min(BATCH, len(inputs) // (4 * max(1, workers))))
    return [list(inputs[start : start + size]) for start in range(0, len(inputs), size)]


def in_this_process(function: str, inputs: Inputs) -> Iterator[tuple[int, Row]]:
    """One after the other."""
    for place, point in inputs:
        yield place, run_points(function, [point])[0]


class _Worker(SpawnProcess):
    """A process that does not run the user's script again: points are run by functions of this package."""

    @staticmethod
    def _Popen(process_obj: BaseProcess) -> Popen:  # noqa: N802
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # what a spawned process would import before all else
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = script


class _Spawning(SpawnContext):
    Process = _Worker


def _processes(count: int, start: str = "spawn") -> ProcessPoolExecutor:
    """Processes of this machine, each started afresh; none outlives this one, however it ends."""
    context, parent = _Spawning() if start == "spawn" else get_context(start), os.getpid()
    return ProcessPoolExecutor(count, mp_context=context, initializer=die_with_parent, initargs=(parent,))


def in_processes(function: str, inputs: Inputs, workers: int) -> Iterator[tuple[int, Row]]:
    """Processes of this machine."""
    todo = batches(inputs, workers)
    while todo:
        lost: list[Batch] = []
        with _processes(workers) as pool:
            todo = yield from _on_pool(pool, function, todo, lost, 2 * workers)
        for place, point in (entry for batch in lost for entry in batch):  # one of these did it: each alone
            yield place, _alone(function, point)


def _on_pool(
    pool: Executor,
    function: str,
    todo: list[Batch],
    lost: list[Batch],
    ahead: int,
    enough: Callable[[], bool] = lambda: False,
) -> Generator[tuple[int, Row], None, list[Batch]]:
    """Batches on a pool, until it is `enough`. Where a worker died, what was running goes to `lost`.

    Returns what had not begun.
    """
    waiting: dict[Future[list[Row]], Batch] = {}
    rest = list(reversed(todo))
    while (rest and not lost and not enough()) or waiting:
        while rest and len(waiting) < ahead and not lost and not enough():
            batch = rest.pop()
            try:
                waiting[pool.submit(run_points, function, [point for _, point in batch])] = batch
            except BrokenProcessPool:
                lost.append(batch)
        done, _ = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            batch = waiting.pop(future)
            try:
                rows = future.result()
            except BrokenProcessPool:
                lost.append(batch)
                continue
            yield from zip((place for place, _ in batch), rows, strict=True)
    return list(reversed(rest))


def _alone(function: str, point: Mapping[str, object]) -> Row:
    """One point in a process of its own, several times if that dies."""
    for _ in range(TRIES):
        with _processes(1) as pool:
            try:
                return pool.submit(run_points, function, [point]).result()[0]
            except BrokenProcessPool:
                continue
    return dict(DIED)


def on_executor(executor: Executor, function: str, inputs: Inputs) -> Iterator[tuple[int, Row]]:
    """Anything with `submit`; a point whose future raises is a failed row."""
    waiting = {
        executor.submit(run_points, function, [point for _, point in batch]): batch for batch in batches(inputs, 8)
    }
    while waiting:
        done, _ = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            batch = waiting.pop(future)
            error = future.exception()
            if error is None:
                yield from zip((place for place, _ in batch), future.result(), strict=True)
                continue
            row: Row = {"status": "died", "reason": f"{type(error).__name__}: {error}", "outputs": {}}
            yield from ((place, dict(row)) for place, _ in batch)


def on_ray(address: str | None, function: str, inputs: Inputs, workers: int) -> Iterator[tuple[int, Row]]:
    """Ray: the cluster at `address`, or one of this machine that ends with the sweep.

    That one takes seconds to start, and little more than a core: until it is there, processes take points.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing leaves the machine
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_worker_niceness", "0")  # as other processes: with Ray's 15 a busy machine leaves less
    if find_spec("ray") is None:
        raise UserError("Ray is not installed: pip install 'windtunnel[ray]', or use --executor processes")
    todo = batches(inputs, workers)
    if address is None and not ("ray" in sys.modules and sys.modules["ray"].is_initialized()):
        with RayCluster(function, workers) as cluster:
            lost: list[Batch] = []
            start = "fork" if threading.active_count() == 1 else "spawn"  # what is loaded need not be loaded again
            with _processes(max(1, workers - 1), start) as pool:
                todo = yield from _on_pool(pool, function, todo, lost, workers, cluster.is_there)
            todo = [[entry] for batch in lost for entry in batch] + todo
            if todo:
                yield from cluster.rows(todo)
        return
    import ray

    own = not ray.is_initialized()
    if own:
        ray.init(address=address, log_to_driver=False)
    try:
        for row in rows_on_ray(ray, function, todo, workers):
            yield from row
    finally:
        if own:
            ray.shutdown()


def rows_of(executor: str | Executor, function: str, inputs: Inputs, workers: int) -> Iterator[tuple[int, Row]]:
    """`executor`: `processes`, `serial`, `ray`, `ray:ADDRESS`, or an object with `submit`."""
    if not isinstance(executor, str):
        if not hasattr(executor, "submit"):
            raise SpecError("executor", executor, "use processes, serial, ray, ray:ADDRESS, or an object with submit")
        return on_executor(executor, function, inputs)
    name, _, address = executor.partition(":")
    if name == "ray":
        return on_ray(address or None, function, inputs, workers)
    if executor == "serial":
        return in_this_process(function, inputs)
    if executor != "processes":
        raise SpecError("executor", executor, "use processes, serial, ray or ray:ADDRESS")
    return in_processes(function, inputs, workers)
