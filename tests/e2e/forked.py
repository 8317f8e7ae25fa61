"""`windtunnel` commands run by forks of one process that has PyTorch loaded, as the product's fork server runs ranks.

What `capture` and `run` do is done by processes of their own as ever: the command, its fork server or real ranks, what
these start, each with its parent, session, environment and standard streams. Only the seconds in which a new
interpreter imports PyTorch are left out: the command is a fork of this module's server, and where it would start
`python -P -m MODULE` it forks and runs that module. What a new interpreter alone shows (its start, a signal while it
imports, what the user's environment holds) is tested with `subprocess`, in the same files.

Run as a program, this file is the server.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

HASH_SEED = "PYTHONHASHSEED"
EARLY = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", HASH_SEED: "0"}  # read when it and PyTorch are loaded


def windtunnel(
    *words: str, cwd: Path, env: dict[str, str], timeout: float = 300, module: str = "windtunnel"
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE WORDS`, or of a script's path `python SCRIPT.py WORDS`. Raises subprocess.TimeoutExpired."""
    assert env.get("OMP_NUM_THREADS", "1") == "1", "the server was started with one thread"
    out, err = cwd / ".stdout", cwd / ".stderr"
    told = {
        "module": module,
        "words": list(map(str, words)),
        "cwd": str(cwd),
        "env": env,
        "out": str(out),
        "err": str(err),
    }
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps({**told, "timeout": timeout}) + "\n")
    server.stdin.flush()
    status = json.loads(server.stdout.readline())
    texts = [path.read_text(errors="replace") for path in (out, err)]
    for path in (out, err):
        path.unlink()
    if status is None:
        raise subprocess.TimeoutExpired(told["words"], timeout, *texts)
    return subprocess.CompletedProcess(told["words"], status, *texts)


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **EARLY},
    )
    atexit.register(server.wait)
    assert server.stdin is not None
    atexit.register(server.stdin.close)  # before the wait: last in, first out
    return server


class _Forked(subprocess.Popen[Any]):
    """`python -P -m MODULE WORDS` is a fork of this process that runs the module; all else is started as ever.

    So is what asks for another order of sets than this process has.
    """

    def _execute_child(self, args: Any, *rest: Any) -> None:
        env, session = rest[5], rest[-2]
        other_order = (env or {}).get(HASH_SEED, EARLY[HASH_SEED]) != EARLY[HASH_SEED]
        if list(args[:3]) != [sys.executable, "-P", "-m"] or other_order:
            return super()._execute_child(args, *rest)  # type: ignore[misc]
        reading, self_in, self_out, writing, errors_read, errors = rest[9:15]
        self.pid = os.fork()
        if self.pid == 0:
            for ours in (self.stdin, self.stdout, self.stderr):
                if ours is not None:
                    ours.close()
            if session:
                os.setsid()
            sys.path.remove(os.getcwd())  # -P
            _run(args[3], args[4:], env, (reading, writing, errors))
        self._child_created = True
        self._close_pipe_fds(reading, self_in, self_out, writing, errors_read, errors)  # type: ignore[attr-defined]


def _run(module: str, words: list[str], env: dict[str, str] | None, streams: tuple[int, int, int]) -> None:
    """In the fork: run a module as `python -m` does, and end."""
    status: Any = 70
    try:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor, given in enumerate(streams):
            if given >= 0:
                os.dup2(given, descriptor)
        for given in streams[:2]:  # pipes of this command alone
            if given > 2:
                os.close(given)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        tempfile.tempdir = None
        sys.argv = [module, *words]
        warnings.filterwarnings("ignore", "'windtunnel.*' found in sys.modules", RuntimeWarning)
        try:
            if module.endswith(".py"):
                sys.path.insert(0, str(Path(module).parent))
                runpy.run_path(module, run_name="__main__")
            else:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as ended:
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr)
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            status = 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def serve() -> None:
    """One command after the other."""
    from windtunnel.real.capture.launch import LOAD, PLAYER, TRY_TO_LOAD

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for name in (
        *LOAD,
        *TRY_TO_LOAD,
        PLAYER.partition(":")[0],
        "windtunnel.faces.cli.app",
        "windtunnel.real.emulate.rank",
    ):
        import_module(name)
    sys.path.pop(0)  # this file's folder
    gc.collect()
    gc.freeze()  # a fork's collector writes to no page of what was loaded
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            answers.close()
            os.setpgid(0, 0)
            os.chdir(asked["cwd"])
            streams = [os.open(os.devnull, os.O_RDONLY)]
            streams += [os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for name in ("out", "err")]
            sys.path.insert(0, os.getcwd())  # as `python -m` does, and `python -P` does not
            subprocess.Popen = _Forked  # type: ignore[misc]
            _run(asked["module"], asked["words"], asked["env"], (streams[0], streams[1], streams[2]))
        with suppress(OSError):  # the child does so too: whoever comes first
            os.setpgid(pid, pid)
        answers.write(json.dumps(_status(pid, asked["timeout"])) + "\n")


def _status(pid: int, timeout: float) -> int | None:
    """Of a child that has ended; None where it had to be, with what it forked."""
    late = False

    def end(number: int, _frame: object) -> None:
        nonlocal late
        late = number == signal.SIGALRM
        os.killpg(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, end)
    interrupted = signal.signal(signal.SIGINT, end)  # of a terminal, which reaches no other group
    signal.setitimer(signal.ITIMER_REAL, timeout)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGINT, interrupted)
    return None if late else code


if __name__ == "__main__":
    serve()
