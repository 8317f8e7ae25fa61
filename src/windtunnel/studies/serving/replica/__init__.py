"""One engine instance: its queues, its steps, and the stamps it leaves on requests."""

from __future__ import annotations

from windtunnel.studies.serving.replica.replica import Replica
from windtunnel.studies.serving.replica.rules import Rules, rules_of
from windtunnel.studies.serving.replica.sequence import Sequence
from windtunnel.studies.serving.replica.stepwise import StepwiseReplica

__all__ = ["Replica", "Rules", "Sequence", "StepwiseReplica", "rules_of"]
