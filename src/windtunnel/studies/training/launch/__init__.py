"""What frameworks are launched with, as a plan and back: Megatron-Core arguments, torchtitan, DeepSpeed, Accelerate."""

from __future__ import annotations

from windtunnel.studies.training.launch.job_file import Native
from windtunnel.studies.training.launch.native import (
    FORMATS,
    is_native,
    launch_files,
    launch_flags,
    launch_of,
    read_native,
)

__all__ = ["FORMATS", "Native", "is_native", "launch_files", "launch_flags", "launch_of", "read_native"]
