"""A process that has PyTorch loaded and forks itself, once for each rank that is to be played.

`python -P -m windtunnel.real.capture.processes.fork_server`, spoken to in JSON lines: the first says what to load and
which folder to make, then each {"rank": 3, ...} starts a rank; it answers {"ready": folder}, {"started": 3, "pid": 42},
{"ended": 3, "status": -9}.
Importing PyTorch takes seconds, forking milliseconds, and what is loaded is shared between all ranks.

It owns everything temporary: the folder, the ranks, what they start. When it is told to end, or whoever started it is
gone (its standard input ends, however that came), it kills every process below it, removes the folder and ends. A rank
dies with it (PDEATHSIG, Linux). Workers that a rank started are in the rank's process group: they are killed when the
rank ends. Killed itself it can clean nothing: `leftovers.py` does, with the next start.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from windtunnel.process import adopt_orphans, children_of, die_with_parent
from windtunnel.real.capture.processes.bytecode import share_bytecode
from windtunnel.real.capture.processes.leftovers import remove

BYTECODE = "bytecode"  # in the folder of the ranks


def main() -> None:
    """Serve until told to end. What is loaded is named by the first line."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    settings = json.loads(sys.stdin.buffer.readline() or b"{}")
    if not settings:
        return
    if settings["hash_seed"]:
        del os.environ["PYTHONHASHSEED"]  # this interpreter has it; a script finds what it would on a cluster
    adopt_orphans()
    signal.signal(signal.SIGTERM, _end)
    folder: Path | None = None
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what modules print on import is no answer
    ranks: dict[int, int] = {}
    status = 0
    try:
        folder = Path(settings["folder"])
        folder.mkdir(mode=0o700)
        try:
            player = _load(settings)
            bytecode = Path(settings.get("bytecode", folder / BYTECODE))
            bytecode.mkdir(exist_ok=True)
            share_bytecode(bytecode)
        except ImportError as error:
            answers.write(json.dumps({"failed": str(error), "module": error.name or ""}) + "\n")
            return
        answers.write(json.dumps({"ready": str(folder)}) + "\n")
        _serve(ranks, player, folder, answers)
    except (SystemExit, BrokenPipeError):
        pass
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_below(ranks)
        if folder is not None:
            remove(folder)
        os._exit(status)


def _load(settings: dict[str, str]) -> Callable[[dict[str, object]], int]:
    from importlib import import_module

    for name in settings["load"]:
        import_module(name)
    for name in settings.get("try_to_load", ()):
        with suppress(ImportError):
            import_module(name)
    module, _, function = settings["player"].partition(":")
    player: Callable[[dict[str, object]], int] = getattr(import_module(module), function)
    gc.collect()
    gc.freeze()  # so that collections in the forks do not touch, and copy, what is shared
    return player


def _serve(ranks: dict[int, int], player: Callable[[dict[str, object]], int], folder: Path, answers: TextIO) -> None:
    # From here on SIGTERM says what the end of standard input says; they may come at once, and cut nothing off.
    told_to_end: list[int] = []
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.signal(signal.SIGTERM, lambda number, frame: told_to_end.append(number))
    watched = selectors.DefaultSelector()
    watched.register(0, selectors.EVENT_READ)
    watched.register(wake_read, selectors.EVENT_READ)
    pending = b""
    while not told_to_end:
        for key, _ in watched.select(timeout=1.0):
            if key.fd == wake_read:
                with suppress(BlockingIOError):
                    os.read(wake_read, 4096)
                continue
            chunk = os.read(0, 65536)
            if not chunk:
                return
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                task = json.loads(line)
                here = os.getpid()
                pid = os.fork()
                if pid == 0:
                    not_ours = (wake_read, wake_write, answers.fileno())
                    _become(player, {**task, "folder": str(folder)}, not_ours, here)
                with suppress(OSError):
                    os.setpgid(pid, pid)
                ranks[pid] = task["rank"]
                answers.write(json.dumps({"started": task["rank"], "pid": pid}) + "\n")
        for pid, status in _ended():
            rank = ranks.pop(pid, None)
            if rank is not None:
                _kill_group(pid)
                ending = {"ended": rank, "status": os.waitstatus_to_exitcode(status)}
                answers.write(json.dumps(ending) + "\n")


def _become(
    player: Callable[[dict[str, object]], int], task: dict[str, Any], not_ours: tuple[int, ...], parent: int
) -> None:
    """In the fork: play the rank, and never return into the loop above."""
    status = 70
    try:
        die_with_parent(parent)
        with suppress(OSError):
            os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in not_ours:
            os.close(descriptor)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        log = os.open(Path(task["folder"]) / f"rank_{task['rank']}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(nothing)
        os.close(log)
        status = player(task)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)  # no clean-up of what the fork server holds, and no handlers that a script left


def _ended() -> Iterator[tuple[int, int]]:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, status


def kill_below(ranks: dict[int, int], patience_s: float = 5.0) -> None:
    """Kill the ranks, their workers, and, on Linux, whatever else came to be below this process."""
    for pid in list(ranks):
        _kill_group(pid)
    until = time.monotonic() + patience_s
    while time.monotonic() < until:
        for pid, _ in _ended():
            ranks.pop(pid, None)
        below = set(ranks) | set(children_of(os.getpid()))
        if not below:
            return
        for pid in below:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit


if __name__ == "__main__":
    main()
