"""Shared by all tests: property tests have no deadline, because these run on shared machines."""

from hypothesis import HealthCheck, settings

settings.register_profile("windtunnel", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
settings.load_profile("windtunnel")
