"""Shared by all tests: property tests have no deadline, because these run on shared machines.

Their examples are the same in every run, so that a change fails for what it changed. HYPOTHESIS_PROFILE=random draws
anew, with four times as many examples where a test names no number of its own.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "windtunnel", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60, derandomize=True
)
settings.register_profile("random", settings.get_profile("windtunnel"), derandomize=False, max_examples=240)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "windtunnel"))
