"""Which replica gets a request: pure choices over what the replicas show of themselves."""

from __future__ import annotations

from windtunnel.studies.serving.routing.choices import LeastLoaded, PrefixAware, RoundRobin

__all__ = ["LeastLoaded", "PrefixAware", "RoundRobin"]
