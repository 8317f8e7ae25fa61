"""Sweeps: any verb over many points, one row each, in one Parquet file; resumes after a kill."""

from windtunnel.studies.sweeps.sweep import SweepOutcome, sweep

__all__ = ["SweepOutcome", "sweep"]
