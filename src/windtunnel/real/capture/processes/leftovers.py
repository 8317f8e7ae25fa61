"""What a command that was killed (SIGKILL) leaves behind, and who ends and removes it.

`capture` and `run` each have one folder of temporary files, `windtunnel-run-PID-...`, after the process that owns it.
Everything that they start carries the folder's path in its environment. A folder whose owner is gone is stale: what
carries it is killed, then it is removed: at once by a keeper, a small process that hears the owner's end, and where
that was killed too, by the next start. Linux only: elsewhere nothing tells who is alive.

    python -m windtunnel.real.capture.processes.leftovers FOLDER        # the keeper of this folder
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from windtunnel.process import processes

FOLDER_VARIABLE = "WINDTUNNEL_RUN_FOLDER"  # in the environment of everything that is started
CAPTURE_PREFIX, RUN_PREFIX = "windtunnel-capture-", "windtunnel-run-"
_PATIENCE_S = 5.0
_AT_ONCE = 8  # threads that remove files


def folder_of_this_process(prefix: str) -> Path:
    """Where this process is to have its temporary files; not made yet."""
    return Path(tempfile.gettempdir()) / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"


def sweep() -> None:
    """End and remove what belongs to no command any more."""
    if not Path("/proc/self").exists():
        return
    for prefix in (CAPTURE_PREFIX, RUN_PREFIX):
        for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            owner = folder.name.removeprefix(prefix).partition("-")[0]
            if owner.isdigit() and not Path(f"/proc/{owner}").exists():
                end_all(folder)
                remove(folder)


def remove(folder: Path) -> None:
    """With all that it holds: an overlay leaves a folder behind that nobody may look into.

    Several parts at once: each of a rank's 150 files and folders waits for the disk, and on a busy machine for a core.
    """

    def without_looking(_: object, path: str, __: object) -> None:
        with suppress(OSError):
            os.rmdir(path)

    def remove_one(path: str) -> None:
        shutil.rmtree(path, onerror=without_looking)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(remove_one, [part for place in _folders_in(str(folder)) for part in _folders_in(place)]))
    remove_one(str(folder))


def _folders_in(folder: str) -> list[str]:
    try:
        return [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:  # gone, or nobody may look into it
        return []


class Keeper:
    """Ends and removes all of a folder as soon as this process is gone, however it went; `close` it when all is."""

    def __init__(self, folder: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != FOLDER_VARIABLE}
        words = [sys.executable, "-P", "-m", __name__, str(folder)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, env=environment)

    def close(self) -> None:
        """Nothing is left to be done."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()


def _keep(folder: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the command, which may clean up itself
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # until the owner of the other end is gone
    end_all(folder)
    remove(folder)


def end_all(folder: Path, leaders: Collection[int] = ()) -> None:
    """Kill what carries this folder and the sessions that `leaders` led, until none is left: one may start another."""
    until, quiet = time.monotonic() + _PATIENCE_S, 0
    while True:
        left = set(_started_in(folder)) - {os.getpid()}
        if leaders:  # who reads all of /proc without need is late where many wait for a core
            left |= {pid for pid, _, session in processes() if session in leaders}
        for leader in leaders:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL)
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if left else quiet + 1  # a program that is being started shows no environment for a moment
        if quiet == 2 or time.monotonic() > until:
            return
        time.sleep(0.01)


def _started_in(folder: Path) -> list[int]:
    """Processes that carry this folder; what is dead and not yet waited for has no environment."""
    mark = f"{FOLDER_VARIABLE}={folder}".encode()
    pids = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (place / "environ").read_bytes().split(b"\0"):
                pids.append(int(place.name))
    return pids


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
