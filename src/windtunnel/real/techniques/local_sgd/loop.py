"""Local SGD in PyTorch: K local steps, then one all-reduce averages the weights; the rate is eta0 phi(r) psi(k).

The weights travel as one flat buffer a round. By hand: `LocalSGD(model, LearningRate(optimizer, LocalPlan(...)))` and
`after_step()` behind each optimizer step.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from windtunnel.errors import SpecError
from windtunnel.real.techniques.hooking import begin_alike
from windtunnel.studies.techniques.parameters import LocalPlan


class LearningRate:
    """Sets the learning rate of each parameter group to its first one times phi(r) psi(k)."""

    def __init__(self, optimizer: torch.optim.Optimizer, plan: LocalPlan) -> None:
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise SpecError("optimizer", optimizer, "give a torch.optim.Optimizer")
        self.optimizer, self.plan = optimizer, plan
        self.first = [float(group["lr"]) for group in optimizer.param_groups]
        self.round = self.local = 0
        self._set()

    def step(self) -> bool:
        """One local step is done; whether a round is, too."""
        self.local += 1
        over = self.local == self.plan.local_steps
        if over:
            self.round, self.local = self.round + 1, 0
        self._set()
        return over

    def _set(self) -> None:
        factor = self.plan.factor(self.round, self.local)
        for group, first in zip(self.optimizer.param_groups, self.first, strict=True):
            group["lr"] = first * factor

    def state_dict(self) -> dict[str, object]:
        """Where the schedule stands."""
        return {"round": self.round, "local": self.local, "first": list(self.first)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.round, self.local = int(state_dict["round"]), int(state_dict["local"])
        self.first = list(state_dict["first"])
        self._set()


class LocalSGD:
    """Averages a model's weights over a process group at the end of each round."""

    def __init__(self, model: nn.Module, rates: LearningRate, group: dist.ProcessGroup | None = None) -> None:
        if not isinstance(rates, LearningRate):
            raise SpecError("rates", rates, "give a LearningRate of the optimizer that trains the model")
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.rates, self.group, self.bytes_sent = rates, group, 0

    def after_step(self) -> bool:
        """To be called after each optimizer step; whether the weights were averaged."""
        over = self.rates.step()
        if over:
            self.average()
        return over

    def average(self) -> None:
        """The mean of the weights over all ranks, on every rank the same bits."""
        flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        dist.all_reduce(flat, group=self.group)
        flat /= dist.get_world_size(self.group)
        self.bytes_sent += flat.numel() * flat.element_size()
        at = 0
        for parameter in self.parameters:
            parameter.detach().copy_(flat[at : at + parameter.numel()].view_as(parameter))
            at += parameter.numel()


def apply(
    model: nn.Module, optimizer: torch.optim.Optimizer, group: dist.ProcessGroup | None = None, **parameters: object
) -> LocalSGD:
    """Average the weights of `model` after every `local_steps` steps of `optimizer`; its rates follow the plan.

    `parameters` are those of the plan; without them rates stay as they are. An optimizer step that one rank alone
    leaves out (GradScaler) would part the ranks. Raises SpecError.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise SpecError(
            "model", type(model).__name__, "give the module itself: this takes DistributedDataParallel's place"
        )
    settings = {"rounds": "constant", "steps": "constant", **parameters}
    plan = LocalPlan(**settings)  # type: ignore[arg-type]  # it checks them
    local = LocalSGD(model, LearningRate(optimizer, plan), group)
    begin_alike(model, group)
    optimizer.register_step_post_hook(lambda *_: local.after_step() and None)
    return local
