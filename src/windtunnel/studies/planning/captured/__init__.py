"""Stages of a captured script: its units as prices, and the cut of them that makes its step shortest."""

from windtunnel.studies.planning.captured.plan import plan_captured

__all__ = ["plan_captured"]
