"""Coarse-grained sparse gradients with error feedback as a communication hook of DistributedDataParallel.

Each parameter's gradient is cut into chunks, padded, so that none straddles two tensors. A rank adds what it kept back
before (its residual) and takes each chunk's mean magnitude; the ranks all-reduce those, so that all choose the same
chunks; these are all-reduced, packed. With momentum correction (DGC) the velocity is accumulated and not the gradient,
and forgotten where it was sent; the optimizer outside then has no momentum of its own.

Residuals belong to parameters, not to buckets, which DDP builds anew after its first step.
"""

# No `from __future__ import annotations` here: DistributedDataParallel reads the hook's annotations as objects.

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from windtunnel.errors import SpecError
from windtunnel.real.techniques.hooking import require_bare
from windtunnel.studies.techniques.parameters import SparsePlan

STEERING = 0.5  # of log tau, per unit of density
LEAST = 1e-30


class State:
    """What the hook keeps between steps. `sent` and `dense` count elements, norms included."""

    def __init__(
        self,
        module: nn.Module,
        plan: SparsePlan | None = None,
        group: dist.ProcessGroup | None = None,
        **parameters: Any,
    ) -> None:
        if not isinstance(module, nn.Module):
            raise SpecError("module", module, "give the torch.nn.Module whose gradients are reduced")
        self.plan = plan if plan is not None else SparsePlan(**parameters)
        self.group = group
        self.names: dict[int, str] = {id(parameter): name for name, parameter in module.named_parameters()}
        self.residual: dict[str, torch.Tensor] = {}
        self.velocity: dict[str, torch.Tensor] = {}
        self.log_tau: float | None = None
        self.step = self.sent = self.dense = 0

    @property
    def share_sent(self) -> float:
        """Elements sent over those of whole gradients."""
        return self.sent / self.dense if self.dense else 1.0

    def state_dict(self) -> dict[str, object]:
        """Everything that a run needs to go on; each rank's is its own."""
        return {
            "residual": {name: tensor.clone() for name, tensor in self.residual.items()},
            "velocity": {name: tensor.clone() for name, tensor in self.velocity.items()},
            "log_tau": self.log_tau,
            "step": self.step,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a `state_dict`. Raises SpecError where it is of another model."""
        unknown = sorted(set(state_dict["residual"]) - set(self.names.values()))
        if unknown:
            raise SpecError("residual", unknown[0], "the state is of another model: it has no such parameter")
        self.residual = {name: tensor.clone() for name, tensor in state_dict["residual"].items()}
        self.velocity = {name: tensor.clone() for name, tensor in state_dict["velocity"].items()}
        self.log_tau, self.step = state_dict["log_tau"], int(state_dict["step"])

    def name_of(self, parameter: torch.Tensor) -> str:
        """Of a parameter of the module that this state was made for."""
        name = self.names.get(id(parameter))
        if name is None:
            raise SpecError("parameter", tuple(parameter.shape), "it is not of the module that the state was made for")
        return name

    def chosen(self, magnitude: torch.Tensor) -> torch.Tensor:
        """bool[chunks] from each chunk's mean magnitude over all ranks; the same on all of them."""
        plan, count = self.plan, magnitude.numel()
        if plan.ratio >= 1.0 or self.step < plan.warmup:
            return torch.ones(count, dtype=torch.bool, device=magnitude.device)
        if plan.rule == "topk":
            keep = torch.zeros(count, dtype=torch.bool, device=magnitude.device)
            keep[magnitude.topk(max(1, round(plan.ratio * count))).indices] = True
            return keep
        if plan.threshold is not None:
            return magnitude > plan.threshold
        if self.log_tau is None:
            place = min(count - 1, int((1.0 - plan.ratio) * count))
            self.log_tau = math.log(float(magnitude.sort().values[place]) + LEAST)
        keep = magnitude > math.exp(self.log_tau)
        self.log_tau += STEERING * (float(keep.float().mean()) - plan.ratio)
        return keep


def hook(state: State, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduce one bucket: to be given to `DistributedDataParallel.register_comm_hook` with a `State`."""
    group = state.group if state.group is not None else dist.group.WORLD
    world, chunk, momentum = dist.get_world_size(group), state.plan.chunk, state.plan.momentum
    parts = [
        (state.name_of(parameter), gradient)
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
    ]
    rows = []
    for name, gradient in parts:
        flat = gradient.reshape(-1)
        residual = state.residual.setdefault(name, torch.zeros_like(flat))
        if momentum:
            velocity = state.velocity.setdefault(name, torch.zeros_like(flat))
            velocity.mul_(momentum).add_(flat)
            flat = velocity
        residual.add_(flat)
        rows.append(nn.functional.pad(residual, (0, -residual.numel() % chunk)).view(-1, chunk))
    stacked = torch.cat(rows)
    magnitude = stacked.abs().mean(1)
    dist.all_reduce(magnitude, group=group)
    keep = state.chosen(magnitude / world)
    packed = stacked[keep]
    state.sent += packed.numel() + magnitude.numel()
    state.dense += sum(gradient.numel() for _, gradient in parts)
    last = bucket.is_last()
    work = dist.all_reduce(packed, group=group, async_op=True)
    if last:
        state.step += 1

    def unpack(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        future.value()  # raises what the collective raised
        whole = torch.zeros_like(stacked)
        whole[keep] = packed / world
        at = 0
        for (name, gradient), row in zip(parts, rows, strict=True):
            end, count = at + len(row), gradient.numel()
            gradient.copy_(whole[at:end].reshape(-1)[:count].view_as(gradient))
            is_sent = keep[at:end, None].expand(-1, chunk).reshape(-1)[:count]
            state.residual[name].masked_fill_(is_sent, 0.0)
            if momentum:
                state.velocity[name].masked_fill_(is_sent, 0.0)
            at = end
        return bucket.buffer()

    return work.get_future().then(unpack)


def apply(model: object, **parameters: object) -> State:
    """Put the hook into `model`, a DistributedDataParallel; `parameters` are those of the plan. Raises SpecError."""
    ddp = require_bare(model)
    plan = SparsePlan(**parameters)  # type: ignore[arg-type]  # it checks them
    state = State(ddp.module, plan, ddp.process_group)
    ddp.register_comm_hook(state, hook)
    return state
