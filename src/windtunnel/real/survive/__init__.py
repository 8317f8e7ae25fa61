"""Resilience for real: `python -m windtunnel.survive` launches a job whose ranks are replaced when they die.

    from windtunnel.survive import standby           in a script: the user's own step, done again when a rank dies
    from windtunnel.survive import train             in a script: a data-parallel loop of ours

What failures cost at any scale is a study: `windtunnel.survive(model, cluster, plan)`, as `windtunnel survive`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.real.survive.live.launcher import launch
    from windtunnel.real.survive.live.train import train
    from windtunnel.real.survive.loop.standby import standby
    from windtunnel.real.survive.watch.log import RankLog

__all__ = ["RankLog", "launch", "standby", "train"]
__getattr__ = lazily(
    __name__,
    {"RankLog": "watch.log", "launch": "live.launcher", "standby": "loop.standby", "train": "live.train"},
)
