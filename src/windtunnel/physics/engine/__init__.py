"""Replays a priced graph: the start and end of every op, and what can be read off them. Never knows a FLOP."""

from windtunnel.physics.engine.replay import Slowdown, replay
from windtunnel.physics.engine.sharing import Sharing
from windtunnel.physics.engine.timeline import Exposure, Timeline, critical_path, exposed

__all__ = [
    "Exposure",
    "Sharing",
    "Slowdown",
    "Timeline",
    "critical_path",
    "exposed",
    "replay",
]
