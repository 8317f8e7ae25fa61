"""Measure the device at hand, and write it as a cluster that every verb can use.

`calibrate(...)` measures ops, `measure_collectives(...)` collectives between real processes. torch is imported inside
functions only, so that importing this costs nothing.

`windtunnel.calibrate` is the name of this package and of its one function: the package is callable.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from windtunnel.calibrate.run import Outcome, calibrate

__all__ = ["Outcome", "calibrate"]


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Outcome:
        """`windtunnel.calibrate.run.calibrate`."""
        return calibrate(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
