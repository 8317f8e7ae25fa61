"""The parent's end of `fork_server.py`: it is started, spoken to in JSON lines, and nothing is left of it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from windtunnel.errors import UserError
from windtunnel.process import dying_with_parent, interrupts_later, signals_after_a_fork
from windtunnel.real.capture.processes import fork_server
from windtunnel.real.capture.processes.leftovers import (
    CAPTURE_PREFIX,
    FOLDER_VARIABLE,
    Keeper,
    end_all,
    folder_of_this_process,
    remove,
)
from windtunnel.studies.programs.rank_classes.findings import Finding

_END_S = 10.0


class ScriptError(UserError):
    """The script cannot be captured: it raised, hangs, or does what is not supported. `details`: its traceback.

    `finding`: what that says about the real job. `missing`: a package that it ended for, and that has a stand-in.
    """

    def __init__(self, message: str, details: str = "", finding: Finding | None = None, *, missing: str = "") -> None:
        self.details, self.finding, self.missing = details, finding, missing
        super().__init__(message)


class RankServer:
    """The process, and the folder of its ranks."""

    def __init__(self) -> None:
        self.place = folder_of_this_process(CAPTURE_PREFIX)
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: Keeper | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`; it has no name
        self._pending = b""

    @property
    def pid(self) -> int:
        """Of the process, once it is started."""
        assert self._process is not None
        return self._process.pid

    def start(self, hash_seed: str) -> None:
        """Start the process; `hash_seed` is its interpreter's, "" as everywhere. `close` is due, however this ends."""
        threads = os.environ.get("OMP_NUM_THREADS", "1")
        environment = {**os.environ, "OMP_NUM_THREADS": threads, FOLDER_VARIABLE: str(self.place)}
        if hash_seed:
            environment["PYTHONHASHSEED"] = hash_seed
        with signals_after_a_fork():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", fork_server.__name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
                preexec_fn=dying_with_parent(signal.SIGTERM),  # while it loads PyTorch it hears nothing else
                env=environment,
            )
        self._keeper = Keeper(self.place)

    def say(self, line: Mapping[str, object]) -> None:
        """One line to it."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(line).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._lost()

    def answers(self, timeout_s: float) -> list[dict[str, Any]]:
        """What it has said meanwhile; waits so long for a first line."""
        assert self._process is not None
        assert self._process.stdout is not None
        out = self._process.stdout.fileno()
        if not select.select([out], [], [], timeout_s)[0]:
            return []
        chunk = os.read(out, 1 << 16)
        if not chunk:
            self._lost()
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """End it and its ranks, and remove their files. An interrupt meanwhile waits until that is done."""
        process, self._process = self._process, None
        if process is None:
            return
        with interrupts_later():
            with suppress(OSError):
                assert process.stdin is not None
                process.stdin.close()
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            end_all(self.place, [process.pid])
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
            self._errors.close()
            remove(self.place)
            if self._keeper is not None:
                self._keeper.close()

    def _lost(self) -> None:
        assert self._process is not None
        end_all(self.place, [self._process.pid])
        status = self._process.wait()
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip()
        reason = text.splitlines()[-1] if text else death_of(status)
        raise ScriptError(f"the process that runs the script's ranks ended: {reason}", text)


def death_of(status: int) -> str:
    """How a process ended that said nothing, in words."""
    if status < 0:
        name = signal.Signals(-status).name
        memory = "; the machine may be out of memory: play fewer ranks at a time (--jobs 1)" if status == -9 else ""
        return f"was ended by {name}{memory}"
    return f"ended with status {status} and no word"
