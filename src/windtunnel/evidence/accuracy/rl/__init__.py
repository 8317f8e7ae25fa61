"""Published steps of RL post-training, predicted row by row and held against what was measured."""

from __future__ import annotations

from windtunnel.evidence.accuracy.rl.run import RlReport, is_rl_table, run_rl_validation

__all__ = ["RlReport", "is_rl_table", "run_rl_validation"]
