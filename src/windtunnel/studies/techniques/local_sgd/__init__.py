"""Local SGD with a learning rate that decays over rounds and over local steps: pricing in `price`."""

from __future__ import annotations

from windtunnel.studies.techniques.parameters import LocalPlan

__all__ = ["LocalPlan"]
