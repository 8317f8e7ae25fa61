"""What can be said about local SGD with a learning rate that decays over rounds and local steps."""

from __future__ import annotations

from dataclasses import dataclass, field

from windtunnel.errors import SpecError
from windtunnel.studies.techniques.parameters import Parameters

SHAPES = ("constant", "inverse", "exponential")


@dataclass(frozen=True, slots=True)
class LocalPlan(Parameters):
    """The plan that pricing and the training loop share.

    The learning rate of local step k in round r is eta0 phi(r) psi(k), each 1, 1 / (1 + rate t) or (1 - rate)^t.
    """

    local_steps: int = field(
        default=16, metadata={"help": "optimizer steps between two averages of the weights", "least": 1}
    )
    rounds: str = field(default="exponential", metadata={"help": "decay over rounds, phi", "one_of": SHAPES})
    round_rate: float = field(default=0.05, metadata={"help": "its rate, at most 1 if exponential", "least": 0})
    steps: str = field(default="exponential", metadata={"help": "decay over local steps, psi", "one_of": SHAPES})
    step_rate: float = field(default=0.1, metadata={"help": "its rate, at most 1 if exponential", "least": 0})

    def __post_init__(self) -> None:
        Parameters.__post_init__(self)
        for name, shape, rate in (
            ("round_rate", self.rounds, self.round_rate),
            ("step_rate", self.steps, self.step_rate),
        ):
            if shape == "exponential" and rate > 1.0:
                raise SpecError(name, rate, "give 0 to 1: an exponential decay would turn learning rates negative")

    def factor(self, round_number: int, local_step: int) -> float:
        """The factor phi(r) psi(k) of the learning rate."""
        return decay(self.rounds, self.round_rate, round_number) * decay(self.steps, self.step_rate, local_step)


def decay(shape: str, rate: float, at: int) -> float:
    """1, 1 / (1 + rate t) or (1 - rate)^t."""
    if shape == "inverse":
        return 1.0 / (1.0 + rate * at)
    return float((1.0 - rate) ** at) if shape == "exponential" else 1.0
