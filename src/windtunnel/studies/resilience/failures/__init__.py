"""What fails, how often, and samples of it."""

from windtunnel.studies.resilience.failures.draw import FailureTrace, draw
from windtunnel.studies.resilience.failures.fit import fit_log
from windtunnel.studies.resilience.failures.process import Cause, FailureProcess, Symptom
from windtunnel.studies.resilience.failures.read import CATALOGUE, process_to_yaml, read_failures

__all__ = [
    "CATALOGUE",
    "Cause",
    "FailureProcess",
    "FailureTrace",
    "Symptom",
    "draw",
    "fit_log",
    "process_to_yaml",
    "read_failures",
]
