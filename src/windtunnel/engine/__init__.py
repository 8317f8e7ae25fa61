"""Replays a priced graph: the start and end of every op, and what can be read off them. Never knows a FLOP."""

from windtunnel.engine.replay import Slowdown, replay
from windtunnel.engine.sharing import Sharing
from windtunnel.engine.timeline import Exposure, Timeline, critical_path, exposed

__all__ = [
    "Exposure",
    "Sharing",
    "Slowdown",
    "Timeline",
    "critical_path",
    "exposed",
    "replay",
]
