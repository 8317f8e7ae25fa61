"""Which replica gets a request: pure choices over what the replicas show of themselves. One file and one line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from windtunnel.studies.serving.loop import Router
from windtunnel.studies.serving.routing.least_loaded import LeastLoaded
from windtunnel.studies.serving.routing.prefix_aware import PrefixAware
from windtunnel.studies.serving.routing.round_robin import RoundRobin

ROUTERS: Mapping[str, Callable[[], Router]] = {
    "round-robin": RoundRobin,
    "least-loaded": LeastLoaded,
    "prefix-aware": PrefixAware,
}

__all__ = ["ROUTERS", "LeastLoaded", "PrefixAware", "RoundRobin"]
