"""What went wrong in a script, and where: without windtunnel's frames, by the script's own lines."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from functools import cache
from pathlib import Path
from types import FrameType, TracebackType

from windtunnel.errors import UserError, WindtunnelError
from windtunnel.real.capture.installed import installed_folders

_OURS = str(Path(__file__).resolve().parents[3]) + os.sep


def missing_package(error: BaseException) -> str:
    """The package that the script cannot do without, where there is a stand-in for it."""
    if "torch" not in sys.modules:
        return ""
    from windtunnel.real.capture.torch_private.stand_ins import stand_in_for

    return stand_in_for(error)


def error_document(error: BaseException) -> dict[str, str]:
    """What is left of an error in the rank's outcome: one line, and its traceback."""
    details = traceback_of_script(error)
    where = place_in_script(error.__traceback__)
    at = f"{where}: " if where else ""
    if isinstance(error, SystemExit):  # what it said of that is in its log; a trace would only say where
        status = 0 if error.code is None else error.code
        text = f"the script ended itself (exit status {status}) before the wanted step"
        return {"message": f"{at}{text}", "details": ""}
    if isinstance(error, TimeoutError | UserError):
        return {"message": f"{at}{error}", "details": details}
    name = type(error).__name__
    text = " ".join(str(error).split()) or "no message"
    text = text if len(text) < 600 else text[:600] + " ..."
    if isinstance(error, WindtunnelError):
        return {"message": f"{at}{text}", "details": details}
    return {"message": f"{at}{name}: {text}; the traceback is above: does it run under torchrun?", "details": details}


def traceback_of_script(error: BaseException) -> str:
    """As Python would print it without windtunnel's frames; nothing for what windtunnel says in one line."""
    if isinstance(error, UserError):
        return ""
    report = traceback.TracebackException.from_exception(error)
    pending: list[traceback.TracebackException | None] = [report]
    while pending:
        exception = pending.pop()
        if exception is not None:
            theirs = [frame for frame in exception.stack if not _is_ours(frame.filename)]
            exception.stack = traceback.StackSummary.from_list(theirs or list(exception.stack))
            pending += [exception.__cause__, exception.__context__]
    return "".join(report.format())


def _is_ours(path: str) -> bool:
    """No part of what the script did: windtunnel, and what starts a script."""
    return path == "<frozen runpy>" or os.path.realpath(path).startswith(_OURS)


def place_in_script(trace: TracebackType | None) -> str:
    """`train.py:42`, the innermost line that is neither windtunnel's nor of an installed package."""
    frames = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]
    return _innermost(frames)


def write_place(path: Path, frame: FrameType | None) -> None:
    """On SIGUSR1: the launcher asks where this rank is."""
    frames = [(caller.f_code.co_filename, line) for caller, line in traceback.walk_stack(frame)]
    path.write_text(_innermost(frames[::-1]))


def _innermost(frames: list[tuple[str, int]]) -> str:
    for name, line in reversed(frames):
        if not _is_foreign(name):
            return f"{os.path.relpath(name) if name.startswith(os.getcwd() + os.sep) else name}:{line}"
    return ""


def _is_foreign(path: str) -> bool:
    """Of Python, of an installed package, or of windtunnel itself."""
    return path.startswith("<") or os.path.realpath(path).startswith(_foreign_folders())


@cache
def _foreign_folders() -> tuple[str, ...]:
    python = {os.path.realpath(path) + os.sep for path in sysconfig.get_paths().values()}
    return (*python, *installed_folders(), _OURS)
