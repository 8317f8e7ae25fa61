"""One engine instance: its queues, its steps, and the stamps it leaves on requests."""

from __future__ import annotations

from windtunnel.serving.replica.replica import Replica
from windtunnel.serving.replica.rules import Rules, rules_of
from windtunnel.serving.replica.sequence import Sequence
from windtunnel.serving.replica.stepwise import StepwiseReplica

__all__ = ["Replica", "Rules", "Sequence", "StepwiseReplica", "rules_of"]
