"""What is asked of a deployment: lengths, arrivals, prefixes, and the client that sends them."""

from __future__ import annotations

from windtunnel.studies.serving.workload.clients import ClosedLoop, OpenLoop
from windtunnel.studies.serving.workload.requests import Workload

__all__ = ["ClosedLoop", "OpenLoop", "Workload"]
