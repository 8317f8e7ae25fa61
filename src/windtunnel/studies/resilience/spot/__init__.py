"""Training on spot machines: recorded availability, and what policies do with it."""

from windtunnel.studies.resilience.spot.study import POLICIES, SpotAnswer, SpotEntry, survive_spot

__all__ = ["POLICIES", "SpotAnswer", "SpotEntry", "survive_spot"]
