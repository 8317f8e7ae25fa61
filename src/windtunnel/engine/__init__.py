"""Replays a priced graph: the start and end of every op, and what can be read off them. Never knows a FLOP."""

from windtunnel.engine.replay import Slowdown, replay, replay_logged
from windtunnel.engine.sharing import Sharing, SpeedLog, sharing_of
from windtunnel.engine.timeline import Exposure, Timeline, critical_path, exposed

__all__ = [
    "Exposure",
    "Sharing",
    "Slowdown",
    "SpeedLog",
    "Timeline",
    "critical_path",
    "exposed",
    "replay",
    "replay_logged",
    "sharing_of",
]
