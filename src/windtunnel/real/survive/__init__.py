"""Resilience for real: `python -m windtunnel.survive` launches a job whose ranks are replaced when they die.

    from windtunnel.real.survive import train        in the script: the loop that goes on

What failures cost at any scale is a study: `windtunnel.survive(model, cluster, plan)`, as `windtunnel survive`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.real.survive.live.launcher import launch
    from windtunnel.real.survive.live.train import train
    from windtunnel.real.survive.watch.log import RankLog

__all__ = ["RankLog", "launch", "train"]
__getattr__ = lazily(__name__, {"RankLog": "watch.log", "launch": "live.launcher", "train": "live.train"})
