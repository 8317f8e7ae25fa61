"""Resilience: what failures cost a training job at any scale, under each way to live with them."""

from windtunnel.studies.resilience.checkpoints import ADAM_BYTES_PER_PARAMETER, Checkpoint
from windtunnel.studies.resilience.failures import fit_log, process_to_yaml, read_failures
from windtunnel.studies.resilience.recovery import RecoveryTimes, published, with_times
from windtunnel.studies.resilience.study import PolicyEntry, Survival, SurvivalQuestion, survive

__all__ = [
    "ADAM_BYTES_PER_PARAMETER",
    "Checkpoint",
    "PolicyEntry",
    "RecoveryTimes",
    "Survival",
    "SurvivalQuestion",
    "fit_log",
    "process_to_yaml",
    "published",
    "read_failures",
    "survive",
    "with_times",
]
