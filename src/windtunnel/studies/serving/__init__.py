"""Serving: from one request to a fleet of replicas, predicted.

engines/      engine releases as data            step_time/   what one iteration costs
kv/           blocks, prefixes, capacity         batching/    policies: which sequences take part in a step
replica/      one engine instance                routing/     which instance gets a request
workload/     lengths, arrivals, clients         loop.py      the event loop;  run.py  `serve`
"""

from __future__ import annotations

from windtunnel.studies.serving.build import Engine, engine_of
from windtunnel.studies.serving.deployment import Deployment
from windtunnel.studies.serving.engines.profile import Profile, load_engine
from windtunnel.studies.serving.result import ServingResult
from windtunnel.studies.serving.run import serve, serve_with
from windtunnel.studies.serving.workload.requests import Workload

__all__ = [
    "Deployment",
    "Engine",
    "Profile",
    "ServingResult",
    "Workload",
    "engine_of",
    "load_engine",
    "serve",
    "serve_with",
]
