"""Techniques: what makes training faster, predicted on a plan and really run in PyTorch.

Each is a folder with the plan that both share, the pricing that rewrites a step, and the real twin:

    from windtunnel.studies.techniques import offload, sparse_gradients, prioritised_all_to_all

    windowed = offload.apply(model, torch.optim.Adam, window="auto", device_memory="8 GiB")
    ddp.register_comm_hook(sparse_gradients.State(ddp.module, ratio=0.05), sparse_gradients.hook)

`predict_with` predicts a step with some of them, `gains` what each would bring. The twins alone
import torch, when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from windtunnel.lazy import lazily

if TYPE_CHECKING:
    from windtunnel.studies.techniques.predict import explained, gains, predict_with

TWINS = (
    "collective_partitioning",
    "local_sgd",
    "megascale",
    "offload",
    "prioritised_all_to_all",
    "sparse_gradients",
)
__all__ = ["explained", "gains", "predict_with"]
_of_predict = lazily(__name__, dict.fromkeys(__all__, "predict"))


def __getattr__(name: str) -> Any:
    return import_module(f"{__name__}.{name}") if name in TWINS else _of_predict(name)
