"""Shared by all tests: property tests have no deadline, because these run on shared machines.

Their examples are the same in every run, so that a change fails for what it changed; the same ones again and again find
little, so there are two fifths of the number that a test names. HYPOTHESIS_PROFILE=random draws anew, and all of them.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Of PyTorch's small kernels and numpy's: with workers and ranks on the same cores, more threads wait for each other and
# burn what they wait. Before either is loaded; children inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "windtunnel", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=16, derandomize=True
)
settings.register_profile("random", settings.get_profile("windtunnel"), derandomize=False, max_examples=240)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "windtunnel"))

FEWEST = 8  # examples, where a test names as many
FEWER: set[object] = set()  # tests that draw fewer by now: those of several parameters are one function


def pytest_itemcollected(item: pytest.Item) -> None:
    """Fewer examples, where they are the same in every run."""
    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    named = getattr(test, "_hypothesis_internal_use_settings", None)
    usual = settings().max_examples
    if named is not None and named.derandomize and named.max_examples != usual and test not in FEWER:
        FEWER.add(test)
        fewer = min(named.max_examples, max(FEWEST, math.ceil(0.4 * named.max_examples)))
        test._hypothesis_internal_use_settings = settings(named, max_examples=fewer)


COMPILING_S = 300.0  # then a worker goes on: one of the others may have ended
TOGETHER = pytest.StashKey[tempfile.TemporaryDirectory[str]]()


def replays() -> None:
    """The kernels that compile when they are imported, and coflows."""
    for name in ("fixed_kernels", "shared_kernels"):
        import_module(f"windtunnel.physics.engine.compiled.{name}")
    coflows()


def simulators() -> None:
    """What draws samples, and queues of jobs."""
    import_module("windtunnel.physics.engine.compiled.lane_kernels")
    queues()


def coflows() -> None:
    from windtunnel.studies.fleet.flows import read_trace, run_flows

    run_flows(read_trace(Path(__file__).parent / "unit" / "studies" / "fleet" / "coflows.txt"), "sebf")


def queues() -> None:
    from windtunnel.studies.fleet.jobs.read import read_jobs
    from windtunnel.studies.fleet.options import Options
    from windtunnel.studies.fleet.run import simulate
    from windtunnel.studies.fleet.site import parse_site

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.csv"
        path.write_text("job,submit_s,gpus,duration_s\na,0,1,1\n")
        simulate(read_jobs(path), parse_site("v100:1"), "fifo", Options())


PARTS: tuple[Callable[[], None], ...] = (replays, simulators)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A folder in which workers say that they have compiled their part; it goes with the session."""
    stash = node.config.stash
    if TOGETHER not in stash:
        stash[TOGETHER] = tempfile.TemporaryDirectory(prefix="windtunnel-tests-")
    node.workerinput["compiled"] = stash[TOGETHER].name


def compile_in_turn(folder: Path) -> None:
    """What is in one file of kernels one worker compiles at a time: the others find it compiled."""
    import fcntl

    dispatcher: Any = import_module("numba.core.dispatcher").Dispatcher
    compile_now, held = dispatcher.compile, set()
    ours = Path(import_module("windtunnel.physics.engine.compiled").__path__[0])

    def compile_here(self: Any, signature: object) -> object:
        file = Path(self.py_func.__code__.co_filename)
        if file in held or ours not in file.parents:
            return compile_now(self, signature)
        with (folder / f"{file.stem}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            held.add(file)
            try:
                return compile_now(self, signature)
            finally:
                held.discard(file)

    dispatcher.compile = compile_here


def pytest_configure(config: pytest.Config) -> None:
    """On a machine that has no compiled kernels each of several workers would compile all: each compiles a part."""
    given = getattr(config, "workerinput", None)
    if given is None or "compiled" not in given or given["workercount"] < len(PARTS):
        return
    number, done = int(given["workerid"].removeprefix("gw")), Path(given["compiled"])
    compile_in_turn(done)
    if number < len(PARTS):
        PARTS[number]()
        (done / str(number)).touch()
    until = time.monotonic() + COMPILING_S
    while not all((done / str(part)).exists() for part in range(len(PARTS))) and time.monotonic() < until:
        time.sleep(0.1)
