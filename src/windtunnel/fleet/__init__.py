"""A study: many jobs on one cluster, and the schedulers that share it among them.

`windtunnel.fleet` is the name of this package and of the study's one function: the package is callable.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Study(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """`windtunnel.fleet.study.fleet`."""
        from windtunnel.fleet.study import fleet

        return fleet(*arguments, **options)


sys.modules[__name__].__class__ = _Study
