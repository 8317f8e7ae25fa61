"""Resilience for real: `python -m windtunnel.survive` launches a job whose ranks are replaced when they die.

    from windtunnel.survive import train        in the script: the loop that goes on

    windtunnel.survive(model, cluster, plan)    what failures cost at any scale: the study, as `windtunnel survive`

This package is also the public name of the study, so it can be called.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.survive.live.launcher import launch
    from windtunnel.survive.live.train import train
    from windtunnel.survive.watch.log import RankLog

__all__ = ["RankLog", "launch", "train"]
__getattr__ = lazily(__name__, {"RankLog": "watch.log", "launch": "live.launcher", "train": "live.train"})


class _Callable(ModuleType):
    """`windtunnel.survive(...)` is the study; Python binds the name of a package that is imported to the package."""

    def __call__(self, model: Any, cluster: Any, plan: Any = None, **asked: Any) -> Any:
        return import_module(f"{__name__}.question").survive(model, cluster, plan, **asked)


sys.modules[__name__].__class__ = _Callable
