"""What is asked of a deployment: lengths, arrivals, prefixes, and the client that sends them."""

from __future__ import annotations

from windtunnel.serving.workload.clients import ClosedLoop, OpenLoop
from windtunnel.serving.workload.requests import Workload

__all__ = ["ClosedLoop", "OpenLoop", "Workload"]
