"""What Python is told when it reads a tensor that holds no data.

A captured script runs on shapes alone, and still asks: is the loss finite, what is the gradient norm, did the scaler
find an infinity, how many tokens go to each expert. It gets these answers, all of them configurable, and each is
listed in the program with the script's line:

    what is read                                    told
    a value that is known (see known_values.py)     the value
    what an `assert` of the script takes, and       that it holds: a healthy job passes its own checks
    ranks decide that do not run
    a check of numbers (isfinite, isnan, any, all)  what it says of sound ones
    whether two tensors are equal, or close         that they are (equal: where their shapes are)
    any other bool                                  `flag`: False: no overflow, not finished
    a float that comes from a norm                  `gradient_norm`
    any other float                                 `loss`
    an integer                                      `integer`
    tokens per expert (bincount, histc, scatter_add_, mask sums), and what follows of it, sent round or not:
                                                    an even split
    how many entries of a mask are true             its known share (one expert of E: 1/E), else `true_share`
    how many distinct values                        as many as there can be

What was given for the line of the script that reads (`by_line`) wins over all of these.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import runpy
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import TYPE_CHECKING, Any

from windtunnel.real.capture.installed import installed_folders

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Answers:
    """What to tell. `by_line`: "train.py:42" (or a longer end of the path) -> the value read there."""

    loss: float = 2.0
    gradient_norm: float = 1.0
    flag: bool = False
    integer: int = 1
    true_share: float = 1.0  # of a mask about which nothing is known: all labels count, no padding
    own: float | None = None  # of what comes from this rank's data alone; inf: checks find it unsound. None: as others
    own_lines: Sequence[str] = ()  # "path:line" of those reads alone that are told so; (): of all
    by_line: Mapping[str, float | int | bool] = field(default_factory=dict)

    def at(self, where: str) -> float | int | bool | None:
        """What was given for a line of the script, "path:line": it wins over all that is known."""
        for line, value in self.by_line.items():
            if where == line or where.endswith("/" + line):
                return value
        return None

    def own_at(self, where: str) -> float | None:
        """What is told of this rank's data alone at a line of the script, "path:line"."""
        return self.own if not self.own_lines or where in self.own_lines else None

    def value(self, dtype: torch.dtype, from_norm: bool) -> float | int | bool:
        """For a tensor of one element of which nothing is known."""
        import torch

        if dtype == torch.bool:
            return self.flag
        if dtype.is_floating_point or dtype.is_complex:
            return self.gradient_norm if from_norm else self.loss
        return self.integer


@functools.cache
def _not_the_script() -> tuple[str, ...]:
    import numpy
    import torch

    packages = (os.path.dirname(str(module.__file__)) + os.sep for module in (torch, numpy))
    ours = os.path.abspath(__file__).partition(f"{os.sep}real{os.sep}capture{os.sep}")[0] + os.sep
    return (
        ours,
        *packages,
        "<frozen",
        "<string>",
        *(str(module.__file__) for module in (contextlib, functools, runpy)),
    )


@functools.cache
def is_script(path: str) -> bool:
    """Whether a file belongs to what the user runs: not to PyTorch, not to us, not to Python."""
    return not path.startswith(_not_the_script())


@functools.cache
def _python() -> str:
    """The folder of Python's own modules: asking for it takes longer than all else about a file."""
    return os.path.realpath(sysconfig.get_path("stdlib")) + os.sep


_real_folder = functools.cache(os.path.realpath)


def _real(path: str) -> str:
    """`os.path.realpath` of a file: two thousand are imported with PyTorch, of few folders."""
    folder, name = os.path.split(path)
    if not folder or os.path.islink(path):
        return os.path.realpath(path)
    return os.path.join(_real_folder(folder), name)


@functools.cache
def _frame_of(path: str) -> tuple[bool, bool, str]:
    """Of a file: whether it is no part of Python, PyTorch or us; whether it is no installed package; its short name."""
    real = _real(path)
    package = next((folder for folder in installed_folders() if real.startswith(folder)), None)
    outside = is_script(path) and not path.startswith("<") and (package is not None or not real.startswith(_python()))
    if package is not None:
        return outside, False, real.removeprefix(package)
    here = os.getcwd() + os.sep
    return outside, outside, real.removeprefix(here) if real.startswith(here) else path


def is_script_file(path: str) -> bool:
    """Whether a file is the user's own, and no installed package."""
    return _frame_of(path)[1]


def script_name(path: str) -> str:
    """The short name of a file of the script or of a package that it uses; "" for Python's, PyTorch's and ours."""
    outside, _, name = _frame_of(path)
    return name if outside else ""


def script_files(script: str = "") -> dict[str, str]:
    """The user's own files that were imported, and the script: path -> short name."""
    files = {}
    for path in (script, *(getattr(module, "__file__", None) for module in list(sys.modules.values()))):
        if isinstance(path, str) and path.endswith(".py") and _frame_of(path)[1]:
            files[os.path.abspath(path)] = _frame_of(path)[2]
    return files


def call_site(skip: int = 1) -> str:
    """ "train.py:41" of the innermost frame of the user's own files, else of an installed package; "" for neither."""
    frame: Any = sys._getframe(skip)
    package = ""
    while frame is not None:
        outside, own, name = _frame_of(frame.f_code.co_filename)
        if own:
            return f"{name}:{frame.f_lineno}"
        if outside and not package:
            package = f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return package


def is_asserted(skip: int = 1) -> bool:
    """Whether the innermost frame of the script reads what an `assert` of its takes as it is."""
    frame: Any = sys._getframe(skip)
    while frame is not None and not is_script(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        return False
    steps = [step for step in dis.get_instructions(frame.f_code) if step.offset >= frame.f_lasti]
    behind = dropwhile(lambda step: step is steps[0] or step.opname == "TO_BOOL", steps)
    if "JUMP" not in steps[0].opname and "JUMP" not in next(behind, steps[0]).opname:
        return False
    after = next(behind, None)
    return after is not None and (after.opname == "LOAD_ASSERTION_ERROR" or after.argrepr == "AssertionError")


def line_of_script(skip: int = 1) -> str:
    """ "path:line" of the innermost frame of the script; of the innermost of all where there is none."""
    frame: Any = sys._getframe(skip)
    innermost = frame
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return f"{innermost.f_code.co_filename}:{innermost.f_lineno}"
