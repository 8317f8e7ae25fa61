"""One real process of a job, known by its number and the time it started, so that it can be found again.

The command runs under a shell that writes its own process number before, and the exit status after, into the job's
folder. So whoever comes later can tell "runs", "ended with ..." and "was killed" apart, whether or not it is the
parent.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from windtunnel.process import processes

BIRTH_S = 2.0  # after which a process that wrote no number was never born
GRACE_S = 5.0  # between asking a process to stop and stopping it


def birth_of(pid: int) -> int | None:
    """The kernel's start time of a living process; None if there is none (a zombie has ended)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if fields[0] == "Z" else int(fields[19])


def launch(folder: Path, attempt: str, command: str, environment: Mapping[str, str]) -> int:
    """Start a command in a session of its own; returns its process number."""
    folder.mkdir(parents=True, exist_ok=True)
    pid, exit_, log = (shlex.quote(str(folder / f"{name}.{attempt}")) for name in ("pid", "exit", "log"))
    script = (
        f"echo $$ > {pid}.new && mv {pid}.new {pid}; ( {command}\n) >> {log} 2>&1;"
        f" echo $? > {exit_}.new; mv {exit_}.new {exit_}"
    )
    return subprocess.Popen(
        ["/bin/sh", "-c", script],
        env={**os.environ, **environment, "WINDTUNNEL_FOLDER": str(folder)},
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,  # of the shell, which tells of a signal; the command's is in the log
    ).pid


def number(folder: Path, attempt: str, patience_s: float) -> int | None:
    """The process number of an attempt; None where it was never born."""
    until = time.monotonic() + patience_s
    path = folder / f"pid.{attempt}"
    while not path.is_file():
        if time.monotonic() > until:
            return None
        time.sleep(0.005)
    return int(path.read_text())


def status(folder: Path, attempt: str) -> int | None:
    """The exit status of an attempt that ended by itself; 1 where the job wrote something else there."""
    path = folder / f"exit.{attempt}"
    if not path.is_file():
        return None
    text = path.read_text(errors="replace").strip()
    return int(text) if text.isdecimal() else 1


def stop(pid: int, born: int) -> None:
    """Ask the whole session to stop, and make it after a while. Its shell goes first: what it ran may still save."""
    if birth_of(pid) not in (born, None):
        return  # another's number by now: of a session nobody is left then
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for member in (each for each, _, session in processes() if session == pid):
            with suppress(ProcessLookupError):
                os.kill(member, sign)
        until = time.monotonic() + GRACE_S
        while any(session == pid for _, _, session in processes()) and time.monotonic() < until:
            reap()
            time.sleep(0.01)


def reap() -> None:
    """Collect children that ended, so that they count as gone."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
