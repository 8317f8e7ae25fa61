"""Techniques: what makes training faster, predicted on a plan.

Each is a folder with the plan that both sides share and the pricing that rewrites a step; what really runs in PyTorch
is in `windtunnel.real.techniques`. `predict_with` predicts a step with some of them, `gains` what each would bring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.studies.techniques.predict import explained, gains, predict_with

__all__ = ["explained", "gains", "predict_with"]
__getattr__ = lazily(__name__, dict.fromkeys(__all__, "predict"))
