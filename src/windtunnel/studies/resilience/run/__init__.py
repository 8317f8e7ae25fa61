"""Runs of a job through its failures, many at once on arrays."""

from windtunnel.studies.resilience.run.many import PARTS, Episode, Outcome, SaveTimes, run_many

__all__ = ["PARTS", "Episode", "Outcome", "SaveTimes", "run_many"]
