"""Local SGD with a learning rate that decays over rounds and local steps: the loop; priced in `studies.techniques`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windtunnel.lazy import lazily
from windtunnel.studies.techniques.parameters import LocalPlan

if TYPE_CHECKING:
    from windtunnel.real.techniques.local_sgd.loop import LearningRate, LocalSGD, apply

__all__ = ["LearningRate", "LocalPlan", "LocalSGD", "apply"]
__getattr__ = lazily(__name__, {"LearningRate": "loop", "LocalSGD": "loop", "apply": "loop"})
