"""What a user's own run measured: logs, exports and profiles of training jobs, read into one form."""

from windtunnel.studies.measured_run.read import read_run
from windtunnel.studies.measured_run.run import MeasuredRun, Steady, Step, steady_of

__all__ = ["MeasuredRun", "Steady", "Step", "read_run", "steady_of"]
