"""Runs of a job through its failures: one as an event loop, many at once on arrays."""

from windtunnel.resilience.run.many import run_many
from windtunnel.resilience.run.one import Episode, run_one
from windtunnel.resilience.run.outcome import PARTS, Outcome, Saving

__all__ = ["PARTS", "Episode", "Outcome", "Saving", "run_many", "run_one"]
