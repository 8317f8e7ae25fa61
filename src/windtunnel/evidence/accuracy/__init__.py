"""The validate study: published runs predicted one by one and held against what was measured."""

from __future__ import annotations

from windtunnel.evidence.accuracy.cases import Case, Skip, case_of
from windtunnel.evidence.accuracy.outcome import Outcome
from windtunnel.evidence.accuracy.report import Report
from windtunnel.evidence.accuracy.run import run_validation
from windtunnel.evidence.accuracy.table import Row, read_table

__all__ = ["Case", "Outcome", "Report", "Row", "Skip", "case_of", "read_table", "run_validation"]
