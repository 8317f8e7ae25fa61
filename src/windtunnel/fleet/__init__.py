"""A study: many jobs on one cluster, and the schedulers that share it among them.

`windtunnel.fleet` is the name of this package and of the study's one function: the package is callable.
"""

from __future__ import annotations

import sys
from inspect import Signature, signature
from types import ModuleType
from typing import Any


class _Study(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """`windtunnel.fleet.study.fleet`."""
        from windtunnel.fleet.study import fleet

        return fleet(*arguments, **options)

    @property
    def __signature__(self) -> Signature:
        from windtunnel.fleet.study import fleet

        return signature(fleet)


sys.modules[__name__].__class__ = _Study
