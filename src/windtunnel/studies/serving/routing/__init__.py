"""Which replica gets a request: pure choices over what the replicas show of themselves. One file and one line each."""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.studies.serving.routing import least_loaded, prefix_aware, round_robin
from windtunnel.studies.serving.routing.least_loaded import LeastLoaded
from windtunnel.studies.serving.routing.prefix_aware import PrefixAware
from windtunnel.studies.serving.routing.round_robin import RoundRobin
from windtunnel.studies.serving.routing.traits import Traits

ROUTERS: Mapping[str, Traits] = {
    "round-robin": round_robin.ROUTER,
    "least-loaded": least_loaded.ROUTER,
    "prefix-aware": prefix_aware.ROUTER,
}

__all__ = ["ROUTERS", "LeastLoaded", "PrefixAware", "RoundRobin", "Traits"]
