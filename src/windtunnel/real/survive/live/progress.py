"""What a member of a training loop has to hand over, to another member or to a checkpoint."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from windtunnel.errors import SpecError
from windtunnel.real.survive.checkpoint import Checkpoints
from windtunnel.real.survive.live.group import packed

if TYPE_CHECKING:
    import torch
    from torch.distributed.checkpoint.stateful import Stateful


@dataclass
class Progress:
    """What a member has to hand over."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    others: Mapping[str, Stateful]  # whatever else has state_dict and load_state_dict
    step: int = 0
    losses: list[float] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Everything, bit by bit."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), **self.rest()}
        return packed({**parts, "step": self.step})

    def rest(self) -> dict[str, object]:
        """What is neither the model's nor the optimizer's."""
        return {
            "others": {name: other.state_dict() for name, other in self.others.items()},
            "losses": list(self.losses),
        }

    def take(self, data: bytes) -> None:
        """The state of another member. Whole or not at all: `data` has arrived completely."""
        import torch

        parts = torch.load(io.BytesIO(data), weights_only=True)
        self.model.load_state_dict(parts["model"])
        self.optimizer.load_state_dict(parts["optimizer"])
        for name, other in self.others.items():
            other.load_state_dict(parts["others"][name])
        self.step, self.losses = parts["step"], parts["losses"]


@dataclass
class CheckpointSchedule:
    """Checkpoints of the loop: which steps are saved, and what is read where nobody has state."""

    checkpoints: Checkpoints
    every: int
    steps: int

    def save_if_due(self, progress: Progress) -> None:
        """A step is done: save it if it is its turn. Raises CheckpointError where the last one could not be written."""
        if progress.step % self.every == 0 or progress.step == self.steps:
            rest = {"rest": packed(progress.rest())}
            self.checkpoints.save(progress.step, progress.model, progress.optimizer, rest)

    def restore(self, progress: Progress) -> None:
        """Take the newest complete checkpoint, if there is one. Raises InputFileError where it is damaged."""
        import torch

        rest: dict[str, bytes] = {"rest": b""}
        step = self.checkpoints.restore(progress.model, progress.optimizer, rest)
        if step is None:
            return
        state = torch.load(io.BytesIO(rest["rest"]), weights_only=True)
        for name, other in progress.others.items():
            other.load_state_dict(state["others"][name])
        progress.step, progress.losses = step, state["losses"]

    def finish(self) -> None:
        """Until the last one is on disk."""
        self.checkpoints.wait()


def saving_of(folder: Path | str | None, every: int, steps: int) -> CheckpointSchedule | None:
    """Checkpoints in `folder`, every so many steps of `steps`; None without a folder. Raises SpecError."""
    if folder is None:
        return None
    if every < 1:
        raise SpecError("checkpoint_every", every, "save every step or more rarely: give 1 or more")
    return CheckpointSchedule(Checkpoints(Path(folder)), every, steps)
