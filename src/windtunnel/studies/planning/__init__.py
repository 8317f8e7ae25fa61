"""Planning: the best plan for a model on a cluster, and the proof that none in the space is better."""

from windtunnel.studies.planning.answer import Planned, Plans
from windtunnel.studies.planning.plan import plan

__all__ = ["Planned", "Plans", "plan"]
