"""Runs of a job through its failures, many at once on arrays."""

from windtunnel.resilience.run.many import run_many
from windtunnel.resilience.run.outcome import PARTS, Episode, Outcome, Saving

__all__ = ["PARTS", "Episode", "Outcome", "Saving", "run_many"]
