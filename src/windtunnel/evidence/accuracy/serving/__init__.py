"""Measured deployments of served models, predicted row by row and held against what was measured."""

from __future__ import annotations

from windtunnel.evidence.accuracy.serving.report import ServingReport
from windtunnel.evidence.accuracy.serving.run import is_serving_table, run_serving_validation

__all__ = ["ServingReport", "is_serving_table", "run_serving_validation"]
