"""Batching policies: pure decisions over a replica's queues. Each is one file with a `plan`, named in `policies.py`."""

from __future__ import annotations

from windtunnel.studies.serving.batching.continuous import ContinuousBatching
from windtunnel.studies.serving.batching.plan import Batching, Plan, State

__all__ = ["Batching", "ContinuousBatching", "Plan", "State"]
