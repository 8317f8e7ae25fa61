"""Resilience for real: `python -m windtunnel.survive` launches a job whose ranks are replaced when they die.

    from windtunnel.survive import train        in the script: the loop that goes on

The study of what failures cost at any scale is `windtunnel.survive(...)` and `windtunnel survive`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windtunnel.survive.live.launcher import launch
    from windtunnel.survive.live.train import train
    from windtunnel.survive.watch.log import RankLog

_HOME = {"RankLog": "watch.log", "launch": "live.launcher", "train": "live.train"}
__all__ = ["RankLog", "launch", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
