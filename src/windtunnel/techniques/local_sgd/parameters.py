"""What can be said about local SGD with a learning rate that decays over rounds and local steps."""

from __future__ import annotations

from dataclasses import dataclass, field

SHAPES = ("constant", "inverse", "exponential")


@dataclass(frozen=True, slots=True)
class LocalPlan:
    """The plan that pricing and the training loop share.

    The learning rate of local step k in round r is eta0 phi(r) psi(k), each 1, 1 / (1 + rate t) or (1 - rate)^t.
    """

    local_steps: int = field(default=16, metadata={"help": "optimizer steps between two averages of the weights"})
    rounds: str = field(default="exponential", metadata={"help": "decay over rounds, phi", "one_of": SHAPES})
    round_rate: float = field(default=0.05, metadata={"help": "its rate"})
    steps: str = field(default="exponential", metadata={"help": "decay over local steps, psi", "one_of": SHAPES})
    step_rate: float = field(default=0.1, metadata={"help": "its rate"})

    def factor(self, round_number: int, local_step: int) -> float:
        """phi(r) psi(k)."""
        return decay(self.rounds, self.round_rate, round_number) * decay(self.steps, self.step_rate, local_step)


def decay(shape: str, rate: float, at: int) -> float:
    """1, 1 / (1 + rate t) or (1 - rate)^t."""
    if shape == "inverse":
        return 1.0 / (1.0 + rate * at)
    return float((1.0 - rate) ** at) if shape == "exponential" else 1.0
